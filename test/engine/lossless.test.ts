/** Temperature above 0: with drafts the tokens have the distribution of plain sampling, whatever the head proposes. */
import { describe, expect, test } from "vitest";
import type { SlotSampling } from "../../src/engine/backend.ts";
import { greedySampling } from "../../src/engine/request.ts";
import { request } from "../request.ts";
import { harness } from "./run.ts";

const nVocab = 12;
/** A spread distribution that depends on the last token. */
const logits = (history: readonly number[]): Float32Array => {
  const last = history.at(-1) ?? 0;
  return Float32Array.from({ length: nVocab }, (_, i) => (i === nVocab - 1 ? -50 : Math.cos(i * 1.7 + last) * 1.5));
};

function counts(nMax: number, sampling: SlotSampling, params: Partial<typeof greedySampling>): number[][] {
  const h = harness({ nMax }, { nSeq: 4, nCtxSeq: 4096, nVocab, logits, sampling, isDraftRight: (p) => p % 3 !== 0, next: (history) => (history.length * 5) % (nVocab - 1) });
  for (let id = 0; id < 24; id++) h.engine.submit(request(id, [1, 2, 3], { maxTokens: 500, sampling: { ...greedySampling, temperature: 0.9, topP: 1, minP: 0, seed: 77 + id, ...params } }));
  h.runAll(100_000);
  // Pairs: the distribution of a token given the one before it.
  const pairs = Array.from({ length: nVocab }, () => Array.from({ length: nVocab }, () => 0));
  for (let id = 0; id < 24; id++) {
    const tokens = h.tokensOf(id);
    for (let i = 1; i < tokens.length; i++) (pairs[tokens[i - 1] as number] as number[])[tokens[i] as number]! += 1;
  }
  if (nMax > 0) expect(h.engine.snapshot().draft.nAccepted).toBeGreaterThan(100);
  return pairs;
}

/** Chi-squared statistic of two samples of a categorical distribution, and its degrees of freedom. */
function chiSquared(a: readonly number[], b: readonly number[]): { statistic: number; df: number } {
  const nA = a.reduce((x, y) => x + y, 0);
  const nB = b.reduce((x, y) => x + y, 0);
  let statistic = 0;
  let df = -1;
  for (const [i, x] of a.entries()) {
    const y = b[i] as number;
    if (x + y < 10) continue;
    df++;
    statistic += (Math.sqrt(nB / nA) * x - Math.sqrt(nA / nB) * y) ** 2 / (x + y);
  }
  return { statistic, df };
}

describe.each([
  { sampling: "host", params: {} },
  { sampling: "host", params: { topK: 5, topP: 0.8 } },
  { sampling: "device-top-k", params: { topK: 8, minP: 0.1 } },
] as const)("$sampling sampling, $params", ({ sampling, params }) => {
  test.each([1, 3])("n_max %i", (nMax) => {
    const plain = counts(0, sampling, params);
    const drafted = counts(nMax, sampling, params);
    let statistic = 0;
    let df = 0;
    for (const [i, row] of plain.entries()) {
      const one = chiSquared(row, drafted[i] as number[]);
      if (one.df < 1) continue;
      statistic += one.statistic;
      df += one.df;
    }
    expect(df).toBeGreaterThan(20);
    // The statistic has mean df and variance 2 df; seeds are fixed, so this never flickers.
    expect(statistic).toBeLessThan(df + 3 * Math.sqrt(2 * df));
  });
});
