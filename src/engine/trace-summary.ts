/** Step records of a run in one summary: the row-shape table of the trained report, and where the time went. Pure. */
import { quantile } from "../util/stats.ts";
import type { StepRecord } from "./trace.ts";

export interface TraceSummary {
  readonly nSteps: number;
  readonly nDecodeSteps: number;
  readonly nPrefillSteps: number;
  /** Target decode calls, forwards, rows and logit rows, prefill included. */
  readonly nDecodes: number;
  readonly nForwards: number;
  readonly nRows: number;
  readonly nOutputs: number;
  readonly forwardsPerDecodeStep: number;
  /** The most frequent decode shape: "16 seq x 3 rows". */
  readonly steadyShape: string;
  readonly steadyShare: number;
  readonly stepsAtK: readonly number[];
  readonly stepsByReason: Readonly<Record<string, number>>;
  readonly nEmitted: number;
  readonly tokensPerStep: number;
  /** Totals in ms over decode steps. */
  readonly decodeMs: PhaseTimes;
  readonly prefillMs: PhaseTimes;
  /** Median step of the steady shape, by phase. */
  readonly steadyMs: PhaseTimes;
  readonly nProcessCalls: number;
  readonly nGenerateCalls: number;
  readonly reusedTargetShare: number;
  readonly reusedHeadShare: number;
  readonly notReused: Readonly<Record<string, number>>;
}

export interface PhaseTimes {
  readonly total: number;
  readonly process: number;
  readonly generate: number;
  readonly verify: number;
  readonly own: number;
}

const shapeOf = (r: StepRecord): string => `${r.nSeqs} seq x ${r.nRowsEach} ${r.nRowsEach === 1 ? "row" : "rows"}`;

export function summarizeTrace(records: readonly StepRecord[]): TraceSummary {
  const decode = records.filter((r) => r.kind === "decode");
  const prefill = records.filter((r) => r.kind === "prefill");
  const sum = (of: readonly StepRecord[], pick: (r: StepRecord) => number): number => of.reduce((total, r) => total + pick(r), 0);
  const shapes = countBy(decode, shapeOf);
  const [steadyShape = "none", steadyCount = 0] = Object.entries(shapes).toSorted((a, b) => b[1] - a[1])[0] ?? [];
  const steady = decode.filter((r) => shapeOf(r) === steadyShape);
  const stepsAtK: number[] = [];
  for (const r of decode) {
    while (stepsAtK.length <= r.nDraft) stepsAtK.push(0);
    stepsAtK[r.nDraft] = (stepsAtK[r.nDraft] as number) + 1;
  }
  const times = (of: readonly StepRecord[], reduce: (values: number[]) => number): PhaseTimes => ({
    total: reduce(of.map((r) => r.totalMs)),
    process: reduce(of.map((r) => r.processMs)),
    generate: reduce(of.map((r) => r.generateMs)),
    verify: reduce(of.map((r) => r.verifyMs)),
    own: reduce(of.map((r) => r.ownMs)),
  });
  const add = (values: number[]): number => values.reduce((a, b) => a + b, 0);
  const middle = (values: number[]): number => (values.length === 0 ? 0 : quantile(values, 0.5));
  const nGenerateCalls = sum(decode, (r) => r.nGenerateCalls);
  return {
    nSteps: records.length,
    nDecodeSteps: decode.length,
    nPrefillSteps: prefill.length,
    nDecodes: sum(records, (r) => r.nDecodes),
    nForwards: sum(records, (r) => r.nForwards),
    nRows: sum(records, (r) => r.nRows),
    nOutputs: sum(records, (r) => r.nOutputs),
    forwardsPerDecodeStep: decode.length === 0 ? 0 : sum(decode, (r) => r.nForwards) / decode.length,
    steadyShape,
    steadyShare: decode.length === 0 ? 0 : steadyCount / decode.length,
    stepsAtK,
    stepsByReason: countBy(decode, (r) => r.why),
    nEmitted: sum(records, (r) => r.nEmitted),
    tokensPerStep: decode.length === 0 ? 0 : sum(decode, (r) => r.nEmitted) / decode.length,
    decodeMs: times(decode, add),
    prefillMs: times(prefill, add),
    steadyMs: times(steady, middle),
    nProcessCalls: sum(records, (r) => r.nProcessCalls),
    nGenerateCalls,
    reusedTargetShare: decode.length === 0 ? 0 : sum(decode, (r) => r.nReusedTarget) / Math.max(1, sum(decode, (r) => r.nDecodes)),
    reusedHeadShare: nGenerateCalls === 0 ? 0 : sum(decode, (r) => r.nReusedHead) / nGenerateCalls,
    notReused: countBy(decode.filter((r) => r.notReused !== ""), (r) => r.notReused),
  };
}

function countBy(records: readonly StepRecord[], key: (r: StepRecord) => string): Record<string, number> {
  const counts: Record<string, number> = {};
  for (const r of records) counts[key(r)] = (counts[key(r)] ?? 0) + 1;
  return counts;
}
