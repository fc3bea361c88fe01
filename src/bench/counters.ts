/**
 * Draft counts from a server's own Prometheus counters: ours, llama-server's and vLLM's say the same with other prefixes
 * (`spec_decode_num_drafts`, `..._num_draft_tokens`, `..._num_accepted_tokens`, `..._accepted_tokens_per_pos{position}`).
 * The difference over a run is the run's. A server without them can still tell per request (`timings.draft_n`).
 */
import type { RequestRecord } from "./record.ts";

export interface DraftCounts {
  /** Undefined when only tokens are told. */
  readonly nDrafts: number | undefined;
  readonly nDrafted: number;
  readonly nAccepted: number;
  /** Accepted at position i; divided by nDrafts this is unconditional acceptance. */
  readonly acceptedAt: readonly number[];
  /** Drafts that reached position i, where the server tells (ours does). */
  readonly reachedAt: readonly number[];
  readonly source: "metrics" | "requests";
}

export interface Sample {
  readonly name: string;
  readonly labels: Readonly<Record<string, string>>;
  readonly value: number;
}

/** The samples of a Prometheus text; comments and lines that do not parse are skipped. */
export function parsePrometheus(text: string): Sample[] {
  const samples: Sample[] = [];
  for (const line of text.split("\n")) {
    const match = /^([a-zA-Z_:][\w:]*)(?:\{(.*)\})?\s+(\S+)/.exec(line);
    if (match === null) continue;
    const labels = Object.fromEntries([...(match[2] ?? "").matchAll(/(\w+)="((?:[^"\\]|\\.)*)"/g)].map((m) => [m[1] as string, m[2] as string]));
    const value = Number(match[3]);
    if (!Number.isNaN(value)) samples.push({ name: match[1] as string, labels, value });
  }
  return samples;
}

/** Undefined when the text has no draft counters. */
export function draftCounts(text: string): DraftCounts | undefined {
  const samples = parsePrometheus(text);
  const all = (key: string): Sample[] => samples.filter((s) => s.name.endsWith(`spec_decode_${key}_total`) || s.name.endsWith(`spec_decode_${key}`));
  const total = (key: string): number | undefined => (all(key).length === 0 ? undefined : all(key).reduce((sum, s) => sum + s.value, 0));
  const byPosition = (key: string): number[] => {
    const counts: number[] = [];
    for (const s of all(key)) counts[Number(s.labels["position"] ?? 0)] = (counts[Number(s.labels["position"] ?? 0)] ?? 0) + s.value;
    return Array.from(counts, (n) => n ?? 0);
  };
  const nDrafted = total("num_draft_tokens");
  const nAccepted = total("num_accepted_tokens");
  if (nDrafted === undefined || nAccepted === undefined) return undefined;
  return { nDrafts: total("num_drafts"), nDrafted, nAccepted, acceptedAt: byPosition("num_accepted_tokens_per_pos"), reachedAt: byPosition("num_reached_tokens_per_pos"), source: "metrics" };
}

/** By how much each counter (`..._total`) rose between two Prometheus texts, without the servers' prefixes: `prompt_seconds_total`, `spec_decode_steps_total{k="2"}`. */
export function counterChanges(before: string, after: string): Record<string, number> {
  const read = (text: string): Map<string, number> => {
    const values = new Map<string, number>();
    for (const { name, labels, value } of parsePrometheus(text)) {
      const own = Object.entries(labels).filter(([key]) => key !== "model_name" && key !== "engine");
      const key = name.replace(/^[a-z]+:/, "") + (own.length === 0 ? "" : `{${own.map(([k, v]) => `${k}="${v}"`).join(",")}}`);
      if (name.endsWith("_total")) values.set(key, (values.get(key) ?? 0) + value);
    }
    return values;
  };
  const start = read(before);
  const changes: Record<string, number> = {};
  for (const [key, value] of read(after)) {
    const change = value - (start.get(key) ?? 0);
    if (change !== 0) changes[key] = Math.round(change * 1e6) / 1e6;
  }
  return changes;
}

/** What happened between two readings; counters that went back (a restarted server) count from zero. */
export function countsBetween(before: DraftCounts | undefined, after: DraftCounts | undefined): DraftCounts | undefined {
  if (after === undefined) return undefined;
  if (before === undefined || after.nDrafted < before.nDrafted) return after;
  const minus = (a: readonly number[], b: readonly number[]): number[] => a.map((n, i) => n - (b[i] ?? 0));
  return {
    nDrafts: after.nDrafts === undefined ? undefined : after.nDrafts - (before.nDrafts ?? 0),
    nDrafted: after.nDrafted - before.nDrafted,
    nAccepted: after.nAccepted - before.nAccepted,
    acceptedAt: minus(after.acceptedAt, before.acceptedAt),
    reachedAt: minus(after.reachedAt, before.reachedAt),
    source: "metrics",
  };
}

export function countsOfRequests(records: readonly RequestRecord[]): DraftCounts | undefined {
  const told = records.filter((r) => r.timings?.nDrafted !== undefined);
  if (told.length === 0) return undefined;
  const sum = (key: "nDrafted" | "nAccepted"): number => told.reduce((total, r) => total + (r.timings?.[key] ?? 0), 0);
  return { nDrafts: undefined, nDrafted: sum("nDrafted"), nAccepted: sum("nAccepted"), acceptedAt: [], reachedAt: [], source: "requests" };
}

export interface Acceptance {
  /** accepted / drafted */
  readonly rate: number | undefined;
  /** 1 + accepted / drafts: with the bonus or correction token. */
  readonly meanLength: number | undefined;
  /** Unconditional: accepted at i / all drafts. */
  readonly byPosition: readonly number[];
  /** Conditional: accepted at i / drafts whose earlier positions were all accepted. */
  readonly conditional: readonly number[];
}

/** A chain stops at its first rejection, so the drafts that reach position i are those accepted at i - 1 (or all, at 0), unless the server counts them itself. */
export function acceptanceOf(counts: DraftCounts): Acceptance {
  const { nDrafts, acceptedAt } = counts;
  const reached = acceptedAt.map((_, i) => counts.reachedAt[i] ?? (i === 0 ? nDrafts : acceptedAt[i - 1]));
  const ratio = (a: number, b: number | undefined): number => (b === undefined || b === 0 ? 0 : a / b);
  return {
    rate: counts.nDrafted === 0 ? undefined : counts.nAccepted / counts.nDrafted,
    meanLength: nDrafts === undefined || nDrafts === 0 ? undefined : 1 + counts.nAccepted / nDrafts,
    byPosition: nDrafts === undefined ? [] : acceptedAt.map((n) => ratio(n, nDrafts)),
    conditional: acceptedAt.map((n, i) => ratio(n, reached[i])),
  };
}
