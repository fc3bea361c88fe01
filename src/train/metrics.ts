/** What a batch tells about the head, from the tokens and probabilities that a step gives back. Pure. */
import type { Batch } from "./batch.ts";
import type { StepResult } from "./train-graph.ts";

export interface BatchMetrics {
  /** Mean -log p(next token) at each depth, in nats. */
  readonly nll: readonly number[];
  /**
   * Offline acceptance by position, unconditional: rows whose greedy tokens up to this depth all are the target's, over
   * rows where every depth counts. True tokens are fed, so it is what a draft of a greedy target would accept.
   */
  readonly acceptance: readonly number[];
  readonly nRows: number;
}

export function batchMetrics(batch: Batch, result: StepResult): BatchMetrics {
  const { nRows: n, nDepths, weights } = batch;
  const nll = Array.from({ length: nDepths }, () => ({ sum: 0, n: 0 }));
  const accepted = Array.from({ length: nDepths }, () => 0);
  let nWhole = 0;
  for (let row = 0; row < n; row++) {
    const isWhole = (weights[(nDepths - 1) * n + row] as number) > 0;
    if (isWhole) nWhole++;
    let isOnPath = true;
    for (let depth = 0; depth < nDepths; depth++) {
      if ((weights[depth * n + row] as number) === 0) continue;
      const at = nll[depth] as { sum: number; n: number };
      at.sum -= Math.log(Math.max((result.labelProb[depth] as Float32Array)[row] as number, 1e-30));
      at.n++;
      isOnPath &&= (result.argmax[depth] as Int32Array)[row] === result.teacherArgmax[row + depth];
      if (isWhole && isOnPath) accepted[depth] = (accepted[depth] as number) + 1;
    }
  }
  return { nll: nll.map(({ sum, n: count }) => sum / Math.max(1, count)), acceptance: accepted.map((a) => a / Math.max(1, nWhole)), nRows: nWhole };
}

/** Mean of several batches, each weighted by its rows. */
export function meanMetrics(batches: readonly BatchMetrics[]): BatchMetrics {
  const nRows = batches.reduce((sum, b) => sum + b.nRows, 0);
  const mean = (of: (b: BatchMetrics) => readonly number[]): number[] =>
    Array.from({ length: batches[0]?.nll.length ?? 0 }, (_, i) => batches.reduce((sum, b) => sum + (of(b)[i] ?? 0) * b.nRows, 0) / Math.max(1, nRows));
  return { nll: mean((b) => b.nll), acceptance: mean((b) => b.acceptance), nRows };
}

/** 1 + the sum of unconditional acceptances: tokens a verify step would yield. */
export const tokensPerDraft = ({ acceptance }: Pick<BatchMetrics, "acceptance">): number => 1 + acceptance.reduce((sum, a) => sum + a, 0);
