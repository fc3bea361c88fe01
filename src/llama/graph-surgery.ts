/**
 * What a backend sampler may know and change of the graph that it is called for: the operators it adds, where ggml_tensor
 * keeps its fields, and the LM head's product, which it may replace by a shorter one.
 *
 * Offsets are those of ggml 0.25 (ggml.h); `bindGraphOps` checks them against tensors of our own.
 */
import koffi from "koffi";
import type { Llama } from "./library.ts";
import type { Nullable, Pointer } from "./structs.ts";

const P = "void *";

/** 64-bit words of a ggml_tensor. The operator is the lower half of word 10. */
export const words = { type: 0, buffer: 1, ne0: 2, ne1: 3, nb1: 7, op: 10, src0: 19, src1: 20, viewSource: 29, viewOffset: 30 } as const;
const tensorBytes = 336;
const nameAt = 256;
const nameBytes = 64;
const lowerHalf = 0xffff_ffffn;

export interface GraphOps {
  argmax(context: Pointer, a: Pointer): Pointer;
  mulMat(context: Pointer, a: Pointer, b: Pointer): Pointer;
  view1d(context: Pointer, a: Pointer, n: bigint, offset: bigint): Pointer;
  reshape1d(context: Pointer, a: Pointer, n: bigint): Pointer;
  setOutput(tensor: Pointer): void;
  /** Operator numbers. */
  readonly mulMatOp: number;
  readonly padOp: number;
}

interface TestOps {
  init(params: { mem_size: number; mem_buffer: null; no_alloc: boolean }): Nullable;
  free(context: Pointer): void;
  new2d(context: Pointer, type: number, ne0: bigint, ne1: bigint): Pointer;
  setName(tensor: Pointer, name: string): Pointer;
  pad(context: Pointer, a: Pointer, p0: number, p1: number, p2: number, p3: number): Pointer;
}

const initParams = koffi.struct({ mem_size: "size_t", mem_buffer: P, no_alloc: "bool" });

export const wordsAt = (address: Pointer, bytes: number): BigUint64Array => new BigUint64Array(koffi.view(address, bytes));
export const tensorAt = (tensor: Pointer): BigUint64Array => wordsAt(tensor, tensorBytes);
const opOf = (tensor: BigUint64Array): number => Number((tensor[words.op] as bigint) & lowerHalf);

export function nameOf(tensor: Pointer): string {
  const bytes = Buffer.from(koffi.view(tensor, tensorBytes), nameAt, nameBytes);
  return bytes.toString("latin1", 0, Math.max(0, bytes.indexOf(0)));
}

/** GGML_OP_NONE: the node keeps its place and its memory in the graph, and no backend computes it. */
function setIdle(tensor: BigUint64Array): void {
  tensor[words.op] = (tensor[words.op] as bigint) & ~lowerHalf;
}

/** Undefined when tensors of our own do not show their fields where we look for them. */
export function bindGraphOps(llama: Llama): GraphOps | undefined {
  const { base } = llama;
  const ops = {
    argmax: base.func("ggml_argmax", P, [P, P]) as GraphOps["argmax"],
    mulMat: base.func("ggml_mul_mat", P, [P, P, P]) as GraphOps["mulMat"],
    view1d: base.func("ggml_view_1d", P, [P, P, "int64_t", "size_t"]) as GraphOps["view1d"],
    reshape1d: base.func("ggml_reshape_1d", P, [P, P, "int64_t"]) as GraphOps["reshape1d"],
    setOutput: base.func("ggml_set_output", "void", [P]) as GraphOps["setOutput"],
  };
  const test: TestOps = {
    init: base.func("ggml_init", P, [initParams]) as TestOps["init"],
    free: base.func("ggml_free", "void", [P]) as TestOps["free"],
    new2d: base.func("ggml_new_tensor_2d", P, [P, "int32_t", "int64_t", "int64_t"]) as TestOps["new2d"],
    setName: base.func("ggml_set_name", P, [P, "str"]) as TestOps["setName"],
    pad: base.func("ggml_pad", P, [P, P, "int", "int", "int", "int"]) as TestOps["pad"],
  };
  const context = test.init({ mem_size: 1 << 20, mem_buffer: null, no_alloc: true });
  if (context === null) return undefined;
  try {
    const weights = test.new2d(context, 0, 7n, 5n);
    const rows = test.new2d(context, 0, 7n, 3n);
    const product = ops.mulMat(context, weights, rows);
    test.setName(product, "product");
    const padded = test.pad(context, product, 0, 1, 0, 0);
    const view = tensorAt(ops.view1d(context, padded, 5n, 60n));
    const fields = tensorAt(product);
    const isKnown =
      view[words.ne0] === 5n && view[words.viewSource] === padded && view[words.viewOffset] === 60n && //
      fields[words.ne0] === 5n && fields[words.ne1] === 3n && fields[words.nb1] === 20n && //
      fields[words.src0] === weights && fields[words.src1] === rows && tensorAt(padded)[words.src0] === product && opOf(tensorAt(weights)) === 0 && nameOf(product) === "product";
    return isKnown ? { ...ops, mulMatOp: opOf(fields), padOp: opOf(tensorAt(padded)) } : undefined;
  } finally {
    test.free(context);
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
  return ops.mulMat(context, short, logits[words.src1] as bigint);
}
