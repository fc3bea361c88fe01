/** Some rows of a model's matrix as a matrix of its own, on the device that has the whole one. */
import { DeviceMatrices } from "./device-matrix.ts";
import { tensorAt, typeOf, words } from "./graph-surgery.ts";
import type { Llama } from "./library.ts";
import type { Pointer } from "./structs.ts";

/** Owner of the gathered matrix; made when the whole one is first seen. */
export class GatheredRows implements Disposable {
  readonly #matrices: DeviceMatrices;
  /** Rows of the whole matrix, by their places in this one. */
  readonly ids: Int32Array;
  #source: Pointer | undefined;
  #tensor: Pointer = 0n;
  #failed: unknown;

  /** @param ids rows, in the order that they shall have */
  constructor(llama: Llama, modelPath: string, ids: Int32Array) {
    this.#matrices = new DeviceMatrices(llama, modelPath);
    this.ids = ids;
  }

  /**
   * Rows of a weight matrix of the model, [row length, ids]. Asked for the same matrix again, it gives the same answer.
   * @throws {UserError} for a matrix that is not in the file as it is in memory, or a device without room
   */
  of(weights: Pointer): Pointer {
    if (this.#source === weights) return this.#tensor;
    if (this.#source !== undefined) throw new Error("rows of two matrices were asked for");
    if (this.#failed !== undefined) throw this.#failed;
    try {
      const fields = tensorAt(weights);
      this.#tensor = this.#matrices.make(weights, typeOf(fields), [Number(fields[words.ne0]), this.ids.length], [this.#matrices.stored(weights).read(this.ids)]);
      this.#source = weights;
      return this.#tensor;
    } catch (error) {
      // Each graph of a context would try again.
      this.#failed = error;
      this.close();
      throw error;
    }
  }

  /** Contexts whose graphs hold the matrix must be freed before. */
  close(): void {
    this.#matrices.close();
  }

  [Symbol.dispose](): void {
    this.close();
  }
}
