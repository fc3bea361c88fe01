/**
 * F16 copies of a model's F32 matrices, for steps of 4 to 16 rows: those are the routers of its experts.
 *
 * Up to three rows ggml-cuda multiplies F32 matrices by a kernel for vectors, beyond that by tensor cores in TF32
 * (mul_mat_f, up to sixteen rows; cuBLAS after that). For the router of 2,048 by 256 that takes 12 us instead of 3.5 on an H200, in
 * half precision 5. TF32 has ten bits of mantissa, and so has F16; what is lost is range: weights below 6e-5 lose bits, and
 * rows above 65,504 would overflow, which normed ones are far from.
 */
import type { GgufTensor } from "../gguf/header.ts";
import { knownType } from "../gguf/types.ts";
import { DerivedMatrices, isMatrix, type Sharing, type StoredRows } from "./device-matrix.ts";
import { bindGgml, type Ggml } from "./ggml-ops.ts";
import { isStored, sizesOf, tensorAt, typeOf } from "./graph-surgery.ts";
import type { Llama } from "./library.ts";
import type { Pointer } from "./structs.ts";

/** Rows of a step for which half precision is faster. */
export const halfRows = { least: 4, most: 16 } as const;

const [f32, f16] = [knownType("F32"), knownType("F16")];
/** Beyond that memory counts. */
const mostElements = 1 << 22;

export class F16Copies extends DerivedMatrices {
  readonly #api: Pick<Ggml, "ggml_fp32_to_fp16_row">;

  constructor(llama: Llama, modelPath: string, sharing?: Sharing) {
    super(llama, modelPath, sharing);
    this.#api = bindGgml(llama.base, ["ggml_fp32_to_fp16_row"]);
  }

  protected derive(parts: readonly Pointer[]): Pointer | undefined {
    const areCopied = parts.map((weights) => tensorAt(weights)).every((fields) => isStored(fields) && isCopied(typeOf(fields), sizesOf(fields)));
    return areCopied ? this.joined(parts, f16.id, (stored) => this.#halvesOf(stored)) : undefined;
  }

  *#halvesOf(stored: StoredRows): Generator<Uint8Array> {
    for (const rows of stored.all()) {
      const nElements = rows.length / f32.blockBytes;
      const copy = new Uint8Array(nElements * f16.blockBytes);
      this.#api.ggml_fp32_to_fp16_row(rows, copy, nElements);
      yield copy;
    }
  }
}

const isCopied = (typeId: number, sizes: readonly number[]): boolean => typeId === f32.id && isMatrix(sizes, mostElements);

/** Bytes of the copies of these tensors; of those that nothing multiplies none is made, so it may be less. */
export const bytesOfHalves = (tensors: readonly GgufTensor[]): number => tensors.reduce((sum, { typeId, shape, nElements }) => (isCopied(typeId, shape) ? sum + nElements * f16.blockBytes : sum), 0);
