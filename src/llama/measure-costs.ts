/** What an engine's steps cost on this device, measured once and kept in the user's cache folder. */
import { createHash } from "node:crypto";
import * as fs from "node:fs";
import * as os from "node:os";
import * as path from "node:path";
import type { EngineOptions } from "../config/engine-options.ts";
import { calibrate, calibrateChange, calibratePrefill } from "../engine/calibrate.ts";
import { CostTable, type CostTableData } from "../engine/cost-table.ts";
import type { Engine } from "../engine/engine.ts";
import type { LlamaBackend } from "./backend.ts";
import { isVocabFile } from "./draft-vocab.ts";
import type { OpenEngineHooks } from "./open-engine.ts";

type Hooks = Pick<OpenEngineHooks, "progress" | "cacheDir" | "group">;

/**
 * Gives the engine's parts the costs they decide by. Several groups measure twice: the first one alone, for all of them,
 * then all of them at once, the same steps at the same time.
 */
export function measureCosts(engine: Engine, backend: LlamaBackend, options: EngineOptions, hooks: Hooks & { readonly isAdaptive: boolean; readonly hasGpu: boolean }): void {
  const { group } = hooks;
  const byOne = <T>(make: () => T): T => (group === undefined ? make() : group.barrier.fromFirst(make));
  const { nMax } = engine.info;
  if (!hooks.isAdaptive) {
    const { prefillCost, changeMs } = byOne(() => ({ prefillCost: calibratePrefill(engine), changeMs: calibrateChange(engine) }));
    engine.planner.prefillCost = prefillCost;
    engine.shape.changeMs = changeMs;
    return;
  }
  const onProgress = (done: number, total: number): void => hooks.progress?.(done / total, "calibration");
  const file = costTableFile(options, backend, hooks, false);
  const alone = byOne(() => readTable(file, nMax) ?? keepTable(file, calibrate(engine, { onProgress }), nMax));
  let crowded = alone;
  if (group !== undefined) {
    const crowdedFile = costTableFile(options, backend, hooks, true);
    const kept = byOne(() => readTable(crowdedFile, nMax) ?? null);
    const measured = kept ?? calibrate(engine, { onProgress, nMost: group.nLeastSlots, meet: () => group.barrier.meet() });
    crowded = byOne(() => (kept === null ? keepTable(crowdedFile, measured, nMax) : measured));
  }
  // Groups that learned apart would choose apart, and each then pays for the other's choice.
  const values = group?.barrier.values;
  const table = (data: CostTableData, half: number): CostTable => new CostTable(data, values === undefined ? {} : { memory: values.subarray((half * values.length) / 2, ((half + 1) * values.length) / 2) });
  engine.gate.useTable(table(alone, 0), table(crowded, 1));
  // A CPU's prefill time is proportional to its rows, whatever noise says: waiting to read prompts together gains nothing there.
  engine.planner.prefillCost = { baseMs: hooks.hasGpu ? alone.prefillBaseMs : 0, rowMs: alone.prefillRowMs };
  engine.tier.msPerMove = alone.moveMs;
  engine.shape.changeMs = alone.changeMs;
}

/** One file per model, heads, device, library and every option that changes what a step costs. */
function costTableFile(options: EngineOptions, backend: LlamaBackend, { cacheDir, group }: Hooks, isCrowded: boolean): string {
  const vocabFile = isVocabFile(options.specDraftVocab) ? [options.specDraftVocab] : [];
  const identity = [options.model, ...options.specDraftModel, ...vocabFile].map((file) => {
    const { size, mtimeMs } = fs.statSync(file);
    return [path.resolve(file), size, mtimeMs];
  });
  const { device, library } = backend.description;
  // Everything that could change a step's time; what surely does not is left out.
  const { seed: _seed, trace: _trace, cacheRam: _ram, cachePrompt: _cache, prefillWaitMs: _wait, specGate: _gate, llamaDir: _dir, ...rest } = options;
  const key = JSON.stringify({ version: 12, identity, device, library, nGroups: group?.nGroups ?? 1, nLeastSlots: group?.nLeastSlots, isCrowded, ...rest });
  const folder = cacheDir ?? path.join(process.env["XDG_CACHE_HOME"] ?? path.join(os.homedir(), ".cache"), "foretoken", "cost");
  return path.join(folder, `${createHash("sha256").update(key).digest("hex").slice(0, 24)}.json`);
}

/** The table kept in `file`; undefined: none that can be used. */
function readTable(file: string, nMax: number): CostTableData | undefined {
  try {
    const data = JSON.parse(fs.readFileSync(file, "utf8")) as CostTableData;
    return isTable(data, nMax) ? data : undefined;
  } catch {
    return undefined;
  }
}

/** A file that cannot be written costs a calibration at the next start, nothing else. */
function keepTable(file: string, data: CostTableData, nMax: number): CostTableData {
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
