/**
 * Host memory that states pass through on their way from one context to another. Where a GPU's driver can lock its pages,
 * copies run at the speed of the bus; pageable memory goes through a bounce buffer of the driver, several times slower.
 */
import koffi from "koffi";
import { isGpu, type Device } from "./devices.ts";
import type { Llama } from "./library.ts";
import type { Nullable, Pointer } from "./structs.ts";

interface BufferApi {
  /** The type of a device's page-locked host memory; null where it has none. */
  ggml_backend_dev_host_buffer_type(device: Pointer): Nullable;
  ggml_backend_buft_alloc_buffer(type: Pointer, size: number): Nullable;
  ggml_backend_buffer_get_base(buffer: Pointer): Pointer;
  ggml_backend_buffer_free(buffer: Pointer): void;
}

function bindBuffers({ base }: Llama): BufferApi {
  const P = "void *";
  return {
    ggml_backend_dev_host_buffer_type: base.func("ggml_backend_dev_host_buffer_type", P, [P]),
    ggml_backend_buft_alloc_buffer: base.func("ggml_backend_buft_alloc_buffer", P, [P, "size_t"]),
    ggml_backend_buffer_get_base: base.func("ggml_backend_buffer_get_base", P, [P]),
    ggml_backend_buffer_free: base.func("ggml_backend_buffer_free", "void", [P]),
  };
}

/** One block of such memory, which grows. Owner of the native buffer. */
export class Staging implements Disposable {
  readonly #api: BufferApi;
  readonly #type: Nullable;
  #buffer: Nullable = null;
  #bytes = new Uint8Array();

  /** @param type a ggml buffer type in host memory; default: page-locked memory of the first GPU, if there is one */
  constructor(llama: Llama, devices: readonly Device[], type?: Pointer) {
    this.#api = bindBuffers(llama);
    const gpu = devices.find(isGpu);
    this.#type = type ?? (gpu === undefined ? null : this.#api.ggml_backend_dev_host_buffer_type(gpu.pointer));
  }

  /** At least `nBytes`; what an earlier call gave is no longer good. Where page-locked memory is refused, it is pageable. */
  atLeast(nBytes: number): Uint8Array {
    if (this.#bytes.length >= nBytes) return this.#bytes;
    this.close();
    const size = Math.ceil(nBytes * 1.25);
    if (this.#type !== null) this.#buffer = this.#api.ggml_backend_buft_alloc_buffer(this.#type, size);
    this.#bytes = this.#buffer === null ? new Uint8Array(size) : new Uint8Array(koffi.view(this.#api.ggml_backend_buffer_get_base(this.#buffer), size));
    return this.#bytes;
  }

  close(): void {
    this.#bytes = new Uint8Array();
    if (this.#buffer !== null) this.#api.ggml_backend_buffer_free(this.#buffer);
    this.#buffer = null;
  }

  [Symbol.dispose](): void {
    this.close();
  }
}
