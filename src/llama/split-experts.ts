/**
 * Experts of more than eight rows in parts of up to eight. Up to eight rows ggml-cuda multiplies experts by a kernel for
 * vectors, gate and up in one (MMVQ_MAX_BATCH_SIZE of mmvq.cuh); beyond that by one for matrices, one launch each for gate,
 * up and down, whose tiles are nearly empty where 24 rows are spread over 256 experts. Measured on an H200, 256 experts of 512
 * in IQ4_XS, 8 a row: 66 us a layer for eight rows; 168 or, in parts, 133 for sixteen; 290 or 202 for 24; 621 or 561
 * for 64; 863 or 860 for 96.
 */
import { ggmlType } from "../gguf/types.ts";
import type { Addition, GraphNodes } from "./graph-nodes.ts";
import { tensorAt, typeOf, type GraphOps } from "./graph-surgery.ts";
import type { Pointer } from "./structs.ts";

/** Beyond that the kernel for matrices is faster. */
export const expertRows = { least: 9, most: 64 } as const;

/** Of a part, the most that the kernel for vectors takes. On GPUs before Ada it ends earlier for some types (get_mmvq_mmid_max_batch of mmvq.cu). */
const partRows = 8;

/** Nodes of a part: two views, three products, the gated unit, and what joins it to the part before. */
const nodesOfPart = 7;

/**
 * For the last product of a layer's experts at `index`, where they are a SwiGLU of products of the same rows.
 * @param isNear whether weights are where the edit is worth something
 */
export function splitExperts(ops: GraphOps, context: Pointer, nodes: GraphNodes, index: number, nFree: number, isNear: (weights: Pointer) => boolean): Addition | undefined {
  const { ggml } = ops;
  const down = nodes.at(index);
  const nRows = nodes.ne(down, 2);
  if (nRows < expertRows.least || nRows > expertRows.most) return undefined;
  const unit = innerOf(ops, nodes, down);
  if (unit === undefined) return undefined;
  const { glu, gate, up } = unit;
  const rowsAt = nodes.source(gate, 1);
  const chosenAt = nodes.source(gate, 2);
  const [rows, chosen] = [nodes.find(rowsAt), nodes.find(chosenAt)];
  const weights = [gate, up, down].map((at) => BigInt(nodes.source(at, 0)));
  if (rows === undefined || chosen === undefined || !weights.every((w) => isQuantized(w) && isNear(w))) return undefined;
  const nParts = Math.ceil(nRows / partRows);
  if (nParts * nodesOfPart > nFree) return undefined;
  const [gateWeights, upWeights, downWeights] = weights as [Pointer, Pointer, Pointer];
  const parts = evenParts(nRows, nParts).map(([from, n]) => {
    const row = nodes.nb(rows, 2);
    const input = ggml.ggml_view_3d(context, BigInt(rowsAt), nodes.ne(rows, 0), nodes.ne(rows, 1), n, nodes.nb(rows, 1), row, from * row);
    const choice = nodes.nb(chosen, 1);
    const ids = ggml.ggml_view_2d(context, BigInt(chosenAt), nodes.ne(chosen, 0), n, choice, from * choice);
    const gated = ggml.ggml_swiglu_split(context, ggml.ggml_mul_mat_id(context, gateWeights, input, ids), ggml.ggml_mul_mat_id(context, upWeights, input, ids));
    return ggml.ggml_mul_mat_id(context, downWeights, gated, ids);
  });
  const join = (a: Pointer, b: Pointer): Pointer => ggml.ggml_concat(context, a, b, 2);
  const halves = joinedInPairs(parts, join);
  return {
    before: index,
    roots: halves,
    nNew: nParts * nodesOfPart,
    use: () => {
      for (const at of [gate, up, glu]) nodes.setOp(at, 0);
      // What reads the product reads the joined parts: they take its place and memory.
      nodes.setOp(down, ops.concatOp, 2);
      // ggml frees the memory of what is last read: the idle unit's, that of its products.
      [...halves, BigInt(nodes.address(glu))].forEach((source, i) => nodes.setSource(down, i, source));
    },
  };
}

/** The gated unit before the last product and its two products, used by nothing else. */
function innerOf(ops: GraphOps, nodes: GraphNodes, down: number): { readonly glu: number; readonly gate: number; readonly up: number } | undefined {
  const glu = nodes.find(nodes.source(down, 1));
  if (glu === undefined || nodes.op(glu) !== ops.gluOp || nodes.parameter(glu, 0) !== ops.swiglu || nodes.parameter(glu, 1) !== 0) return undefined;
  const gate = nodes.find(nodes.source(glu, 0));
  const up = nodes.find(nodes.source(glu, 1));
  if (gate === undefined || up === undefined || nodes.op(gate) !== ops.mulMatIdOp || nodes.op(up) !== ops.mulMatIdOp) return undefined;
  const isOne = [1, 2].every((i) => nodes.source(gate, i) === nodes.source(up, i)) && nodes.source(gate, 2) === nodes.source(down, 2);
  return isOne && [gate, up, glu].every((at) => nodes.onlyReader(at) !== undefined) ? { glu, gate, up } : undefined;
}

const isQuantized = (weights: Pointer): boolean => (ggmlType(typeOf(tensorAt(weights)))?.blockSize ?? 1) > 1;

/** All parts joined to two, in pairs of neighbours, so that few are copied often. */
export function joinedInPairs<T>(parts: readonly T[], join: (a: T, b: T) => T): readonly [T, T] {
  let left = parts;
  while (left.length > 2) left = Array.from({ length: Math.ceil(left.length / 2) }, (_, i) => (2 * i + 1 < left.length ? join(left[2 * i] as T, left[2 * i + 1] as T) : (left[2 * i] as T)));
  return left as readonly [T, T];
}

/** First row and number of rows of each part, which differ by one at most. */
export function evenParts(n: number, nParts: number): readonly (readonly [from: number, n: number])[] {
  return Array.from({ length: nParts }, (_, i) => {
    const from = Math.floor((i * n) / nParts);
    return [from, Math.floor(((i + 1) * n) / nParts) - from];
  });
}
