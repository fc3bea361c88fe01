/**
 * BF16 copies of a model's quantized matrices outside of experts, for forwards of more than eight rows.
 *
 * Up to eight rows ggml-cuda multiplies quantized matrices by a kernel of its own for vectors (MMVQ_MAX_BATCH_SIZE of
 * mmvq.cuh), beyond that by one for matrices (mmq.cu). A BF16 matrix takes cuBLAS there. Measured on an H200, microseconds in
 * IQ4_XS and in BF16: 2,048 by 512 13 and 7 (24 rows), 37 and 10 (1,160 rows of prompts); 2,048 by 8,192 19 and 13, 206 and 60.
 * Values are those of the quantized matrix, rounded to eight bits of mantissa; activations are rounded to BF16, where the
 * other kernel rounds them to int8.
 */
import koffi from "koffi";
import type { GgufTensor } from "../gguf/header.ts";
import { ggmlType, knownType, type GgmlType } from "../gguf/types.ts";
import { UserError } from "../util/errors.ts";
import { DerivedMatrices } from "./device-matrix.ts";
import { bindGgml, type Ggml } from "./ggml-ops.ts";
import { isLeaf, tensorAt, typeOf, words } from "./graph-surgery.ts";
import type { Llama } from "./library.ts";
import type { Pointer } from "./structs.ts";

/** The largest that was measured; beyond it memory counts, and reading a matrix four times as wide. It also leaves out LM heads. */
const mostElements = 1 << 24;

const bf16 = knownType("BF16");

/** Byte offsets in ggml_type_traits (ggml.h). */
const traits = { blockSize: 8, blockBytes: 24, toFloat: 40 } as const;

export class Bf16Copies extends DerivedMatrices {
  readonly #api: Pick<Ggml, "ggml_fp32_to_bf16_row">;
  readonly #traitsOf: (typeId: number) => Pointer;
  readonly #toFloat = koffi.proto("void", ["void *", "void *", "int64_t"]);

  constructor(llama: Llama, modelPath: string) {
    super(llama, modelPath);
    this.#api = bindGgml(llama.base, ["ggml_fp32_to_bf16_row"]);
    this.#traitsOf = llama.base.func("ggml_get_type_traits", "void *", ["int32_t"]) as (typeId: number) => Pointer;
  }

  /** A copy of matrices of one width, joined; of quantized ones only, none larger than `mostElements`. */
  protected derive(parts: readonly Pointer[]): Pointer | undefined {
    const [first] = parts;
    if (first === undefined || !parts.every(isCopiedLeaf)) return undefined;
    const values = Buffer.concat(parts.map((weights) => this.#valuesOf(weights)));
    const width = Number(tensorAt(first)[words.ne0]);
    return this.matrices.make(first, bf16.id, [width, values.length / bf16.blockBytes / width], values);
  }

  #valuesOf(weights: Pointer): Uint8Array {
    const stored = this.matrices.stored(weights);
    const { typeId, type, nElements, name } = stored.tensor;
    const known = this.#traitsOf(typeId);
    const isKnown = koffi.decode(known, traits.blockSize, "int64_t") === type?.blockSize && koffi.decode(known, traits.blockBytes, "size_t") === type?.blockBytes;
    if (!isKnown) throw new UserError(`this library describes the type of ${name} otherwise than is known`);
    const values = new Float32Array(nElements);
    koffi.call(koffi.decode(known, traits.toFloat, "void *") as Pointer, this.#toFloat, stored.readAll(), values, nElements);
    const copy = new Uint8Array(nElements * bf16.blockBytes);
    this.#api.ggml_fp32_to_bf16_row(values, copy, nElements);
    return copy;
  }
}

function isCopiedLeaf(weights: Pointer): boolean {
  const fields = tensorAt(weights);
  const type = ggmlType(typeOf(fields));
  const sizes = [0, 1, 2, 3].map((i) => Number(fields[words.ne0 + i]));
  return isLeaf(fields) && fields[words.buffer] !== 0n && isCopied(type, sizes);
}

function isCopied(type: GgmlType | undefined, sizes: readonly number[]): boolean {
  const [width = 1, nRows = 1, ...others] = sizes;
  return type !== undefined && type.blockSize > 1 && nRows > 1 && others.every((n) => n === 1) && width * nRows <= mostElements;
}

/** Bytes of the copies of these tensors. Those whose products are stacks are never copied, so it may be less. */
export const bytesOfCopies = (tensors: readonly GgufTensor[]): number => tensors.reduce((sum, { type, shape, nElements }) => (isCopied(type, shape) ? sum + nElements * bf16.blockBytes : sum), 0);
