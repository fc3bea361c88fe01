/**
 * ggml as an array library: one device, tensors in contexts of their own, graphs computed there. `ggml` holds the
 * functions of ggml as they are; this class adds what needs care: opening a device, memory, bounds, threads.
 *
 * ggml asserts by aborting the process, so graphs are built and run in a child process. An activation that is read
 * later must be marked with `ggml_set_output`, or fused kernels never write it.
 */
import koffi from "koffi";
import { UserError } from "../util/errors.ts";
import type { Device } from "./devices.ts";
import { bindGgml, type Ggml } from "./ggml-ops.ts";
import { loadLlama, selectDevices, type Llama } from "./library.ts";
import type { Pointer } from "./structs.ts";

export type { Ggml } from "./ggml-ops.ts";
export type Tensor = Pointer;
export type Graph = Pointer;

/** ggml's numbers of the types that training uses. */
export const ggmlType = { F32: 0, F16: 1, I32: 26, I64: 27, BF16: 30, Q8_0: 8 } as const;

/** `mode` of the rope functions. Interleaved M-RoPE is what qwen35 and qwen35moe use. */
export const ropeMode = { neox: 2, mrope: 8, imrope: 40 } as const;

export interface GgmlDeviceOptions {
  readonly llamaDir?: string | undefined;
  /** "auto", "cpu", or the name of one device. */
  readonly device?: string | undefined;
  /** CPU threads of a compute; chosen by the caller. */
  readonly nThreads?: number;
}

type HostArray = Float32Array | Int32Array | Uint16Array | Uint8Array | BigInt64Array;
type AsyncCompute = { async(backend: Pointer, graph: Graph, done: (error: Error | null, status: number) => void): void };

export class GgmlDevice implements Disposable {
  readonly ggml: Ggml;
  readonly device: Device;
  readonly isGpu: boolean;
  readonly #backend: Pointer;
  readonly #setThreads: ((backend: Pointer, n: number) => void) | undefined;
  #isClosed = false;

  constructor(llama: Llama, device: Device, nThreads: number) {
    this.ggml = bindGgml(llama.base);
    this.device = device;
    this.isGpu = device.type !== "cpu";
    const backend = this.ggml.ggml_backend_dev_init(device.pointer, null);
    if (backend === null) throw new UserError(`the device ${device.name} cannot be opened; is its driver there and its memory free?`);
    this.#backend = backend;
    this.#setThreads = findSetThreads(llama, this.ggml, device);
    this.setThreads(nThreads);
  }

  /** The native backend. @throws after close. */
  get backend(): Pointer {
    if (this.#isClosed) throw new Error("the ggml device is closed");
    return this.#backend;
  }

  /** No effect on devices that have no threads of ours. */
  setThreads(n: number): void {
    this.#setThreads?.(this.backend, Math.max(1, n));
  }

  /**
   * A context for descriptions of tensors and graphs, `sizeBytes` in all (`ggml_tensor_overhead()` each,
   * `ggml_graph_overhead_custom(nNodes, false)` a graph); freed with `ggml_free`. Data comes from `allocate` or a graph allocator.
   */
  newContext(sizeBytes: number): Pointer {
    const context = this.ggml.ggml_init({ mem_size: sizeBytes, mem_buffer: null, no_alloc: true });
    if (context === null) throw new Error(`ggml_init: no memory for ${sizeBytes} bytes of descriptions`);
    return context;
  }

  /** Gives every tensor of the context that has none memory on the device, zeroed. @throws {UserError} when there is not enough. */
  allocate(context: Pointer): Pointer {
    const buffer = this.ggml.ggml_backend_alloc_ctx_tensors(context, this.backend);
    if (buffer === null) throw new UserError(`${this.device.name} has no memory for these tensors; use a smaller batch or free memory on it`);
    this.ggml.ggml_backend_buffer_clear(buffer, 0);
    return buffer;
  }

  /** Runs a graph and waits. @throws {UserError} when the device reports failure. */
  compute(graph: Graph, what = "a graph"): void {
    checkStatus(what, this.ggml.ggml_backend_graph_compute(this.backend, graph));
  }

  /** The same on a thread of libuv's pool, so that the event loop stays free. One at a time. */
  async computeAsync(graph: Graph, what = "a graph"): Promise<void> {
    const { backend } = this;
    const compute = this.ggml.ggml_backend_graph_compute as unknown as AsyncCompute;
    checkStatus(what, await new Promise<number>((resolve, reject) => compute.async(backend, graph, (error, status) => (error === null ? resolve(status) : reject(error)))));
  }

  /** Host to device, `offsetBytes` into the tensor. */
  set(tensor: Tensor, data: HostArray, offsetBytes = 0): void {
    this.#checkRange("set", tensor, offsetBytes, data.byteLength);
    this.ggml.ggml_backend_tensor_set(tensor, data, offsetBytes, data.byteLength);
  }

  /** Device to host, filling `into`. */
  get<T extends HostArray>(tensor: Tensor, into: T, offsetBytes = 0): T {
    this.#checkRange("get", tensor, offsetBytes, into.byteLength);
    this.ggml.ggml_backend_tensor_get(tensor, into, offsetBytes, into.byteLength);
    return into;
  }

  #checkRange(call: string, tensor: Tensor, offsetBytes: number, nBytes: number): void {
    const sizeBytes = this.ggml.ggml_nbytes(tensor);
    if (offsetBytes < 0 || offsetBytes + nBytes > sizeBytes) throw new Error(`${call}: bytes ${offsetBytes} to ${offsetBytes + nBytes} are outside a tensor of ${sizeBytes} bytes`);
  }

  /** Whether this device has a kernel for the op that made the tensor. */
  supports(tensor: Tensor): boolean {
    return this.ggml.ggml_backend_dev_supports_op(this.device.pointer, tensor);
  }

  /** Contexts, buffers and allocators made on the device must be freed before. */
  close(): void {
    if (this.#isClosed) return;
    this.#isClosed = true;
    this.ggml.ggml_backend_free(this.#backend);
  }

  [Symbol.dispose](): void {
    this.close();
  }
}

function checkStatus(what: string, status: number): void {
  if (status !== 0) throw new UserError(`ggml could not compute ${what} (status ${status}); the device may be out of memory`);
}

function findSetThreads(llama: Llama, ggml: Ggml, device: Device): ((backend: Pointer, n: number) => void) | undefined {
  const lookUp = llama.base.func("ggml_backend_reg_get_proc_address", "void *", ["void *", "str"]);
  const address = lookUp(ggml.ggml_backend_dev_backend_reg(device.pointer), "ggml_backend_set_n_threads") as Pointer | null;
  if (address === null) return undefined;
  const type = koffi.proto("void", ["void *", "int32_t"]);
  return (backend, n) => void koffi.call(address, type, backend, n);
}

/**
 * Opens one device for computing: the first GPU there is with "auto", else the CPU.
 * @throws {UserError} when the device is not there or the value names several.
 */
export function openGgmlDevice(options: GgmlDeviceOptions = {}): GgmlDevice {
  const llama = loadLlama({ llamaDir: options.llamaDir, device: options.device });
  const gpus = selectDevices(llama, options.device ?? "auto");
  if (gpus.length > 1 && options.device !== undefined && options.device !== "auto") throw new UserError(`--device ${options.device} names ${gpus.length} devices; this work uses one`);
  const device = gpus[0] ?? llama.devices.find((d) => d.type === "cpu");
  if (device === undefined) throw new UserError("there is no device to compute on");
  return new GgmlDevice(llama, device, options.nThreads ?? 1);
}
