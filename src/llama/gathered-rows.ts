/**
 * Some rows of a model's matrix as a matrix of its own, on the device that has the whole one. Rows come from the file: a CPU
 * may keep its weights repacked, and a repacked buffer cannot be read.
 */
import * as fs from "node:fs";
import koffi from "koffi";
import { readGguf } from "../gguf/split.ts";
import { UserError } from "../util/errors.ts";
import { readFully } from "../util/files.ts";
import { nameOf, tensorAt, words } from "./graph-surgery.ts";
import type { Llama } from "./library.ts";
import type { Nullable, Pointer } from "./structs.ts";

const P = "void *";
/** GGML_BACKEND_BUFFER_USAGE_WEIGHTS: the scheduler computes where weights are. */
const usageWeights = 1;
const initParams = koffi.struct({ mem_size: "size_t", mem_buffer: P, no_alloc: "bool" });

interface Api {
  ggml_init(params: { mem_size: number; mem_buffer: null; no_alloc: boolean }): Nullable;
  ggml_free(context: Pointer): void;
  ggml_new_tensor_2d(context: Pointer, type: number, ne0: bigint, ne1: bigint): Pointer;
  ggml_backend_buffer_get_type(buffer: Pointer): Pointer;
  ggml_backend_buft_get_device(type: Pointer): Nullable;
  ggml_backend_buft_is_host(type: Pointer): boolean;
  ggml_backend_dev_buffer_type(device: Pointer): Pointer;
  ggml_backend_cpu_buffer_type(): Pointer;
  ggml_backend_alloc_ctx_tensors_from_buft(context: Pointer, type: Pointer): Nullable;
  ggml_backend_buffer_set_usage(buffer: Pointer, usage: number): void;
  ggml_backend_buffer_free(buffer: Pointer): void;
  ggml_backend_tensor_set(tensor: Pointer, data: Uint8Array, offset: number, size: number): void;
}

function bind({ base }: Llama): Api {
  return {
    ggml_init: base.func("ggml_init", P, [initParams]),
    ggml_free: base.func("ggml_free", "void", [P]),
    ggml_new_tensor_2d: base.func("ggml_new_tensor_2d", P, [P, "int32_t", "int64_t", "int64_t"]),
    ggml_backend_buffer_get_type: base.func("ggml_backend_buffer_get_type", P, [P]),
    ggml_backend_buft_get_device: base.func("ggml_backend_buft_get_device", P, [P]),
    ggml_backend_buft_is_host: base.func("ggml_backend_buft_is_host", "bool", [P]),
    ggml_backend_cpu_buffer_type: base.func("ggml_backend_cpu_buffer_type", P, []),
    ggml_backend_dev_buffer_type: base.func("ggml_backend_dev_buffer_type", P, [P]),
    ggml_backend_alloc_ctx_tensors_from_buft: base.func("ggml_backend_alloc_ctx_tensors_from_buft", P, [P, P]),
    ggml_backend_buffer_set_usage: base.func("ggml_backend_buffer_set_usage", "void", [P, "int"]),
    ggml_backend_buffer_free: base.func("ggml_backend_buffer_free", "void", [P]),
    ggml_backend_tensor_set: base.func("ggml_backend_tensor_set", "void", [P, P, "size_t", "size_t"]),
  };
}

/** Owner of the gathered matrix; made when the whole one is first seen. */
export class GatheredRows implements Disposable {
  readonly #api: Api;
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
    this.#api = bind(llama);
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
    const { [words.type]: type, [words.ne0]: width, [words.buffer]: buffer } = tensorAt(weights);
    const bufferType = this.#typeBeside(buffer as bigint);
    this.#context = api.ggml_init({ mem_size: 4096, mem_buffer: null, no_alloc: true });
    if (this.#context === null) throw new Error("ggml_init: no memory for a tensor's description");
    this.#tensor = api.ggml_new_tensor_2d(this.#context, Number((type as bigint) & 0xffff_ffffn), width as bigint, BigInt(this.ids.length));
    this.#buffer = api.ggml_backend_alloc_ctx_tensors_from_buft(this.#context, bufferType);
    if (this.#buffer === null) throw new UserError(`the device has no ${rows.length} bytes left`);
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
    const { [words.type]: typeWord, [words.ne0]: width, [words.ne1]: nRows, [words.nb1]: nb1 } = tensorAt(weights);
    const name = nameOf(weights);
    const tensor = readGguf(this.#modelPath).tensors.find((t) => t.name === name);
    const rowBytes = Number(nb1);
    const isSame = tensor !== undefined && tensor.typeId === Number((typeWord as bigint) & 0xffff_ffffn) && tensor.shape[0] === Number(width) && tensor.sizeBytes === rowBytes * Number(nRows);
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
