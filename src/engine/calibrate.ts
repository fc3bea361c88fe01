/**
 * Measures the cost table by running the engine itself: its own steps on made-up prompts at every draft length and some
 * numbers of sequences. Takes a few seconds on a GPU with a 35B model; run it before the first request.
 */
import { median, quantile } from "../util/stats.ts";
import type { CostTableData } from "./cost-table.ts";
import type { Engine } from "./engine.ts";
import { greedySampling } from "./request.ts";
import type { GenerateRequest } from "./request.ts";

export interface CalibrationOptions {
  readonly nWarmSteps?: number;
  readonly nTimedSteps?: number;
  readonly onProgress?: (done: number, total: number) => void;
  /** Waits for engines that calibrate at the same time, so that the same is measured in all of them at once. */
  readonly meet?: () => void;
  /** Most sequences at once; default: all slots. */
  readonly nMost?: number;
}

/** Powers of two up to the number of slots, and that number. */
export function calibrationSizes(nSlots: number): number[] {
  const sizes: number[] = [];
  for (let n = 1; n < nSlots; n *= 2) sizes.push(n);
  return [...sizes, nSlots];
}

const promptLength = 32;

/** Runs on an idle engine and leaves it idle; the engine's counters and beliefs are cleared afterwards by the caller. */
export function calibrate(engine: Engine, options: CalibrationOptions = {}): CostTableData {
  const { nWarmSteps = 4, nTimedSteps = 8, onProgress, meet, nMost = Infinity } = options;
  // Engines that met do not end in the same moment: the last steps of the slower one are cheap, since it is alone then.
  const nTail = meet === undefined ? 0 : 3;
  const nSeqs = calibrationSizes(Math.min(nMost, nAlike(engine)));
  const { nMax } = engine.info;
  const stepMs: number[][] = [];
  const changes: number[] = [];
  for (const [i, n] of nSeqs.entries()) {
    const row: number[] = [];
    for (let k = 0; k <= nMax; k++) {
      onProgress?.(i * (nMax + 1) + k, nSeqs.length * (nMax + 1));
      meet?.();
      const times = timeSteps(engine, n, k, nWarmSteps + nTimedSteps, nTail);
      // A busy machine only ever adds time, so the lower quartile is nearer to the truth than the middle; company is part of it.
      const steady = quantile(times.slice(nWarmSteps), meet === undefined ? 0.25 : 0.5);
      row.push(steady);
      if (k > 0) changes.push(changePrice(times, steady));
    }
    stepMs.push(row);
  }
  engine.gate.force(undefined);
  const { baseMs, rowMs } = calibratePrefill(engine, meet, nMost);
  return { nSeqs, stepMs, changeMs: Math.max(0, changes.length === 0 ? 0 : median(changes)), moveMs: engine.tier.hasPlain ? engine.tier.msPerMove : 0, prefillBaseMs: baseMs, prefillRowMs: rowMs };
}

/** The price of a change of shape: its step runs without a captured graph, the next one captures it. */
function changePrice(times: readonly number[], steadyMs: number): number {
  return times.slice(0, 2).reduce((sum, ms) => sum + ms - steadyMs, 0);
}

/** That price where no cost table is made: two sequences (or one) at the engine's own draft length. */
export function calibrateChange(engine: Engine): number {
  const nSteps = 6;
  const prices = [1, 2].map((n) => {
    const times = timeSteps(engine, Math.min(n, nAlike(engine)), engine.info.nMax, nSteps);
    return changePrice(times, median(times.slice(2)));
  });
  engine.gate.force(undefined);
  return Math.max(0, median(prices.filter(Number.isFinite)));
}

/** Times of `nSteps` decode steps of n sequences at draft length k; `nTail` more are made and not timed. */
function timeSteps(engine: Engine, n: number, k: number, nSteps: number, nTail = 0): number[] {
  engine.gate.force(k);
  startSequences(engine, n, Math.min(promptLength, Math.max(1, Math.floor(engine.info.nCtxSeq / 4))));
  while (engine.slots.inPhase("prefill").length > 0 || engine.slots.nQueued > 0) engine.step();
  const times: number[] = [];
  for (let i = 0; i < nSteps + nTail && engine.slots.inPhase("decode").length === n; i++) {
    engine.step();
    if (i < nSteps) times.push(engine.meter.costMs);
  }
  engine.tier.measureMove(engine.slots.running);
  stopSequences(engine);
  return times.length > 0 ? times : [NaN];
}

/** Prefill time of a forward as baseMs + rowMs * rows: one prompt against several, the median of three. */
export function calibratePrefill(engine: Engine, meet: () => void = () => {}, nMost = Infinity): { baseMs: number; rowMs: number } {
  const length = Math.min(96, Math.max(1, engine.info.nCtxSeq - 2));
  const nMany = Math.min(4, nMost, nAlike(engine));
  const time = (n: number): number =>
    median(
      [0, 1, 2].map(() => {
        meet();
        startSequences(engine, n, length);
        let total = 0;
        do {
          const { nSteps } = engine.totals;
          engine.step();
          // A step that waits for company decodes nothing.
          if (engine.totals.nSteps > nSteps) total += engine.meter.costMs;
        } while (engine.slots.inPhase("prefill").length + engine.slots.nQueued > 0);
        stopSequences(engine);
        return total;
      }),
    );
  time(1);
  const one = time(1);
  if (nMany === 1) return { baseMs: 0, rowMs: one / length };
  const rowMs = Math.max(1e-6, (time(nMany) - one) / ((nMany - 1) * length));
  return { baseMs: Math.max(0, one - rowMs * length), rowMs };
}

/** Slots that sample like the first one: the kind that plain requests get. */
function nAlike(engine: Engine): number {
  const { sequences } = engine.slots;
  return sequences.filter((s) => s.sampling === sequences[0]?.sampling).length;
}

function startSequences(engine: Engine, n: number, length: number): void {
  for (let i = 0; i < n; i++) engine.submit(calibrationRequest(-1 - i, length, engine.info.nVocab));
}

function stopSequences(engine: Engine): void {
  for (const seq of engine.slots.sequences) if (seq.request !== undefined) engine.cancel(seq.request.id);
  while (engine.step()) continue;
}

/** Ids below 0 belong to calibration: the caller's sink drops their events. */
function calibrationRequest(id: number, length: number, nVocab: number): GenerateRequest {
  return {
    id,
    // Ordinary text tokens: special ones sit at the ends of a vocabulary.
    prompt: Int32Array.from({ length }, (_, i) => 300 % nVocab + ((i * 7919 - id * 104729) % Math.max(1, Math.floor(nVocab / 2) - 300))).map((t) => Math.abs(t) % nVocab),
    maxTokens: 1 << 20,
    sampling: greedySampling,
    stop: [],
    ignoreEos: true,
    nLogprobs: undefined,
    grammar: undefined,
    nMax: undefined,
    cachePrompt: false,
  };
}
