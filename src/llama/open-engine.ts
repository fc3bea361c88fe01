/** An engine on libllama from one option set: load, make contexts, measure what steps cost. */
import * as fs from "node:fs";
import type { EngineOptions } from "../config/engine-options.ts";
import type { SlotSampling } from "../engine/backend.ts";
import { defaultEngineConfig, type EngineConfig } from "../engine/config.ts";
import type { Drafter } from "../engine/drafters/drafter.ts";
import { OracleDrafter, type OracleRecord } from "../engine/drafters/oracle.ts";
import { Engine } from "../engine/engine.ts";
import type { EventSink } from "../engine/loop.ts";
import type { TraceSink } from "../engine/trace.ts";
import { UserError, errorMessage } from "../util/errors.ts";
import type { Barrier } from "../util/barrier.ts";
import { createBackend, loadModels, type BackendOptions, type LlamaBackend, type SharedModels } from "./backend.ts";
import { freeShared } from "./device-matrix.ts";
import { measureCosts } from "./measure-costs.ts";
import { deviceMemory, isGpu, type Device } from "./devices.ts";
import { draftVocabOf } from "./draft-vocab.ts";
import { automaticEdits } from "./graph-edits.ts";
import { loadLlama, selectDevices } from "./library.ts";
import type { Model } from "./model.ts";
import { sharedMatrixMemory, SharedMatrices } from "./shared-matrices.ts";
import type { Pointer } from "./structs.ts";

export interface OpenEngineHooks {
  readonly sink: EventSink;
  readonly progress?: (fraction: number, what: string) => void;
  readonly trace?: TraceSink;
  readonly maxQueue?: number;
  /** Drafts from something else than a head in a file. */
  readonly drafter?: Drafter;
  /** Folder of kept cost tables; undefined: the user's cache folder. */
  readonly cacheDir?: string;
  /** Of the target's contexts. It slows every step, so the gate must be fixed: costs measured with it would be kept. */
  readonly targetEvalCallback?: Pointer;
  /** This engine is one of several, each in a thread of its own, on models that are loaded already. */
  readonly group?: EngineGroup;
}

export interface EngineGroup {
  readonly nGroups: number;
  /** Slots of the smallest group: what all of them can measure at once. */
  readonly nLeastSlots: number;
  readonly models: SharedModels;
  readonly barrier: Barrier;
}

export interface OpenEngine {
  readonly engine: Engine;
  readonly backend: LlamaBackend;
}

/** @throws {UserError} for files, devices or sizes that do not work. */
export function openEngine(options: EngineOptions, hooks: OpenEngineHooks): OpenEngine {
  const startMs = performance.now();
  const llama = loadLlama({ llamaDir: options.llamaDir, device: options.device });
  const gpus = options.gpuLayers > 0 ? selectDevices(llama, options.device ?? "auto") : [];
  const used = (): number => usedBytes(llama.deviceApi, gpus);
  const before = used();
  const make = (): LlamaBackend => createBackend(backendOptions(options, hooks, gpus));
  const backend = hooks.group === undefined ? make() : hooks.group.barrier.inTurn(make);
  // Asked for by nobody, they are left out where they cannot be had.
  if (options.graphEdits !== "auto" && backend.editProblem !== undefined) {
    backend.close();
    throw new UserError(`--graph-edits ${options.graphEdits.join(",")}: ${backend.editProblem}; give --graph-edits none`);
  }
  const drafter = hooks.drafter ?? (options.specOracle === undefined ? undefined : readOracle(options.specOracle, options, backend));
  let isCalibrating = false;
  const engine = new Engine({
    backend,
    config: engineConfig(options, backend.description.isAsynchronous, hooks.maxQueue),
    sink: (events) => {
      if (!isCalibrating) hooks.sink(events);
    },
    ...(hooks.trace === undefined ? {} : { trace: (record) => void (isCalibrating || hooks.trace?.(record)) }),
    ...(drafter === undefined ? {} : { drafter }),
    // The processor time of a process with several groups is not that of one of them.
    ...(backend.description.isAsynchronous || hooks.group !== undefined ? {} : { costClock: () => processorMs(backend.nThreads) }),
    ...(hooks.group === undefined ? {} : { crowd: hooks.group.barrier }),
    loadMs: performance.now() - startMs,
    loadedBytes: Math.max(0, used() - before),
    memory: memoryNow(gpus.length > 0 ? used : undefined),
  });
  const isAdaptive = engine.info.nMax > 0 && options.specGate === "adaptive";
  if (isAdaptive || gpus.length > 0) {
    isCalibrating = true;
    measureCosts(engine, backend, options, { ...hooks, isAdaptive, hasGpu: gpus.length > 0 });
    isCalibrating = false;
    engine.resetTotals();
  }
  return { engine, backend };
}

