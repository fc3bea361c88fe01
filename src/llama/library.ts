/**
 * The one loaded llama.cpp of this process. Backends are registered and initialised once; a second folder is refused,
 * since ggml's registry is global.
 *
 * Log lines of the library go nowhere by default: a JavaScript callback would be called from other threads, and one
 * that outlives its worker aborts the process. libc's abs() has a fitting signature and does nothing.
 * FORETOKEN_LLAMA_LOG=1 leaves the library's own logging to stderr on.
 */
import koffi, { type LibraryHandle } from "koffi";
import { UserError, errorMessage } from "../util/errors.ts";
import { checkAbi } from "./abi.ts";
import { bindLlama, type LlamaApi } from "./api.ts";
import { bindDevices, isGpu, listDevices, type Device, type DeviceApi } from "./devices.ts";
import { cudaFallback, findLibraries, type LibraryFiles } from "./library-path.ts";
import type { Pointer } from "./structs.ts";

export interface Llama {
  readonly api: LlamaApi;
  readonly deviceApi: DeviceApi;
  readonly files: LibraryFiles;
  /** libllama's own version, for example "0.5.0-dev". */
  readonly version: string;
  readonly ggmlVersion: string;
  readonly devices: readonly Device[];
  readonly base: LibraryHandle;
  readonly ggml: LibraryHandle;
}

let loaded: Llama | undefined;

/**
 * Loads the library, once a process.
 * @throws {UserError} not found, not loadable, of another version or layout, or another folder than before.
 */
export function loadLlama(options: { llamaDir?: string | undefined; device?: string | undefined } = {}): Llama {
  if (loaded !== undefined && options.llamaDir === undefined) return loaded;
  const files = findLibraries(options.llamaDir, options.device);
  if (loaded !== undefined) {
    if (loaded.files.folder !== files.folder) throw new UserError(`the libraries of ${loaded.files.folder} are loaded already; a process cannot load those of ${files.folder} too`);
    return loaded;
  }
  const base = open(files.base);
  const ggml = open(files.ggml);
  const api = bindLlama(open(files.llama), files.llama);
  checkAbi(api, files.llama);
  const deviceApi = bindDevices(base, ggml);
  resetLog(api);
  deviceApi.ggml_backend_load_all_from_path(files.folder);
  api.llama_backend_init();
  let devices = listDevices(deviceApi);
  const fallback = devices.some(isGpu) ? undefined : cudaFallback(files.folder);
  if (fallback !== undefined && deviceApi.ggml_backend_load(fallback) !== null) devices = listDevices(deviceApi);
  if (!devices.some((device) => device.type === "cpu")) throw new UserError(`${files.folder} has no CPU backend that loads here (libggml-cpu*); use the whole folder of a build for this machine`);
  loaded = { api, deviceApi, files, version: api.llama_version(), ggmlVersion: deviceApi.ggml_version(), devices, base, ggml };
  return loaded;
}

function open(file: string): LibraryHandle {
  try {
    return koffi.load(file);
  } catch (error) {
    throw new UserError(`${file} cannot be loaded (${errorMessage(error).split("\n")[0] ?? ""}); is it built for ${process.platform}-${process.arch}, and are the libraries it needs installed?`, { cause: error });
  }
}

let silentCallback: Pointer | undefined;

/** Nothing, or with FORETOKEN_LLAMA_LOG=1 the library's own logging to stderr. */
function resetLog(api: LlamaApi): void {
  if (process.env["FORETOKEN_LLAMA_LOG"] === "1") {
    api.llama_log_set(null, null);
    return;
  }
  silentCallback ??= koffi.load(process.platform === "win32" ? "msvcrt.dll" : null).symbol("abs") as Pointer;
  api.llama_log_set(silentCallback, null);
}

const logCallbackType = koffi.pointer(koffi.proto("void", ["int32_t", "str", "void *"]));

/**
 * Hands every line the library logs from now on to `onLine`, from whatever thread: only for a process whose event loop
 * is free while native code runs, and for as long as it lives.
 */
export function forwardLog(llama: Llama, onLine: (line: string) => void): void {
  let pending = "";
  const callback = koffi.register((_level: number, piece: string) => {
    const lines = (pending + piece).split("\n");
    pending = lines.pop() ?? "";
    for (const line of lines) onLine(line);
  }, logCallbackType);
  llama.api.llama_log_set(callback, null);
}

/**
 * Runs a call of ours and collects what the library logs meanwhile, on this thread. Only for calls that log from the
 * calling thread (loading a model, making a context); the callback is gone before this returns.
 */
export function captureLog<T>(llama: Llama, call: () => T): { readonly result: T; readonly lines: readonly string[] } {
  let text = "";
  const callback = koffi.register((_level: number, piece: string) => void (text += piece), logCallbackType);
  llama.api.llama_log_set(callback, null);
  try {
    return { result: call(), lines: text.split("\n") };
  } finally {
    resetLog(llama.api);
    koffi.unregister(callback);
  }
}

/** What a failing call logged as its reason: the last line that names an error, without its prefix. */
export function reasonIn(lines: readonly string[]): string {
  const telling = lines.filter((line) => /error|fail|invalid|not |missing|unknown|unsupported|mismatch|wrong|check/i.test(line));
  const line = telling.findLast((l) => !/failed to load model|unable to load model|failed to initialize the context$/.test(l)) ?? telling.at(-1) ?? "";
  return line.replace(/^[\w:~ ]*?: (?=\S)/, "").trim();
}

/**
 * The devices a `--device` value names: "auto" all GPUs there are, "cpu" or "none" none, else names such as "CUDA0,CUDA1".
 * @throws {UserError} with the list of devices.
 */
export function selectDevices(llama: Llama, device: string): readonly Device[] {
  if (device === "auto") {
    // An integrated GPU shares the memory bus with the CPU: used only when there is nothing else, as libllama does.
    const discrete = llama.devices.filter((d) => d.type === "gpu");
    return discrete.length > 0 ? discrete : llama.devices.filter(isGpu);
  }
  if (/^(cpu|none)$/i.test(device)) return [];
  return device.split(",").flatMap((name) => {
    const kind = /^(cuda|vulkan|metal)$/i.test(name);
    const found = llama.devices.filter((d) => isGpu(d) && (kind ? d.name.toLowerCase().startsWith(name.toLowerCase()) : d.name.toLowerCase() === name.toLowerCase()));
    if (found.length > 0) return found;
    const names = llama.devices.map((d) => d.name).join(", ");
    throw new UserError(`--device ${name} is not among the devices of ${llama.files.folder} (${names}); use one of them, or "foretoken doctor" to see what to install`);
  });
}
