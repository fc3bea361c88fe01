/**
 * BF16 copies of a model's quantized matrices outside of experts, for forwards of more than eight rows, and of its LM head.
 *
 * Up to eight rows ggml-cuda multiplies quantized matrices by a kernel of its own for vectors (MMVQ_MAX_BATCH_SIZE of
 * mmvq.cuh), beyond that by one for matrices (mmq.cu). A BF16 matrix takes cuBLAS there. Measured on an H200, microseconds in
 * IQ4_XS and in BF16: 2,048 by 512 13 and 7 (24 rows), 37 and 10 (1,160 rows of prompts); 2,048 by 8,192 19 and 13, 206 and 60.
 * An LM head of 248,320 rows in Q6_K is slow already with few rows: 272 us for two, 548 for eight, in BF16 241
 * and 282. Beyond sixteen rows cuBLAS rounds results to BF16 as well, which logits shall not be.
 * Values are those of the quantized matrix, rounded to eight bits of mantissa; activations are rounded to BF16, where the
 * other kernel rounds them to int8.
 */
import koffi from "koffi";
import type { GgufTensor } from "../gguf/header.ts";
import { ggmlType, knownType, type GgmlType } from "../gguf/types.ts";
import { UserError } from "../util/errors.ts";
import { DerivedMatrices, isMatrix, type Sharing, type StoredRows } from "./device-matrix.ts";
import { bindGgml, type Ggml } from "./ggml-ops.ts";
import { isStored, sizesOf, tensorAt, typeOf } from "./graph-surgery.ts";
import type { Llama } from "./library.ts";
import type { Pointer } from "./structs.ts";

/** Rows of a step for which the LM head's copy is faster, and its results are not rounded. */
export const headRows = { least: 2, most: 16 } as const;

/** The largest that was measured; beyond it memory counts, and reading a matrix four times as wide. It also leaves out LM heads. */
const mostCopied = 1 << 24;

const bf16 = knownType("BF16");

/** Byte offsets in ggml_type_traits (ggml.h). */
const traits = { blockSize: 8, blockBytes: 24, toFloat: 40 } as const;

export class Bf16Copies extends DerivedMatrices {
  readonly #api: Pick<Ggml, "ggml_fp32_to_bf16_row">;
  readonly #traitsOf: (typeId: number) => Pointer;
  readonly #toFloat = koffi.proto("void", ["void *", "void *", "int64_t"]);
  readonly #mostElements: number;

  /** @param mostElements of a matrix that is copied */
  constructor(llama: Llama, modelPath: string, sharing?: Sharing, mostElements = mostCopied) {
    super(llama, modelPath, sharing);
    this.#mostElements = mostElements;
    this.#api = bindGgml(llama.base, ["ggml_fp32_to_bf16_row"]);
    this.#traitsOf = llama.base.func("ggml_get_type_traits", "void *", ["int32_t"]) as (typeId: number) => Pointer;
  }

  /** A copy of quantized matrices only. */
  protected derive(parts: readonly Pointer[]): Pointer | undefined {
    const areCopied = parts.map((weights) => tensorAt(weights)).every((fields) => isStored(fields) && isCopied(ggmlType(typeOf(fields)), sizesOf(fields), this.#mostElements));
    return areCopied ? this.joined(parts, bf16.id, (stored) => this.#valuesOf(stored)) : undefined;
  }

  *#valuesOf(stored: StoredRows): Generator<Uint8Array> {
    const { typeId, type, name } = stored.tensor;
    const known = this.#traitsOf(typeId);
    const isKnown = koffi.decode(known, traits.blockSize, "int64_t") === type?.blockSize && koffi.decode(known, traits.blockBytes, "size_t") === type?.blockBytes;
    if (type === undefined || !isKnown) throw new UserError(`this library describes the type of ${name} otherwise than is known`);
    const toFloat = koffi.decode(known, traits.toFloat, "void *") as Pointer;
    const { blockSize, blockBytes } = type;
    for (const rows of stored.all()) {
      const values = new Float32Array((rows.length / blockBytes) * blockSize);
      koffi.call(toFloat, this.#toFloat, rows, values, values.length);
      const copy = new Uint8Array(values.length * bf16.blockBytes);
      this.#api.ggml_fp32_to_bf16_row(values, copy, values.length);
      yield copy;
    }
  }
}

const isCopied = (type: GgmlType | undefined, sizes: readonly number[], mostElements: number): boolean => type !== undefined && type.blockSize > 1 && isMatrix(sizes, mostElements);

/** Bytes of the copies of these tensors. Those whose products are stacks are never copied, so it may be less. */
export const bytesOfCopies = (tensors: readonly GgufTensor[]): number => tensors.reduce((sum, { type, shape, nElements }) => (isCopied(type, shape, mostCopied) ? sum + nElements * bf16.blockBytes : sum), 0);

/** Bytes of the copy of an LM head. */
export const bytesOfHead = ({ type, shape, nElements }: GgufTensor): number => (isCopied(type, shape, Infinity) ? nElements * bf16.blockBytes : 0);
