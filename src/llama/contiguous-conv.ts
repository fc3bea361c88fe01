/**
 * Rows in order before a recurrent layer's convolution. The layer prepends its convolution state to the new rows, which are
 * transposed. For rows that lie apart ggml-cuda has one block of 256 threads for each channel and sequence, to copy six
 * numbers (concat.cu): 42 us a layer at eight sequences of three rows on an H200. Copied into order first, the
 * concatenation takes its fast kernel.
 */
import type { Addition, GraphNodes } from "./graph-nodes.ts";
import type { GraphOps } from "./graph-surgery.ts";
import type { Pointer } from "./structs.ts";

/** Of a sequence, and sequences: what verifying drafts has, and where there is something to gain. */
export const convRows = { most: 8, leastSeqs: 4 } as const;

/** For the concatenation at `index`, where it is one along rows, of several sequences, whose second part has its numbers apart. */
export function straighten({ ggml, concatOp }: GraphOps, context: Pointer, nodes: GraphNodes, index: number, nFree: number): Addition | undefined {
  const at = nodes.at(index);
  if (nFree < 1 || nodes.op(at) !== concatOp || nodes.parameter(at, 0) !== 0) return undefined;
  const address = nodes.source(at, 1);
  const part = nodes.find(address);
  if (part === undefined || nodes.nb(part, 0) === 4) return undefined;
  const nRows = nodes.ne(part, 0);
  if (nRows < 2 || nRows > convRows.most || nodes.ne(part, 2) < convRows.leastSeqs) return undefined;
  const inOrder = ggml.ggml_cont(context, BigInt(address));
  return { before: index, roots: [inOrder], nNew: 1, use: () => nodes.setSource(at, 1, inOrder) };
}
