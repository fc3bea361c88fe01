/** Raw records -> the numbers of a run. Pure: the same records give the same bytes. docs/metrics.md defines each figure. */
import { mean, quantile } from "../util/stats.ts";
import type { FailureKind, RequestRecord } from "./record.ts";

/** Milliseconds, except where the field says otherwise. */
export interface Distribution {
  readonly n: number;
  readonly mean: number;
  readonly p50: number;
  readonly p90: number;
  readonly p95: number;
  readonly p99: number;
  readonly max: number;
}

/** Limits of a good request; only those given count. */
export interface Limits {
  readonly ttftMs?: number;
  readonly tpotMs?: number;
  readonly e2elMs?: number;
}

export interface Summary {
  readonly requests: number;
  readonly failed: number;
  readonly failures: Partial<Record<FailureKind, number>>;
  /** From the first intended send to the last end. */
  readonly wallMs: number;
  readonly promptTokens: number;
  /** Undefined when no answer told. */
  readonly cachedTokens: number | undefined;
  readonly outputTokens: number;
  readonly outputTokPerSec: number;
  readonly totalTokPerSec: number;
  readonly requestsPerSec: number;
  /** The five below are undefined when no request has them. */
  readonly ttftMs: Distribution | undefined;
  readonly tpotMs: Distribution | undefined;
  readonly itlMs: Distribution | undefined;
  readonly e2elMs: Distribution | undefined;
  /** Output tokens over content chunks, per request. */
  readonly tokensPerChunk: Distribution | undefined;
  /** Told by the server, where it does. */
  readonly queueMs: Distribution | undefined;
  readonly prefillMs: Distribution | undefined;
  readonly decodeMs: Distribution | undefined;
  readonly goodput: { readonly limits: Limits; readonly good: number; readonly requestsPerSec: number } | undefined;
  readonly finishReasons: Readonly<Partial<Record<string, number>>>;
  readonly reconnects: number;
  /** Sent later than intended (open loop): how late the client itself was. */
  readonly sendDelayMs: Distribution | undefined;
}

/** Send to first content; from the intended time, so an open loop counts its own delay. */
export const ttftMs = (r: RequestRecord): number | undefined => (r.contentAtMs[0] === undefined ? undefined : r.contentAtMs[0] - r.intendedAtMs);

export const e2elMs = (r: RequestRecord): number => r.endAtMs - r.intendedAtMs;

/** (E2EL - TTFT) / (output tokens - 1); undefined for one token or without streaming. */
export function tpotMs(r: RequestRecord): number | undefined {
  const first = ttftMs(r);
  return first === undefined || r.nOutput === undefined || r.nOutput < 2 ? undefined : (e2elMs(r) - first) / (r.nOutput - 1);
}

/** Gaps between consecutive chunks. */
export const itlMs = (r: RequestRecord): number[] => r.contentAtMs.slice(1).map((at, i) => at - (r.contentAtMs[i] as number));

export function summarize(records: readonly RequestRecord[], options: { limits?: Limits } = {}): Summary {
  const good = records.filter((r) => r.failure === undefined);
  const wallMs = records.length === 0 ? 0 : Math.max(...records.map((r) => r.endAtMs)) - Math.min(...records.map((r) => r.intendedAtMs));
  const perSec = (amount: number): number => (wallMs > 0 ? (amount * 1000) / wallMs : 0);
  const total = (field: "nPrompt" | "nOutput"): number => good.reduce((sum, r) => sum + (r[field] ?? 0), 0);
  const outputTokens = total("nOutput");
  const promptTokens = total("nPrompt");
  const cached = good.flatMap((r) => (r.nCached === undefined ? [] : [r.nCached]));
  return {
    requests: records.length,
    failed: records.length - good.length,
    failures: countBy(records.flatMap((r) => (r.failure === undefined ? [] : [r.failure.kind]))),
    wallMs,
    promptTokens,
    cachedTokens: cached.length === 0 ? undefined : cached.reduce((a, b) => a + b, 0),
    outputTokens,
    outputTokPerSec: perSec(outputTokens),
    totalTokPerSec: perSec(outputTokens + promptTokens),
    requestsPerSec: perSec(good.length),
    ttftMs: distribution(good.map(ttftMs)),
    tpotMs: distribution(good.map(tpotMs)),
    itlMs: distribution(good.flatMap(itlMs)),
    e2elMs: distribution(good.map(e2elMs)),
    tokensPerChunk: distribution(good.map((r) => (r.contentAtMs.length === 0 || r.nOutput === undefined ? undefined : r.nOutput / r.contentAtMs.length))),
    queueMs: distribution(good.map((r) => r.timings?.queueMs)),
    prefillMs: distribution(good.map((r) => r.timings?.prefillMs)),
    decodeMs: distribution(good.map((r) => r.timings?.decodeMs)),
    goodput: options.limits === undefined ? undefined : goodput(good, options.limits, perSec),
    finishReasons: countBy(good.flatMap((r) => (r.finishReason === undefined ? [] : [r.finishReason]))),
    reconnects: records.reduce((sum, r) => sum + r.nReconnects, 0),
    sendDelayMs: records.some((r) => r.sentAtMs > r.intendedAtMs) ? distribution(records.map((r) => r.sentAtMs - r.intendedAtMs)) : undefined,
  };
}

function goodput(good: readonly RequestRecord[], limits: Limits, perSec: (n: number) => number): Summary["goodput"] {
  const within = (value: number | undefined, limit: number | undefined): boolean => limit === undefined || (value ?? 0) <= limit;
  const n = good.filter((r) => within(ttftMs(r), limits.ttftMs) && within(tpotMs(r), limits.tpotMs) && within(e2elMs(r), limits.e2elMs)).length;
  return { limits, good: n, requestsPerSec: perSec(n) };
}

export function distribution(values: readonly (number | undefined)[]): Distribution | undefined {
  const samples = values.filter((v): v is number => v !== undefined).sort((a, b) => a - b);
  if (samples.length === 0) return undefined;
  const [p50, p90, p95, p99] = [0.5, 0.9, 0.95, 0.99].map((q) => round(quantile(samples, q))) as [number, number, number, number];
  return { n: samples.length, mean: round(mean(samples)), p50, p90, p95, p99, max: round(samples.at(-1) as number) };
}

const round = (value: number): number => Math.round(value * 1000) / 1000;

function countBy<K extends string>(keys: readonly K[]): Partial<Record<K, number>> {
  const counts: Partial<Record<K, number>> = {};
  for (const key of keys.toSorted()) counts[key] = (counts[key] ?? 0) + 1;
  return counts;
}
