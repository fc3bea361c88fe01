/** An engine on libllama from one option set: load, make contexts, calibrate the gate. */
import { createHash } from "node:crypto";
import * as fs from "node:fs";
import * as os from "node:os";
import * as path from "node:path";
import type { EngineOptions } from "../config/engine-options.ts";
import type { SlotSampling } from "../engine/backend.ts";
import { calibrate, calibrateChange, calibratePrefill } from "../engine/calibrate.ts";
import { defaultEngineConfig, type EngineConfig } from "../engine/config.ts";
import { CostTable, type CostTableData } from "../engine/cost-table.ts";
import type { Drafter } from "../engine/drafters/drafter.ts";
import { OracleDrafter, type OracleRecord } from "../engine/drafters/oracle.ts";
import { Engine } from "../engine/engine.ts";
import type { EventSink } from "../engine/loop.ts";
import type { TraceSink } from "../engine/trace.ts";
import { UserError, errorMessage } from "../util/errors.ts";
import { createBackend, type LlamaBackend } from "./backend.ts";
import { deviceMemory, isGpu, type Device } from "./devices.ts";
import { loadLlama, selectDevices } from "./library.ts";
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
  const isSpeculative = options.specType === "draft-mtp" && options.specDraftNMax > 0;
  const backend = createBackend({
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
    targetSampling: slotSampling(options.sampling, gpus.length > 0, "device-top-k"),
    draftSampling: slotSampling(options.specDraftSampling, gpus.length > 0, options.specDraftTemp > 0 || options.specDraftPMin > 0 ? "device-top-k" : "device-greedy"),
    nHostSlots: options.hostSlots ?? (slotSampling(options.sampling, gpus.length > 0, "device-top-k") === "host" ? 0 : 1),
    graphReuse: options.graphReuse,
    batchedArgmax: options.batchedArgmax,
    nPinnedCells: options.kvPin ?? (gpus.length > 0 ? Math.min(8192, Math.floor(options.ctxSize / 2)) : 0),
    llamaDir: options.llamaDir,
    ...(hooks.targetEvalCallback === undefined ? {} : { targetEvalCallback: hooks.targetEvalCallback }),
    onProgress: (ratio) => {
      hooks.progress?.(ratio, "model");
      return true;
    },
  });
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
    ...(backend.description.isAsynchronous ? {} : { costClock: () => processorMs(backend.nThreads) }),
    loadMs: performance.now() - startMs,
    loadedBytes: Math.max(0, used() - before),
    memory: memoryNow(gpus.length > 0 ? used : undefined),
  });
  const isAdaptive = engine.info.nMax > 0 && options.specGate === "adaptive";
  if (isAdaptive || gpus.length > 0) {
    isCalibrating = true;
    if (isAdaptive) {
      const data = keptTable(costTableFile(options, backend, hooks.cacheDir), engine.info.nMax, () => calibrate(engine, { onProgress: (done, total) => hooks.progress?.(done / total, "calibration") }));
      engine.gate.useTable(new CostTable(data));
      // A CPU's prefill time is proportional to its rows, whatever noise says: waiting to read prompts together gains nothing there.
      engine.planner.prefillCost = { baseMs: gpus.length > 0 ? data.prefillBaseMs : 0, rowMs: data.prefillRowMs };
      engine.tier.msPerMove = data.moveMs;
      engine.shape.changeMs = data.changeMs;
    } else {
      engine.planner.prefillCost = calibratePrefill(engine);
      engine.shape.changeMs = calibrateChange(engine);
    }
    isCalibrating = false;
    engine.resetTotals();
  }
  return { engine, backend };
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

/** One file per model, heads, device, library and every option that changes what a step costs. */
function costTableFile(options: EngineOptions, backend: LlamaBackend, cacheDir?: string): string {
  const identity = [options.model, ...options.specDraftModel].map((file) => {
    const { size, mtimeMs } = fs.statSync(file);
    return [path.resolve(file), size, mtimeMs];
  });
  const { device, library } = backend.description;
  // Everything that could change a step's time; what surely does not is left out.
  const { seed: _seed, trace: _trace, cacheRam: _ram, cachePrompt: _cache, prefillWaitMs: _wait, specGate: _gate, llamaDir: _dir, ...rest } = options;
  const key = JSON.stringify({ version: 6, identity, device, library, ...rest });
  const folder = cacheDir ?? path.join(process.env["XDG_CACHE_HOME"] ?? path.join(os.homedir(), ".cache"), "foretoken", "cost");
  return path.join(folder, `${createHash("sha256").update(key).digest("hex").slice(0, 24)}.json`);
}

/** The table kept in `file`, else a new one, which is kept. A file that cannot be read or written costs a calibration, nothing else. */
function keptTable(file: string, nMax: number, measure: () => CostTableData): CostTableData {
  try {
    const data = JSON.parse(fs.readFileSync(file, "utf8")) as CostTableData;
    if (isTable(data, nMax)) return data;
  } catch {
    // Measured below.
  }
  const data = measure();
  if (!isTable(data, nMax)) return data;
  try {
    fs.mkdirSync(path.dirname(file), { recursive: true });
    fs.writeFileSync(`${file}.${process.pid}`, JSON.stringify(data));
    fs.renameSync(`${file}.${process.pid}`, file);
  } catch {
    // Measured again next time.
  }
  return data;
}

function isTable({ stepMs, moveMs }: CostTableData, nMax: number): boolean {
  return Number.isFinite(moveMs) && stepMs.every((row) => row.length === nMax + 1 && row.every((ms) => ms > 0));
}
