/**
 * What a backend sampler may know and change of the graph that it is called for: the operators it adds, where ggml_tensor
 * keeps its fields, and the LM head's product, which it may replace by a shorter one.
 *
 * Offsets are those of ggml 0.25 (ggml.h); `bindGraphOps` checks them against tensors of our own.
 */
import koffi from "koffi";
import { knownType } from "../gguf/types.ts";
import { bindGgml, type Ggml } from "./ggml-ops.ts";
import type { Llama } from "./library.ts";
import type { Pointer } from "./structs.ts";

/** 64-bit words of a ggml_tensor. The operator is the lower half of word 10. */
export const words = { type: 0, buffer: 1, ne0: 2, ne1: 3, ne2: 4, ne3: 5, nb0: 6, nb1: 7, nb3: 9, op: 10, src0: 19, src1: 20, viewSource: 29, viewOffset: 30 } as const;
export const tensorBytes = 336;
/** Sources of a node (GGML_MAX_SRC). */
export const mostSources = 10;
const lowerHalf = 0xffff_ffffn;
const [i32, i64] = [knownType("I32").id, knownType("I64").id];

const functions = [
  "ggml_init",
  "ggml_free",
  "ggml_new_tensor_2d",
  "ggml_new_tensor_3d",
  "ggml_set_output",
  "ggml_reshape_1d",
  "ggml_reshape_2d",
  "ggml_reshape_3d",
  "ggml_view_1d",
  "ggml_view_2d",
  "ggml_view_3d",
  "ggml_view_4d",
  "ggml_permute",
  "ggml_transpose",
  "ggml_cont",
  "ggml_repeat_4d",
  "ggml_cpy",
  "ggml_pad",
  "ggml_argmax",
  "ggml_mul_mat",
  "ggml_mul_mat_id",
  "ggml_swiglu_split",
  "ggml_concat",
  "ggml_add",
  "ggml_mul",
  "ggml_scale",
  "ggml_silu",
  "ggml_rms_norm",
  "ggml_get_rows",
  "ggml_set_rows",
  "ggml_cast",
] as const;

export interface GraphOps {
  readonly ggml: Pick<Ggml, (typeof functions)[number]>;
  /** Operator numbers. */
  readonly mulMatOp: number;
  readonly mulMatIdOp: number;
  readonly padOp: number;
  readonly concatOp: number;
  readonly reshapeOp: number;
  readonly viewOp: number;
  readonly permuteOp: number;
  readonly transposeOp: number;
  readonly contOp: number;
  readonly cpyOp: number;
  readonly addOp: number;
  readonly mulOp: number;
  readonly scaleOp: number;
  readonly normOp: number;
  readonly setRowsOp: number;
  readonly unaryOp: number;
  /** First parameter of SiLU. */
  readonly silu: number;
  readonly gluOp: number;
  /** First parameter of a gated unit that is SwiGLU. */
  readonly swiglu: number;
}

export const wordsAt = (address: Pointer, bytes: number): BigUint64Array => new BigUint64Array(koffi.view(address, bytes));
export const tensorAt = (tensor: Pointer): BigUint64Array => wordsAt(tensor, tensorBytes);
/** Number of the type. */
export const typeOf = (tensor: BigUint64Array): number => Number((tensor[words.type] as bigint) & lowerHalf);
const opOf = (tensor: BigUint64Array): number => Number((tensor[words.op] as bigint) & lowerHalf);
/** The first of an operator's parameters follows its number. */
const parameterOf = (tensor: BigUint64Array): number => Number((tensor[words.op] as bigint) >> 32n);
/** Weights or an input: nothing computes it. */
export const isLeaf = (tensor: BigUint64Array): boolean => opOf(tensor) === 0;

/** Has memory before any graph is computed: weights or a cache. */
export const isStored = (tensor: BigUint64Array): boolean => isLeaf(tensor) && tensor[words.buffer] !== 0n;
/** In all dimensions. */
export const sizesOf = (tensor: BigUint64Array): number[] => [0, 1, 2, 3].map((i) => Number(tensor[words.ne0 + i]));

/** GGML_OP_NONE: the node keeps its place and its memory in the graph, and no backend computes it. */
function setIdle(tensor: BigUint64Array): void {
  tensor[words.op] = (tensor[words.op] as bigint) & ~lowerHalf;
}

