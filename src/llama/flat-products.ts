/**
 * The last product of a linear attention layer is written as a stack of one product a sequence, and ggml-cuda reads the
 * matrix for each of them. As one product of all rows it is read once: 10 us a layer instead of 20 at eight sequences of one
 * row, 16 instead of 24 at three (an H200, 4,096 by 2,048 in IQ4_XS).
 */
import type { Addition, GraphNodes } from "./graph-nodes.ts";
import { tensorAt, words, type GraphOps } from "./graph-surgery.ts";

/** Fewer were not measured. */
export const leastStack = 4;

/** For the product at `index`, where it is one matrix by a stack that lies in order, and nothing asks for its shape. */
export function flattenProduct({ reshapeOp }: GraphOps, nodes: GraphNodes, index: number): Addition | undefined {
  const product = nodes.at(index);
  if (nodes.ne(product, 2) < leastStack || nodes.ne(product, 3) !== 1) return undefined;
  const rows = nodes.find(nodes.source(product, 1));
  // Reshaped rows lie in order; reshaped afterwards, the product's own shape is of no account.
  if (rows === undefined || nodes.op(rows) !== reshapeOp || nodes.onlyReader(rows) === undefined || nodes.onlyReader(product) === undefined) return undefined;
  const next = index + 1 < nodes.n ? nodes.at(index + 1) : product;
  if (nodes.op(next) !== reshapeOp || nodes.source(next, 0) !== nodes.address(product)) return undefined;
  if (tensorAt(BigInt(nodes.source(product, 0)))[words.ne2] !== 1n) return undefined;
  return {
    before: index,
    roots: [],
    nNew: 0,
    use: () => {
      for (const at of [rows, product]) nodes.setShape(at, [nodes.ne(at, 0), nodes.ne(at, 1) * nodes.ne(at, 2), 1, 1]);
    },
  };
}
