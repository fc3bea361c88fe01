/** From measured cells to medians, intervals and paired ratios. Pure. */
import { mean, median, standardDeviation, type Interval } from "../util/stats.ts";
import type { CellResult } from "./sweep.ts";

export interface Estimate extends Interval {
  readonly median: number;
  readonly n: number;
}

export interface SweepRow {
  readonly server: string;
  readonly concurrency: number;
  readonly rounds: number;
  readonly requests: number;
  readonly failed: number;
  readonly outputTokens: number;
  readonly tokPerSec: Estimate;
  readonly ttftP95Ms: number | undefined;
  readonly tpotP50Ms: number | undefined;
  /** Requests a second that met every limit; undefined without limits. */
  readonly goodputPerSec: number | undefined;
  readonly acceptance: number | undefined;
  readonly acceptanceByPosition: readonly number[];
  /** Throughput over the baseline's of the same round and concurrency; undefined for the baseline itself or without one. */
  readonly ratio: Estimate | undefined;
  readonly baseline: string | undefined;
}

/** 97.5% points of Student's t by degrees of freedom; beyond the table the normal one is within 2%. */
const tTable = [NaN, 12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228, 2.201, 2.179, 2.16, 2.145, 2.131, 2.12, 2.11, 2.101, 2.093, 2.086];

/**
 * Median, and the 95% interval of the mean of the logarithms taken back (Student's t): throughputs and ratios are
 * positive and their noise is multiplicative. One sample has no interval: low and high are NaN.
 */
export function estimate(samples: readonly number[]): Estimate {
  const n = samples.length;
  const logs = samples.map(Math.log);
  const half = n < 2 ? NaN : ((tTable[n - 1] ?? 1.96) * standardDeviation(logs)) / Math.sqrt(n);
  return { median: median(samples), low: Math.exp(mean(logs) - half), high: Math.exp(mean(logs) + half), n };
}

/** One row per server and concurrency, in the order they first appear. `baselineOf` names the server to compare with. */
export function sweepRows(cells: readonly CellResult[], baselineOf: (server: string) => string | undefined): SweepRow[] {
  const groups = new Map<string, CellResult[]>();
  for (const c of cells) groups.set(`${c.server}\n${c.concurrency}`, [...(groups.get(`${c.server}\n${c.concurrency}`) ?? []), c]);
  return [...groups.values()].map((group) => {
    const [{ server, concurrency }] = group as [CellResult];
    const baseline = baselineOf(server);
    const pairs = baseline === undefined || baseline === server ? [] : group.flatMap((c) => pairRatio(c, cells, baseline));
    const sum = (pick: (c: CellResult) => number): number => group.reduce((total, c) => total + pick(c), 0);
    const nDrafts = sum((c) => c.drafts?.nDrafts ?? 0);
    const nDrafted = sum((c) => c.drafts?.nDrafted ?? 0);
    return {
      server,
      concurrency,
      rounds: group.length,
      requests: sum((c) => c.summary.requests),
      failed: sum((c) => c.summary.failed),
      outputTokens: sum((c) => c.summary.outputTokens),
      tokPerSec: estimate(group.map((c) => c.summary.outputTokPerSec)),
      ttftP95Ms: medianOf(group.map((c) => c.summary.ttftMs?.p95)),
      tpotP50Ms: medianOf(group.map((c) => c.summary.tpotMs?.p50)),
      goodputPerSec: medianOf(group.map((c) => c.summary.goodput?.requestsPerSec)),
      acceptance: nDrafted === 0 ? undefined : sum((c) => c.drafts?.nAccepted ?? 0) / nDrafted,
      acceptanceByPosition: nDrafts === 0 ? [] : addUp(group.map((c) => c.drafts?.acceptedAt ?? [])).map((n) => n / nDrafts),
      ratio: pairs.length === 0 ? undefined : estimate(pairs),
      baseline: pairs.length === 0 ? undefined : baseline,
    };
  });
}

function pairRatio(cell: CellResult, cells: readonly CellResult[], baseline: string): number[] {
  const other = cells.find((c) => c.server === baseline && c.concurrency === cell.concurrency && c.round === cell.round);
  return other === undefined || other.summary.outputTokPerSec === 0 ? [] : [cell.summary.outputTokPerSec / other.summary.outputTokPerSec];
}

function medianOf(values: readonly (number | undefined)[]): number | undefined {
  const known = values.filter((v) => v !== undefined);
  return known.length === 0 ? undefined : median(known);
}

function addUp(lists: readonly (readonly number[])[]): number[] {
  return Array.from({ length: Math.max(0, ...lists.map((l) => l.length)) }, (_, i) => lists.reduce((total, l) => total + (l[i] ?? 0), 0));
}
