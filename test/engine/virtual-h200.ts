/**
 * The engine on a virtual clock: the scripted backend, whose decodes take the time that one H200 was measured to take
 * with the 35B shape (16 slots, 2026-11-29). Closed-loop clients on the same clock. No real time passes, so throughput
 * and latency are exact and repeatable.
 */
import type { EngineConfig } from "../../src/engine/config.ts";
import { CostTable, type CostTableData } from "../../src/engine/cost-table.ts";
import type { DecodeContext } from "../../src/engine/backend.ts";
import type { EngineEvent } from "../../src/engine/request.ts";
import type { TraceSink } from "../../src/engine/trace.ts";
import { Rng } from "../../src/util/rng.ts";
import { request } from "../request.ts";
import { harness, type Harness } from "./run.ts";

const sizes = [1, 4, 8, 16];
/** Target decode, ms: [sequences][rows each - 1]. */
const targetMs = [
  [4.6, 5.2, 6.0, 7.8],
  [7.9, 11.4, 16.1, 17.8],
  [10.9, 18.7, 24.4, 29.2],
  [18.4, 31.3, 40.4, 49.6],
];
/** Draft decode, ms: [sequences] at 1 row and at 3 rows. */
const draftMs = [
  [0.76, 0.82],
  [1.15, 1.41],
  [1.71, 2.05],
  [2.34, 2.9],
];
/** Prefill by rows of one forward, ms (2026-11-30, graph built anew each time); below 145 rows as a decode of that many rows. */
const prefillMs: readonly (readonly [rows: number, ms: number])[] = [
  [1, 4.6],
  [4, 8],
  [8, 11],
  [16, 18.4],
  [32, 31],
  [64, 42],
  [145, 53],
  [290, 72],
  [580, 100],
  [1740, 184],
  [2175, 210],
];

export const h200Table: CostTableData = {
  nSeqs: sizes,
  stepMs: sizes.map((_, i) => [0, 1, 2, 3].map((k) => (targetMs[i]?.[k] as number) + (k === 0 ? 0 : (draftMs[i]?.[1] as number) + (k - 1) * (draftMs[i]?.[0] as number)))),
  changeMs: 2,
  moveMs: 15,
  prefillBaseMs: 42,
  prefillRowMs: 0.078,
};

function along(points: readonly (readonly [number, number])[], x: number): number {
  let i = 0;
  while (i + 2 < points.length && x > (points[i + 1] as readonly [number, number])[0]) i++;
  const [x0, y0] = points[i] as readonly [number, number];
  const [x1, y1] = points[i + 1] as readonly [number, number];
  return Math.max(0.1, y0 + ((y1 - y0) * (x - x0)) / (x1 - x0));
}

const bySize = (values: readonly (readonly number[])[], n: number, column: number): number => along(sizes.map((size, i) => [size, values[i]?.[column] as number] as const), n);

/** The times above are of a context that can roll back; without its snapshots a plain step takes 3 to 7% less. */
export const plainFactor = 0.95;
/** A state of the 35B shape through the host: 66 MB twice. */
const moveMs = 15;

/**
 * What a decode costs more whose graph is not the last one's: it is built anew. If its CUDA graph is not the captured one
 * either, it runs kernel by kernel, and the next of its shape captures it (2026-11-30: 13.6 and 12.3 ms instead of 7.0 with
 * one sequence, 48 and 49.5 instead of 40.2 with sixteen). Forwards with and without outputs are captured apart.
 */
const rebuildMs = { target: 5, head: 1 } as const;
const changeMs = 14;
const captureMs = { target: (nSeqs: number) => 5 + 0.25 * nSeqs, head: () => 0.3 } as const;

