/**
 * Experts of more than eight rows, a few rows at a time. Up to eight rows ggml-cuda multiplies experts by a kernel for vectors,
 * gate and up in one (MMVQ_MAX_BATCH_SIZE of mmvq.cuh); beyond that by one for matrices, one launch each for gate, up and
 * down, whose tiles are nearly empty where 24 rows are spread over 256 experts.
 *
 * So n rows of u experts each are told as t rows of n u / t: what each row chose lies there one behind the other, and the
 * results lie where they were wanted. Each row is repeated u times for it. Measured on an H200, 256 experts of 512 in IQ4_XS, 8 a
 * row, us a layer, by the kernel for matrices and so: 168 and 121 for 16 rows; 289 and 175 for 24; 362 and 230 for 32; 487 and
 * 338 for 48. Four rows are best, or three; five to eight take up to 3% more, two 20%, one 80%.
 */
import { ggmlType, knownType } from "../gguf/types.ts";
import { viewsOf, type Addition, type GraphNodes } from "./graph-nodes.ts";
import { tensorAt, typeOf, words, type GraphOps } from "./graph-surgery.ts";
import type { Pointer } from "./structs.ts";

/** Nine rows take twice as long as eight; from 136 on the kernel for matrices is faster, by what 48 rows and 145 take told as few. */
export const expertRows = { least: 9, most: 128 } as const;

/**
 * Rows that are told, the best first. Experts may be there twice in a told row, which only the kernel for vectors counts: it
 * takes eight rows of each type from Ada on, four at least before (get_mmvq_mmid_max_batch of mmvq.cu).
 */
const toldRows = [4, 3] as const;

/** Nodes of a part, and of the choice in order, which all parts have together. */
const nodesOfPart = 9;
const sharedNodes = 2;

const [f32, i32] = [knownType("F32"), knownType("I32")];

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
  // One row for all experts that it chose, and results in order.
  const [width, nUsed, outputWidth] = [nodes.ne(rows, 0), nodes.ne(chosen, 0), nodes.ne(down, 0)];
  if (nodes.ne(rows, 1) !== 1 || nodes.ne(down, 1) !== nUsed) return undefined;
  const parts = toldParts(nRows);
  const nNew = parts.length * nodesOfPart + sharedNodes;
  if (nNew > nFree) return undefined;
  const [gateWeights, upWeights, downWeights] = weights as [Pointer, Pointer, Pointer];
  const choice = inOrder(ops, context, BigInt(chosenAt), nUsed, nRows, nodes.nb(chosen, 1));
  const products = parts.map(({ from, n, told }) => {
    const nTold = (n / told) * nUsed;
    const rowBytes = nodes.nb(rows, 2);
    const given = ggml.ggml_view_3d(context, BigInt(rowsAt), width, 1, n, rowBytes, rowBytes, from * rowBytes);
    // What is told as it is needs no repetition: one row serves all its experts.
    const input = n === told ? given : ggml.ggml_reshape_3d(context, ggml.ggml_repeat_4d(context, given, width, nUsed, n, 1), width, nTold, told);
    const ids = ggml.ggml_view_2d(context, choice, nTold, told, nTold * i32.blockBytes, from * nUsed * i32.blockBytes);
    tensorAt(ids)[words.type] = withType(ids, i32.id);
    const gated = ggml.ggml_swiglu_split(context, ggml.ggml_mul_mat_id(context, gateWeights, input, ids), ggml.ggml_mul_mat_id(context, upWeights, input, ids));
    return ggml.ggml_mul_mat_id(context, downWeights, gated, ids);
  });
  const isOne = products.length === 1;
  const results = isOne ? products : products.map((product, i) => ggml.ggml_reshape_3d(context, product, outputWidth, nUsed, (parts[i] as ToldPart).n));
  const views = viewsOf(ops, nodes, down);
  return {
    before: index,
    roots: results,
    nNew,
    use: () => {
      for (const at of [gate, up, glu]) nodes.setOp(at, 0);
      if (isOne) {
        const [product] = products as [Pointer];
        nodes.setView(down, ops.viewOp, product, 0, nodes.steps(down));
        for (const view of views.slice(1)) nodes.moveView(view, product, nodes.viewOffset(view), nodes.steps(view));
      } else {
        // What reads the product reads the joined parts: they take its place and memory.
        nodes.setOp(down, ops.concatOp, 2);
        results.forEach((result, i) => nodes.setSource(down, i, result));
      }
      // ggml frees the memory of what is last read: the idle unit's, that of its products.
      nodes.setSource(down, results.length, BigInt(nodes.address(glu)));
    },
  };
}

/** Chosen experts [nUsed, nRows] one behind the other, as floats: a copy moves their bits, and backends copy no integers that lie apart. */
function inOrder({ ggml }: GraphOps, context: Pointer, chosen: Pointer, nUsed: number, nRows: number, rowBytes: number): Pointer {
  const view = ggml.ggml_view_2d(context, chosen, nUsed, nRows, rowBytes, 0);
  tensorAt(view)[words.type] = withType(view, f32.id);
  return ggml.ggml_cont(context, view);
}

/** The first word of a tensor, whose lower half is its type. */
const withType = (tensor: Pointer, typeId: number): bigint => (((tensorAt(tensor)[words.type] as bigint) >> 32n) << 32n) | BigInt(typeId);

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

export interface ToldPart {
  readonly from: number;
  readonly n: number;
  /** Rows that it is told as; `n` is a multiple. */
  readonly told: number;
}

/** All rows in one part where their number allows it; else as many as are a multiple of four, and the others. */
export function toldParts(n: number): readonly ToldPart[] {
  const told = toldRows.find((rows) => n % rows === 0);
  if (told !== undefined) return [{ from: 0, n, told }];
  const rest = n % 4;
  return [{ from: 0, n: n - rest, told: 4 }, { from: n - rest, n: rest, told: rest }];
}
