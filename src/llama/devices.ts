/** The devices that the loaded ggml backends offer (ggml-backend.h). */
import type { LibraryHandle } from "koffi";
import type { Nullable, Pointer } from "./structs.ts";

export type DeviceType = "cpu" | "gpu" | "igpu" | "accel" | "meta";
const deviceTypes: readonly DeviceType[] = ["cpu", "gpu", "igpu", "accel", "meta"];

export interface Device {
  readonly pointer: Pointer;
  /** ggml's name, as `--device` takes it: CUDA0, Vulkan0, Metal, CPU. */
  readonly name: string;
  readonly description: string;
  readonly type: DeviceType;
}

export interface DeviceMemory {
  readonly freeBytes: number;
  readonly totalBytes: number;
}

export interface DeviceApi {
  ggml_version(): string;
  ggml_backend_load_all_from_path(folder: string): void;
  /** Registers one backend from its file; null when it does not load. */
  ggml_backend_load(file: string): Nullable;
  ggml_backend_dev_count(): number;
  ggml_backend_dev_get(index: number): Pointer;
  ggml_backend_dev_by_name(name: string): Nullable;
  ggml_backend_dev_name(device: Pointer): string;
  ggml_backend_dev_description(device: Pointer): string;
  ggml_backend_dev_type(device: Pointer): number;
  ggml_backend_dev_memory(device: Pointer, free: BigUint64Array, total: BigUint64Array): void;
}

export function bindDevices(base: LibraryHandle, ggml: LibraryHandle): DeviceApi {
  const P = "void *";
  return {
    ggml_version: base.func("ggml_version", "str", []),
    ggml_backend_load_all_from_path: ggml.func("ggml_backend_load_all_from_path", "void", ["str"]),
    ggml_backend_load: ggml.func("ggml_backend_load", P, ["str"]),
    ggml_backend_dev_count: ggml.func("ggml_backend_dev_count", "size_t", []),
    ggml_backend_dev_get: ggml.func("ggml_backend_dev_get", P, ["size_t"]),
    ggml_backend_dev_by_name: ggml.func("ggml_backend_dev_by_name", P, ["str"]),
    ggml_backend_dev_name: base.func("ggml_backend_dev_name", "str", [P]),
    ggml_backend_dev_description: base.func("ggml_backend_dev_description", "str", [P]),
    ggml_backend_dev_type: base.func("ggml_backend_dev_type", "int32_t", [P]),
    ggml_backend_dev_memory: base.func("ggml_backend_dev_memory", "void", [P, P, P]),
  };
}

export function listDevices(api: DeviceApi): Device[] {
  return Array.from({ length: api.ggml_backend_dev_count() }, (_, i) => {
    const pointer = api.ggml_backend_dev_get(i);
    return {
      pointer,
      name: api.ggml_backend_dev_name(pointer),
      description: api.ggml_backend_dev_description(pointer).trim(),
      type: deviceTypes[api.ggml_backend_dev_type(pointer)] ?? "cpu",
    };
  });
}

export function isGpu(device: Device): boolean {
  return device.type === "gpu" || device.type === "igpu";
}

export function deviceMemory(api: DeviceApi, device: Device): DeviceMemory {
  const free = new BigUint64Array(1);
  const total = new BigUint64Array(1);
  api.ggml_backend_dev_memory(device.pointer, free, total);
  return { freeBytes: Number(free[0]), totalBytes: Number(total[0]) };
}
