/**
 * F16 copies of a model's F32 matrices, for steps of 4 to 16 rows: those are the routers of its experts.
 *
 * Up to three rows ggml-cuda multiplies F32 matrices by a kernel for vectors, beyond that by tensor cores in TF32
 * (mul_mat_f, up to sixteen rows; cuBLAS after that). For the router of 2,048 by 256 that takes 12 us instead of 3.5 on an H200, in
 * half precision 5. TF32 has ten bits of mantissa, and so has F16: what is lost is the
 * range: weights below 6e-5 lose bits, and rows above 65,504 would overflow, which normed ones are far from.
 */
import type { GgufTensor } from "../gguf/header.ts";
import { DerivedMatrices, type Sharing } from "./device-matrix.ts";
import { bindGgml, type Ggml } from "./ggml-ops.ts";
import { isLeaf, tensorAt, typeOf, words } from "./graph-surgery.ts";
import type { Llama } from "./library.ts";
import type { Pointer } from "./structs.ts";

/** Rows of a step for which half precision is faster. */
export const halfRows = { least: 4, most: 16 } as const;

/** GGML_TYPE_F32, GGML_TYPE_F16. */
const [f32, f16] = [0, 1];
const halfBytes = 2;
/** Beyond that memory counts. */
const mostElements = 1 << 22;

export class F16Copies extends DerivedMatrices {
  readonly #api: Pick<Ggml, "ggml_fp32_to_fp16_row">;

  constructor(llama: Llama, modelPath: string, sharing?: Sharing) {
    super(llama, modelPath, sharing);
    this.#api = bindGgml(llama.base, ["ggml_fp32_to_fp16_row"]);
  }

  /** A copy of one matrix. */
  protected derive([weights]: readonly Pointer[]): Pointer | undefined {
    if (weights === undefined) return undefined;
    const fields = tensorAt(weights);
    const sizes = [0, 1, 2, 3].map((i) => Number(fields[words.ne0 + i]));
    if (!isLeaf(fields) || fields[words.buffer] === 0n || !isCopied(typeOf(fields), sizes)) return undefined;
    const [width, nRows] = sizes as [number, number];
    const stored = this.matrices.stored(weights);
    const api = this.#api;
    const halves = function* (): Generator<Uint8Array> {
      for (const rows of stored.all()) {
        const copy = new Uint8Array(rows.length / 2);
        api.ggml_fp32_to_fp16_row(rows, copy, rows.length / 4);
        yield copy;
      }
    };
    return this.matrices.make(weights, f16, [width, nRows], halves());
  }
}

function isCopied(typeId: number, [width = 1, nRows = 1, ...others]: readonly number[]): boolean {
  return typeId === f32 && nRows > 1 && others.every((n) => n === 1) && width * nRows <= mostElements;
}

/** Bytes of the copies of these tensors; of those that nothing multiplies none is made, so it may be less. */
export const bytesOfHalves = (tensors: readonly GgufTensor[]): number => tensors.reduce((sum, { typeId, shape, nElements }) => (isCopied(typeId, shape) ? sum + nElements * halfBytes : sum), 0);