function backendOptions(options: EngineOptions, hooks: Pick<OpenEngineHooks, "progress" | "drafter" | "targetEvalCallback" | "group">, gpus: readonly Device[]): BackendOptions {
  const hasGpu = gpus.length > 0;
  const isSpeculative = options.specType === "draft-mtp" && options.specDraftNMax > 0;
  return {
    modelPath: options.model,
    headPaths: isSpeculative && options.specOracle === undefined ? options.specDraftModel : [],
    useHead: isSpeculative && hooks.drafter === undefined && options.specOracle === undefined,
    nSlots: options.parallel,
    ctxSize: options.ctxSize,
    batchSize: options.batchSize,
    ubatchSize: options.ubatchSize,
    threads: options.threads,
    gpuLayers: options.gpuLayers,
    ...(options.device === undefined ? {} : { device: options.device }),
    headDevice: options.specDraftDevice,
    flashAttn: options.flashAttn,
    cacheTypeK: options.cacheTypeK,
    cacheTypeV: options.cacheTypeV,
    // Exact verification needs attention that does not see other sequences' cells.
    kvUnified: options.kvUnified,
    nMax: isSpeculative ? options.specDraftNMax : 0,
    plainTarget: isSpeculative && options.specGate === "adaptive" && options.specPlainContext,
    targetSampling: slotSampling(options.sampling, hasGpu, "device-top-k"),
    // Only a chain can leave logits out.
    draftSampling: slotSampling(options.specDraftSampling, hasGpu || options.specDraftVocab !== "0", options.specDraftTemp > 0 || options.specDraftPMin > 0 ? "device-top-k" : "device-greedy"),
    draftVocab: draftVocabOf(options.specDraftVocab),
    nHostSlots: options.hostSlots ?? (slotSampling(options.sampling, hasGpu, "device-top-k") === "host" ? 0 : 1),
    graphReuse: options.graphReuse,
    batchedArgmax: options.batchedArgmax,
    argmaxParts: options.argmaxParts,
    graphEdits: options.graphEdits === "auto" ? automaticEdits(gpus) : options.graphEdits,
    nPinnedCells: options.kvPin ?? (hasGpu ? Math.min(8192, Math.floor(options.ctxSize / 2)) : 0),
    llamaDir: options.llamaDir,
    ...(hooks.group === undefined ? {} : { shared: hooks.group.models }),
    ...(hooks.targetEvalCallback === undefined ? {} : { targetEvalCallback: hooks.targetEvalCallback }),
    onProgress: (ratio) => {
      hooks.progress?.(ratio, "model");
      return true;
    },
  };
}

/** Loads what several engines of one process share. The caller frees it, and what they have made for each other, after they are closed. */
export function loadShared(options: EngineOptions, progress: (fraction: number, what: string) => void): { readonly models: SharedModels; readonly loadedBytes: () => number; close(): void } {
  const llama = loadLlama({ llamaDir: options.llamaDir, device: options.device });
  const gpus = options.gpuLayers > 0 ? selectDevices(llama, options.device ?? "auto") : [];
  const before = usedBytes(llama.deviceApi, gpus);
  const open: Model[] = [];
  const { model, headModels } = loadModels(backendOptions(options, { progress }, gpus), (loaded) => (open.push(loaded), loaded));
  const matrices = sharedMatrixMemory();
  return {
    models: { model: model.pointer, heads: headModels.map((head) => head.pointer), matrices },
    loadedBytes: () => usedBytes(llama.deviceApi, gpus) - before,
    close: () => {
      freeShared(llama, new SharedMatrices(matrices));
      for (const loaded of open.toReversed()) loaded.close();
    },
  };
}