/** Undefined when tensors of our own do not show their fields where we look for them. */
export function bindGraphOps(llama: Llama): GraphOps | undefined {
  const ggml = bindGgml(llama.base, functions);
  const context = ggml.ggml_init({ mem_size: 1 << 20, mem_buffer: null, no_alloc: true });
  if (context === null) return undefined;
  try {
    const weights = ggml.ggml_new_tensor_2d(context, 0, 7, 5);
    const rows = ggml.ggml_new_tensor_2d(context, 0, 7, 3);
    const product = ggml.ggml_mul_mat(context, weights, rows);
    const padded = ggml.ggml_pad(context, product, 0, 1, 0, 0);
    const view = tensorAt(ggml.ggml_view_1d(context, padded, 5, 60));
    const fields = tensorAt(product);
    const joined = tensorAt(ggml.ggml_concat(context, weights, weights, 1));
    const gated = tensorAt(ggml.ggml_swiglu_split(context, rows, rows));
    const chosen = ggml.ggml_new_tensor_2d(context, i32, 2, 3);
    const routed = tensorAt(ggml.ggml_mul_mat_id(context, ggml.ggml_new_tensor_3d(context, 0, 7, 5, 4), ggml.ggml_new_tensor_3d(context, 0, 7, 1, 3), chosen));
    const isKnown =
      view[words.ne0] === 5n && view[words.viewSource] === padded && view[words.viewOffset] === 60n && //
      fields[words.ne0] === 5n && fields[words.ne1] === 3n && fields[words.nb1] === 20n && //
      fields[words.src0] === weights && fields[words.src1] === rows && tensorAt(padded)[words.src0] === product && isLeaf(tensorAt(weights)) && //
      joined[words.nb0] === 4n && parameterOf(joined) === 1 && //
      routed[words.ne1] === 2n && routed[words.ne2] === 3n && routed[words.src1 + 1] === chosen;
    if (!isKnown) return undefined;
    const numberOf = (tensor: Pointer): number => opOf(tensorAt(tensor));
    const silu = tensorAt(ggml.ggml_silu(context, rows));
    return {
      ggml,
      mulMatOp: opOf(fields),
      mulMatIdOp: opOf(routed),
      padOp: numberOf(padded),
      concatOp: opOf(joined),
      reshapeOp: numberOf(ggml.ggml_reshape_1d(context, weights, 35)),
      viewOp: opOf(view),
      permuteOp: numberOf(ggml.ggml_permute(context, rows, 1, 0, 2, 3)),
      transposeOp: numberOf(ggml.ggml_transpose(context, rows)),
      contOp: numberOf(ggml.ggml_cont(context, rows)),
      cpyOp: numberOf(ggml.ggml_cpy(context, rows, rows)),
      addOp: numberOf(ggml.ggml_add(context, rows, rows)),
      mulOp: numberOf(ggml.ggml_mul(context, rows, rows)),
      scaleOp: numberOf(ggml.ggml_scale(context, rows, 2)),
      normOp: numberOf(ggml.ggml_rms_norm(context, rows, 1)),
      setRowsOp: numberOf(ggml.ggml_set_rows(context, weights, rows, ggml.ggml_new_tensor_2d(context, i64, 3, 1))),
      unaryOp: opOf(silu),
      silu: parameterOf(silu),
      gluOp: opOf(gated),
      swiglu: parameterOf(gated),
    };
  } finally {
    ggml.ggml_free(context);
  }
}

/** libllama pads the logits by one row before it gives rows to samplers; this is the matrix before. */
export function unpadded(ops: GraphOps, matrix: Pointer): Pointer {
  const tensor = tensorAt(matrix);
  return opOf(tensor) === ops.padOp ? (tensor[words.src0] as bigint) : matrix;
}

/** Rows of the LM head's matrix that make the short one. */
export type RowsOf = (weights: Pointer) => Pointer;

/**
 * Logits by some rows of the LM head only, [rows of the head, rows], in the place of `matrix`: the whole logits and their
 * padding are no longer computed.
 * @returns undefined when they are not the plain product of a matrix and hidden rows (an adapter or a scale follows it)
 */
export function shortenLogits(ops: GraphOps, context: Pointer, matrix: Pointer, rowsOf: RowsOf): Pointer | undefined {
  const logits = tensorAt(unpadded(ops, matrix));
  if (opOf(logits) !== ops.mulMatOp) return undefined;
  const short = rowsOf(logits[words.src0] as bigint);
  setIdle(logits);
  setIdle(tensorAt(matrix));
  return ops.ggml.ggml_mul_mat(context, short, logits[words.src1] as bigint);
}
