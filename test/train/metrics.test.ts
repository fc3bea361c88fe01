import { expect, test } from "vitest";
import { createBatch } from "../../src/train/batch.ts";
import { acceptanceOf } from "../../src/train/evaluate.ts";
import { batchMetrics, meanMetrics, tokensPerDraft } from "../../src/train/metrics.ts";

test("offline acceptance is unconditional: a miss ends a row, rows without every depth do not count", () => {
  const batch = createBatch(4, 2, 1);
  // Row 0 never counts; row 3 has no second depth.
  batch.weights.set([0, 1, 1, 1, 0, 1, 1, 0]);
  const result = {
    teacherArgmax: Int32Array.from([10, 11, 12, 13, 14]),
    argmax: [Int32Array.from([0, 11, 99, 13]), Int32Array.from([0, 12, 13, 0])],
    labelProb: [Float32Array.from([0.1, 0.5, 0.25, 1]), Float32Array.from([0.1, 1, 1, 0.1])],
  };
  const metrics = batchMetrics(batch, result);
  expect(metrics.acceptance).toEqual([0.5, 0.5]);
  expect(metrics.nRows).toBe(2);
  expect(metrics.nll[0]).toBeCloseTo((Math.log(2) + Math.log(4)) / 3);
  expect(metrics.nll[1]).toBe(0);
  expect(tokensPerDraft(metrics)).toBe(2);
  const mean = meanMetrics([metrics, { nll: [1, 1], acceptance: [1, 0], nRows: 6 }]);
  expect(mean.acceptance).toEqual([0.875, 0.125]);
});

test("online acceptance sums counts, so that long answers weigh more", () => {
  const finished = (nDrafts: number, acceptedAt: number[], nOutput: number) => ({
    usage: { nPrompt: 5, nCached: 0, nOutput },
    draft: { nDrafts, nDrafted: 3 * nDrafts, nAccepted: acceptedAt.reduce((a, b) => a + b, 0), acceptedAt, reachedAt: acceptedAt },
  });
  const acceptance = acceptanceOf([finished(10, [9, 6, 3], 28), finished(30, [3, 0], 33)], 3);
  expect(acceptance).toMatchObject({ nPrompts: 2, nTokens: 61, nDrafts: 40, nDrafted: 120, nAccepted: 21 });
  expect(acceptance.rates).toEqual([12 / 40, 6 / 40, 3 / 40]);
  expect(acceptance.tokensPerDraft).toBe(1 + 21 / 40);
  expect(acceptanceOf([], 2)).toMatchObject({ nDrafts: 0, rates: [0, 0], tokensPerDraft: 1 });
});