/** Processor time of this process for each of its compute threads. */
function processorMs(nThreads: number): number {
  const { user, system } = process.cpuUsage();
  return (user + system) / 1000 / nThreads;
}

/** Recorded outputs, a JSON line each: {"prompt": [ids], "output": [ids]}, as `foretoken trace --record` writes them. */
function readOracle(file: string, options: EngineOptions, backend: LlamaBackend): OracleDrafter {
  const records: OracleRecord[] = [];
  for (const [i, line] of fs.readFileSync(file, "utf8").split("\n").entries()) {
    if (line.trim() === "") continue;
    try {
      const { prompt, output } = JSON.parse(line) as OracleRecord;
      if (![prompt, output].every((ids) => Array.isArray(ids) && ids.every(Number.isInteger))) throw new Error("prompt and output must be token ids");
      records.push({ prompt, output });
    } catch (error) {
      throw new UserError(`--spec-oracle ${file}, line ${i + 1}: ${errorMessage(error)}; record it with foretoken trace --record`);
    }
  }
  return new OracleDrafter(records, options.specOracleRate, backend.target.nVocab, options.seed + 1);
}

/** A driver may take milliseconds to tell its free memory, and a snapshot is taken ten times a second. */
const memoryAgeMs = 5000;

function memoryNow(deviceUsed: (() => number) | undefined): () => { rssBytes: number; deviceUsedBytes: number | undefined } {
  let deviceUsedBytes = deviceUsed?.();
  let atMs = performance.now();
  return () => {
    const now = performance.now();
    if (now - atMs > memoryAgeMs) {
      deviceUsedBytes = deviceUsed?.();
      atMs = now;
    }
    return { rssBytes: process.memoryUsage.rss(), deviceUsedBytes };
  };
}

function engineConfig(options: EngineOptions, isAsynchronous: boolean, maxQueue = defaultEngineConfig.maxQueue): EngineConfig {
  return {
    ...defaultEngineConfig,
    nMax: options.specType === "none" ? 0 : options.specDraftNMax,
    nMin: options.specDraftNMin,
    pMin: options.specDraftPMin,
    draftTopK: options.specDraftTopK,
    draftTopP: options.specDraftTopP,
    draftTemperature: options.specDraftTemp,
    gate: options.specGate,
    verify: options.specVerify,
    catchup: options.specCatchup,
    pad: options.specDraftPad,
    decodeLast: isAsynchronous && options.decodeLast,
    holdShape: isAsynchronous && options.holdShape,
    syntheticRates: options.specSynthRates,
    maxQueue,
    prefillWaitMs: options.prefillWaitMs,
    cachePrompt: options.cachePrompt || options.cacheRam > 0,
    cacheRamBytes: options.cacheRam * 2 ** 20,
    seed: options.seed === 0 ? 1 : options.seed,
  };
}

/** On a GPU logits stay there (one row of a large vocabulary costs a millisecond on the host); on a CPU a chain only costs. */
function slotSampling(option: EngineOptions["sampling"], hasGpu: boolean, automatic: SlotSampling): SlotSampling {
  switch (option) {
    case "auto":
      return hasGpu ? automatic : "host";
    case "device":
      return "device-top-k";
    case "device-greedy":
    case "host":
      return option;
    default:
      return option satisfies never;
  }
}

function usedBytes(api: Parameters<typeof deviceMemory>[0], gpus: readonly Device[]): number {
  if (gpus.filter(isGpu).length === 0) return process.memoryUsage.rss();
  return gpus.reduce((sum, gpu) => {
    const { totalBytes, freeBytes } = deviceMemory(api, gpu);
    return sum + totalBytes - freeBytes;
  }, 0);
}
