/** Two captures of the same prompts: how many outputs are equal, and where the others part. Pure. */
import { usageError } from "../util/errors.ts";
import { median, wilsonInterval, type Interval } from "../util/stats.ts";
import type { Capture, CapturedOutput } from "./capture.ts";
import { findFork, type Fork } from "./fork.ts";

export interface Comparison {
  readonly mode: string;
  readonly reference: string;
  readonly prompts: number;
  readonly exact: number;
  readonly exactInterval: Interval;
  readonly forks: readonly Fork[];
}

/** @throws {UserError} when the captures are of other prompts or lengths. */
export function compareCaptures(reference: Capture, other: Capture): Comparison {
  const byId = new Map(other.outputs.map((o) => [o.id, o]));
  if (reference.outputs.length !== other.outputs.length || reference.outputs.some((o) => !byId.has(o.id))) throw usageError(`${reference.name} and ${other.name} hold different prompts and cannot be compared`);
  if (reference.maxTokens !== other.maxTokens || reference.ignoreEos !== other.ignoreEos) throw usageError(`${reference.name} and ${other.name} were captured with different lengths (${reference.maxTokens} and ${other.maxTokens} tokens) and cannot be compared`);
  const forks = reference.outputs.flatMap((o) => findFork(o, byId.get(o.id) as CapturedOutput) ?? []);
  const exact = reference.outputs.length - forks.length;
  return { mode: other.name, reference: reference.name, prompts: reference.outputs.length, exact, exactInterval: wilsonInterval(exact, reference.outputs.length), forks };
}

export interface ForkSummary {
  readonly firstForkMin: number | null;
  readonly firstForkMedian: number | null;
  readonly marginMedian: number | null;
  readonly marginMax: number | null;
}

export function summarizeForks(forks: readonly Fork[]): ForkSummary {
  const tokens = forks.flatMap((f) => (f.atToken === null ? [] : [f.atToken]));
  const margins = forks.flatMap((f) => (f.margin === null ? [] : [f.margin]));
  return {
    firstForkMin: tokens.length === 0 ? null : Math.min(...tokens),
    firstForkMedian: tokens.length === 0 ? null : median(tokens),
    marginMedian: margins.length === 0 ? null : median(margins),
    marginMax: margins.length === 0 ? null : Math.max(...margins),
  };
}
