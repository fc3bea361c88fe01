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
import { DeviceMatrices } from "./device-matrix.ts";
import { bindGgml, type Ggml } from "./ggml-ops.ts";
import { isLeaf, tensorAt, typeOf, words } from "./graph-surgery.ts";
import type { Llama } from "./library.ts";
import type { Pointer } from "./structs.ts";

/** The largest that was measured; beyond it memory counts, and reading a matrix four times as wide. It also leaves out LM heads. */
const mostElements = 1 << 24;

const bf16 = knownType("BF16");

/** Byte offsets in ggml_type_traits (ggml.h). */
const traits = { blockSize: 8, blockBytes: 24, toFloat: 40 } as const;

export class Bf16Copies implements Disposable {
  readonly #matrices: DeviceMatrices;
  readonly #api: Pick<Ggml, "ggml_fp32_to_bf16_row">;
  readonly #traitsOf: (typeId: number) => Pointer;
  readonly #toFloat = koffi.proto("void", ["void *", "void *", "int64_t"]);
  /** By address of the quantized one. */
  readonly #copies = new Map<number, Pointer>();

  constructor(llama: Llama, modelPath: string) {
    this.#matrices = new DeviceMatrices(llama, modelPath);
    this.#api = bindGgml(llama.base, ["ggml_fp32_to_bf16_row"]);
    this.#traitsOf = llama.base.func("ggml_get_type_traits", "void *", ["int32_t"]) as (typeId: number) => Pointer;
  }

  /**
   * Makes copies of those matrices that are quantized, no larger than `mostElements`, and have none.
   * @param addresses of ggml_tensors, leaves or not
   * @throws {UserError} when the device has no room, or the file does not hold what is in memory; none of these are left then
   */
  make(addresses: Iterable<number>): void {
    const nBefore = this.#matrices.n;
    const made: number[] = [];
    try {
      for (const address of addresses) {
        const weights = BigInt(address);
        if (this.#copies.has(address) || !isCopiedLeaf(weights)) continue;
        this.#copies.set(address, this.#copy(weights));
        made.push(address);
      }
    } catch (error) {
      for (const address of made) this.#copies.delete(address);
      this.#matrices.close(nBefore);
      throw error;
    }
  }

  /** The copy of the matrix at an address. */
  of(address: number): Pointer | undefined {
    return this.#copies.get(address);
  }

  #copy(weights: Pointer): Pointer {
    const stored = this.#matrices.stored(weights);
    const { typeId, type, nElements, shape, name } = stored.tensor;
    const known = this.#traitsOf(typeId);
    const isKnown = koffi.decode(known, traits.blockSize, "int64_t") === type?.blockSize && koffi.decode(known, traits.blockBytes, "size_t") === type?.blockBytes;
    if (!isKnown) throw new UserError(`this library describes the type of ${name} otherwise than is known`);
    const values = new Float32Array(nElements);
    koffi.call(koffi.decode(known, traits.toFloat, "void *") as Pointer, this.#toFloat, stored.readAll(), values, nElements);
    const copy = new Uint8Array(nElements * bf16.blockBytes);
    this.#api.ggml_fp32_to_bf16_row(values, copy, nElements);
    return this.#matrices.make(weights, bf16.id, nElements / (shape[0] as number), copy);
  }

  /** Contexts whose graphs hold the copies must be freed before. */
  close(): void {
    this.#matrices.close();
    this.#copies.clear();
  }

  [Symbol.dispose](): void {
    this.close();
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
