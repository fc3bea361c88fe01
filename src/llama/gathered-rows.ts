/**
 * Some rows of a model's matrix as a matrix of its own, on the device that has the whole one. Rows come from the file: a CPU
 * may keep its weights repacked, and a repacked buffer cannot be read.
 */
import * as fs from "node:fs";
import { readGguf } from "../gguf/split.ts";
import { UserError } from "../util/errors.ts";
import { readFully } from "../util/files.ts";
import { bindGgml, type Ggml } from "./ggml-ops.ts";
import { tensorAt, typeOf, words } from "./graph-surgery.ts";
import type { Llama } from "./library.ts";
import type { Nullable, Pointer } from "./structs.ts";

/** GGML_BACKEND_BUFFER_USAGE_WEIGHTS: the scheduler computes where weights are. */
const usageWeights = 1;

const functions = [
  "ggml_init",
  "ggml_free",
  "ggml_get_name",
  "ggml_new_tensor_2d",
  "ggml_backend_alloc_ctx_tensors_from_buft",
  "ggml_backend_buffer_free",
  "ggml_backend_buffer_get_type",
  "ggml_backend_buffer_set_usage",
  "ggml_backend_buft_get_device",
  "ggml_backend_buft_is_host",
  "ggml_backend_cpu_buffer_type",
  "ggml_backend_dev_buffer_type",
  "ggml_backend_tensor_set",
] as const;

/** Owner of the gathered matrix; made when the whole one is first seen. */
export class GatheredRows implements Disposable {
  readonly #api: Pick<Ggml, (typeof functions)[number]>;
  readonly #modelPath: string;
  /** Rows of the whole matrix, by their places in this one. */
  readonly ids: Int32Array;
  #source: Pointer | undefined;
  #context: Nullable = null;
  #buffer: Nullable = null;
  #tensor: Pointer = 0n;
  #failed: unknown;

  /** @param ids rows, in the order that they shall have */
  constructor(llama: Llama, modelPath: string, ids: Int32Array) {
    this.#api = bindGgml(llama.base, functions);
    this.#modelPath = modelPath;
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
      return this.#gather(weights);
    } catch (error) {
      // Each graph of a context would try again.
      this.#failed = error;
      this.close();
      throw error;
    }
  }

  #gather(weights: Pointer): Pointer {
    const rows = this.#read(weights);
    const api = this.#api;
    const fields = tensorAt(weights);
    const bufferType = this.#typeBeside(fields[words.buffer] as bigint);
    this.#context = api.ggml_init({ mem_size: 4096, mem_buffer: null, no_alloc: true });
    if (this.#context === null) throw new Error("ggml_init: no memory for a tensor's description");
    this.#tensor = api.ggml_new_tensor_2d(this.#context, typeOf(fields), fields[words.ne0] as bigint, this.ids.length);
    this.#buffer = api.ggml_backend_alloc_ctx_tensors_from_buft(this.#context, bufferType);
    if (this.#buffer === null) throw new UserError(`the device has no memory for the ${rows.length} bytes of ${this.ids.length} rows; take fewer tokens`);
    api.ggml_backend_buffer_set_usage(this.#buffer, usageWeights);
    api.ggml_backend_tensor_set(this.#tensor, rows, 0, rows.length);
    this.#source = weights;
    return this.#tensor;
  }

  /** The plain buffer type of the device that a buffer is on; host memory has no device where it is a mapped file. */
  #typeBeside(buffer: Pointer): Pointer {
    const api = this.#api;
    const type = api.ggml_backend_buffer_get_type(buffer);
    const device = api.ggml_backend_buft_get_device(type);
    if (device !== null) return api.ggml_backend_dev_buffer_type(device);
    if (!api.ggml_backend_buft_is_host(type)) throw new UserError("its LM head is spread over several devices");
    return api.ggml_backend_cpu_buffer_type();
  }

  #read(weights: Pointer): Uint8Array {
    const fields = tensorAt(weights);
    const { [words.ne0]: width, [words.ne1]: nRows, [words.nb1]: nb1 } = fields;
    const name = this.#api.ggml_get_name(weights);
    const tensor = readGguf(this.#modelPath).tensors.find((t) => t.name === name);
    const rowBytes = Number(nb1);
    const isSame = tensor !== undefined && tensor.typeId === typeOf(fields) && tensor.shape[0] === Number(width) && tensor.sizeBytes === rowBytes * Number(nRows);
    if (!isSame) throw new UserError(`${this.#modelPath} holds no tensor ${name} as it was loaded`);
    const rows = new Uint8Array(this.ids.length * rowBytes);
    const fd = fs.openSync(tensor.file, "r");
    try {
      for (const [i, id] of this.ids.entries()) readFully(fd, rows.subarray(i * rowBytes, (i + 1) * rowBytes), tensor.offset + id * rowBytes);
    } finally {
      fs.closeSync(fd);
    }
    return rows;
  }

  /** Contexts whose graphs hold the matrix must be freed before. */
  close(): void {
    if (this.#buffer !== null) this.#api.ggml_backend_buffer_free(this.#buffer);
    if (this.#context !== null) this.#api.ggml_free(this.#context);
    this.#buffer = null;
    this.#context = null;
  }

  [Symbol.dispose](): void {
    this.close();
  }
}
