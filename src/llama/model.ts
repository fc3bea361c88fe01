/** A loaded model: weights, or the vocabulary alone. Owns the native model; contexts must be closed before it. */
import koffi from "koffi";
import { UserError } from "../util/errors.ts";
import { statFile } from "../util/files.ts";
import { readModelFacts, type ModelFacts } from "./head-check.ts";
import { captureLog, reasonIn, selectDevices, type Llama } from "./library.ts";
import { isGpu, type Device } from "./devices.ts";
import { modelDefaults } from "./struct-defaults.ts";
import type { ModelParams, Pointer } from "./structs.ts";

export interface ModelOptions {
  /** "auto", "cpu", or names of devices separated by commas. */
  readonly device?: string;
  /** Layers on the device; -1 all. */
  readonly gpuLayers?: number;
  /** Load the MTP layers of the file. */
  readonly loadMtp?: boolean;
  readonly vocabOnly?: boolean;
  /** The header's facts when the caller has read them. */
  readonly facts?: ModelFacts;
  /** Read the header and plan the memory, allocate and read nothing. */
  readonly noAlloc?: boolean;
  /** Repack weights for the CPU kernels; off gives bitwise equal rows at every batch width for more types. */
  readonly useExtraBuffers?: boolean;
  /** Called with 0 to 1 while weights are read; return false to stop. */
  readonly onProgress?: (ratio: number) => boolean;
  /** A model that another thread of this process has loaded and will free. */
  readonly shared?: Pointer;
}

export class Model implements Disposable {
  readonly llama: Llama;
  readonly path: string;
  readonly devices: readonly Device[];
  /** MTP layers are there and loaded: without them an MTP context aborts the process. */
  readonly hasMtp: boolean;
  /** Layers that decode are there: without them a default context crashes the process. */
  readonly hasTrunk: boolean;
  readonly isVocabOnly: boolean;
  readonly #isShared: boolean;
  #pointer: Pointer | undefined;
  #nContexts = 0;

  constructor(llama: Llama, path: string, pointer: Pointer, options: ModelOptions, devices: readonly Device[]) {
    this.llama = llama;
    this.path = path;
    this.#pointer = pointer;
    this.#isShared = options.shared !== undefined;
    this.devices = devices;
    this.isVocabOnly = options.vocabOnly ?? false;
    this.hasMtp = (options.loadMtp ?? false) && (options.facts?.nMtpPresent ?? 0) > 0 && llama.api.llama_model_n_layer_nextn(pointer) > 0;
    this.hasTrunk = options.facts?.hasTrunk ?? false;
  }

  /** The native model. @throws after close. */
  get pointer(): Pointer {
    if (this.#pointer === undefined) throw new Error(`the model ${this.path} is closed`);
    return this.#pointer;
  }

  get vocabPointer(): Pointer {
    return this.llama.api.llama_model_get_vocab(this.pointer);
  }

  get nVocab(): number {
    return this.llama.api.llama_vocab_n_tokens(this.vocabPointer);
  }

  /** Width of a hidden row. */
  get nEmbd(): number {
    return this.llama.api.llama_model_n_embd_out(this.pointer);
  }

  get nCtxTrain(): number {
    return this.llama.api.llama_model_n_ctx_train(this.pointer);
  }

  /** True when part of the state is not a KV cache, so that a sequence cannot be cut anywhere. */
  get isRecurrent(): boolean {
    return this.llama.api.llama_model_is_recurrent(this.pointer) || this.llama.api.llama_model_is_hybrid(this.pointer);
  }

  /** True when decode returns before the device is done. */
  get isAsynchronous(): boolean {
    return this.devices.some(isGpu);
  }

  chatTemplate(): string | undefined {
    return this.llama.api.llama_model_chat_template(this.pointer, null) ?? undefined;
  }

  /** A scalar metadata value as text. */
  metadata(key: string): string | undefined {
    const buffer = Buffer.alloc(4096);
    const n = this.llama.api.llama_model_meta_val_str(this.pointer, key, buffer, buffer.length);
    return n < 0 ? undefined : buffer.toString("utf8", 0, Math.min(n, buffer.length - 1));
  }

  /** Contexts hold on to the model, so that it is not freed under them. */
  retain(): () => void {
    this.#nContexts++;
    let isHeld = true;
    return () => {
      if (isHeld) this.#nContexts--;
      isHeld = false;
    };
  }

  close(): void {
    if (this.#pointer === undefined) return;
    if (this.#nContexts > 0) throw new Error(`the model ${this.path} still has ${this.#nContexts} open contexts; close them first`);
    if (!this.#isShared) this.llama.api.llama_model_free(this.#pointer);
    this.#pointer = undefined;
  }

  [Symbol.dispose](): void {
    this.close();
  }
}

/** @throws {UserError} when the file is missing or libllama refuses it, with libllama's reason. */
export function loadModel(llama: Llama, path: string, options: ModelOptions = {}): Model {
  statFile(path, "model");
  const facts = options.vocabOnly === true ? undefined : (options.facts ?? readModelFacts(path));
  const devices = options.vocabOnly === true ? [] : selectDevices(llama, options.device ?? "auto");
  if (options.shared !== undefined) return new Model(llama, path, options.shared, facts === undefined ? options : { ...options, facts }, devices);
  const deviceList = BigUint64Array.from([...devices.map((d) => d.pointer), 0n]);
  const progressType = koffi.pointer(koffi.proto("bool", ["float", "void *"]));
  const { onProgress } = options;
  const callback = onProgress === undefined ? undefined : koffi.register((ratio: number) => onProgress(ratio), progressType);
  const params: ModelParams = {
    ...modelDefaults,
    devices: deviceList,
    n_gpu_layers: devices.length === 0 ? 0 : (options.gpuLayers ?? -1),
    vocab_only: options.vocabOnly ?? false,
    no_alloc: options.noAlloc ?? false,
    // Mapping a file that is not to be read is an assertion in libllama.
    load_mode: options.noAlloc === true ? 0 : modelDefaults.load_mode,
    load_mtp: options.loadMtp ?? false,
    use_extra_bufts: options.useExtraBuffers ?? true,
    progress_callback: callback ?? null,
  };
  try {
    const pointer = llama.api.llama_model_load_from_file(path, params) ?? loadAgainForReason(llama, path, params);
    return new Model(llama, path, pointer, facts === undefined ? options : { ...options, facts }, devices);
  } finally {
    if (callback !== undefined) koffi.unregister(callback);
  }
}

/** Failing is rare and its reason is only in the log: the second attempt listens. */
function loadAgainForReason(llama: Llama, path: string, params: ModelParams): Pointer {
  const { result, lines } = captureLog(llama, () => llama.api.llama_model_load_from_file(path, { ...params, progress_callback: null }));
  if (result !== null) return result;
  throw new UserError(`libllama ${llama.version} cannot load ${path}: ${reasonIn(lines) || "no reason given"}; "foretoken inspect" shows what the file holds`);
}