function decodeMs(role: "target" | "head", context: DecodeContext): number {
  const { n, seqs, outputs } = context.rows;
  const nSeqs = new Set(seqs.subarray(0, n)).size;
  const nOutputs = outputs.subarray(0, n).reduce((sum, x) => sum + x, 0);
  const each = n / nSeqs;
  if (role === "head") return nOutputs === 0 ? 0.6 + 0.003 * n : bySize(draftMs, nSeqs, 0) + ((bySize(draftMs, nSeqs, 1) - bySize(draftMs, nSeqs, 0)) * Math.min(2, each - 1)) / 2;
  if (each <= 4) return bySize(targetMs, nSeqs, each - 1);
  return along(prefillMs, n);
}

export interface VirtualRun {
  readonly tokPerSec: number;
  readonly ttftP95Ms: number;
  readonly stepsAtK: readonly number[];
  readonly h: Harness;
}

export interface VirtualLoad {
  readonly concurrency: number;
  readonly nRequests: number;
  readonly maxTokens: number;
  /** Requests ask for up to this many tokens more or less. */
  readonly maxTokensSpread?: number;
  readonly promptLength?: readonly [min: number, max: number];
  /** From a request's end to the client's next one. */
  readonly clientMs?: number;
}

/** Runs a closed loop to its end. `rates` may change with the step number. */
export function runVirtual(config: Partial<EngineConfig>, load: VirtualLoad, rates: (step: number) => readonly number[], options: { readonly isPinned?: boolean; readonly nSlots?: number; readonly table?: CostTableData; readonly hasPlain?: boolean; readonly trace?: TraceSink } = {}): VirtualRun {
  const nSlots = options.nSlots ?? Math.max(16, load.concurrency);
  const { promptLength = [145, 145], clientMs = 1.5 } = load;
  const rng = new Rng(5);
  let draftRates = rates(0);
  const drawn = new Map<string, number>();
  // One number per sequence and first draft position decides how much of a draft is right: rates are unconditional.
  const isDraftRight = (position: number, seq: number): boolean => {
    const sequence = h.engine.slots.sequences[seq];
    const first = (sequence?.nPast ?? 0) + 1;
    const key = `${seq} ${first}`;
    let u = drawn.get(key);
    if (u === undefined) {
      u = rng.uniform();
      if (drawn.size > 10_000) drawn.clear();
      drawn.set(key, u);
    }
    return u < (draftRates[position - first] ?? 0);
  };
  const clock = { now: 0 };
  const sentMs = new Map<number, number>();
  const ttfts: number[] = [];
  let nOutput = 0;
  const onEvent = (event: EngineEvent): void => {
    if (event.kind === "finish") send(clock.now + clientMs);
    if (event.kind !== "tokens") return;
    if (sentMs.has(event.id)) ttfts.push(clock.now - (sentMs.get(event.id) as number));
    sentMs.delete(event.id);
    nOutput += event.tokens.length;
  };
  const h = harness({ nMax: 3, ...config }, { nSeq: nSlots, nCtxSeq: 2048, nRows: 4096, nUbatch: 2560, nVocab: 4001, isDraftRight, hasPlain: options.hasPlain ?? false, isAsynchronous: true }, { clock: () => clock.now, sink: (batch) => batch.forEach((event) => onEvent(event)), ...(options.trace === undefined ? {} : { trace: options.trace }) });
  h.engine.shape.changeMs = changeMs;
  const { plainTarget } = h.backend;
  let deviceMs = 0;
  const settle = (): void => {
    clock.now += deviceMs;
    deviceMs = 0;
  };
  for (const context of plainTarget === undefined ? [] : [h.backend.target, plainTarget]) {
    const save = context.saveSequence.bind(context);
    context.saveSequence = (seq) => {
      clock.now += moveMs;
      return save(seq);
    };
  }
  for (const [role, context] of [["target", h.backend.target], ...(plainTarget === undefined ? [] : [["target", plainTarget] as const]), ...h.backend.heads.map((head) => ["head", head] as const)] as const) {
    const decode = context.decode.bind(context);
    // A decode returns at once; whoever reads its results waits.
    for (const name of ["synchronize", "greedyToken", "hidden", "hiddenAll", "candidates", "logits"] as const) {
      const read = context[name].bind(context) as (row: number) => unknown;
      Object.assign(context, { [name]: (row: number) => (settle(), read(row)) });
    }
    let lastShape = "";
    /** By whether there are outputs: the shape, and how often in a row it came. */
    const captured = [{ shape: "", n: 0 }, { shape: "", n: 0 }];
    context.decode = () => {
      const { n, seqs, outputs } = context.rows;
      let nCells = 0;
      for (const history of (context as unknown as { history: number[][] }).history) nCells += history.length;
      const shape = `${seqs.subarray(0, n).join()} ${outputs.subarray(0, n).join()} ${options.isPinned === true ? 0 : Math.ceil(nCells / 256)}`;
      const own = captured[outputs.subarray(0, n).some((x) => x > 0) ? 1 : 0] as { shape: string; n: number };
      if (shape !== own.shape) Object.assign(own, { shape, n: 0 });
      own.n++;
      const slowMs = (shape === lastShape ? 0 : rebuildMs[role]) + (own.n === 2 ? captureMs[role](new Set(seqs.subarray(0, n)).size) : 0);
      lastShape = shape;
      const isPlain = role === "target" && (config.nMax === 0 || context === plainTarget);
      settle();
      deviceMs = decodeMs(role, context) * (isPlain ? plainFactor : 1) + slowMs;
      decode();
      h.backend.log.length = 0;
    };
  }
  if (config.gate === "adaptive") h.engine.gate.useTable(new CostTable({ ...(options.table ?? h200Table), changeMs }));
  h.engine.planner.prefillCost = { baseMs: h200Table.prefillBaseMs, rowMs: h200Table.prefillRowMs };
  let nSent = 0;
  const due: { id: number; atMs: number }[] = [];
  // Requests that become due together reach the engine one after the other: HTTP takes its time with each.
  let lastAtMs = -Infinity;
  const send = (atMs: number): void => {
    if (nSent === load.nRequests) return;
    lastAtMs = Math.max(atMs, lastAtMs + 0.9);
    due.push({ id: nSent++, atMs: lastAtMs });
  };
  for (let i = 0; i < load.concurrency; i++) send(0);
  let nSteps = 0;
  for (;;) {
    for (const d of due.splice(0).toSorted((a, b) => a.atMs - b.atMs)) {
      if (d.atMs > clock.now) {
        due.push(d);
        continue;
      }
      const length = promptLength[0] + rng.below(promptLength[1] - promptLength[0] + 1);
      sentMs.set(d.id, d.atMs);
      h.engine.submit(request(d.id, Array.from({ length }, () => rng.below(4000)), { maxTokens: load.maxTokens + (load.maxTokensSpread === undefined ? 0 : rng.below(2 * load.maxTokensSpread + 1) - load.maxTokensSpread), ignoreEos: true }));
    }
    draftRates = rates(nSteps++);
    const beforeMs = clock.now;
    const isBusy = h.engine.step();
    // A step without a decode waits for company.
    if (isBusy && clock.now === beforeMs) clock.now += 0.25;
    if (!isBusy) {
      if (due.length === 0) break;
      clock.now = Math.max(clock.now, Math.min(...due.map((d) => d.atMs)));
    }
  }
  ttfts.sort((a, b) => a - b);
  return { tokPerSec: (nOutput / clock.now) * 1000, ttftP95Ms: ttfts[Math.floor(ttfts.length * 0.95)] ?? NaN, stepsAtK: h.engine.snapshot().stepsAtK, h };
}

/** Tokens per second when a burst's prompts are read in one forward and all decode in step: prefill once, then decode. */
export function ceiling(concurrency: number, maxTokens: number, k: number, rates: readonly number[], promptLength = 145): number {
  const tokens = 1 + rates.slice(0, k).reduce((sum, r) => sum + r, 0);
  const steps = (maxTokens - 1) / tokens;
  const ms = along(prefillMs, concurrency * promptLength) + steps * new CostTable(h200Table).stepMs(concurrency, k);
  return (concurrency * maxTokens * 1000) / ms;
}
