/** What ends that drift apart cost, against a simulation of requests that draw their tokens. */
import { describe, expect, test } from "vitest";
import { AcceptanceEstimate } from "../../src/engine/acceptance.ts";
import { CostTable } from "../../src/engine/cost-table.ts";
import { endLoss, noSpread, spreadOf } from "../../src/engine/end-spread.ts";
import { Gate } from "../../src/engine/gate.ts";
import { Rng } from "../../src/util/rng.ts";
import { request } from "../request.ts";
import { harness } from "./run.ts";

const together = (n: number, maxTokens = 128, firstStep: number | undefined = 7): { maxTokens: number; firstStep: number | undefined }[] => Array.from({ length: n }, () => ({ maxTokens, firstStep }));

/** Steps between the mean and the last end of n requests, as a share of the mean. */
function simulated(n: number, nTokens: number, rates: readonly number[]): number {
  const rng = new Rng(3);
  let [last, sum] = [0, 0];
  const nTrials = 2000;
  for (let trial = 0; trial < nTrials; trial++) {
    let most = 0;
    for (let i = 0; i < n; i++) {
      let nSteps = 0;
      for (let left = nTokens; left > 0; nSteps++) {
        const u = rng.uniform();
        left -= 1 + rates.filter((rate) => u < rate).length;
      }
      most = Math.max(most, nSteps);
      sum += nSteps / n;
    }
    last += most;
  }
  return (last - sum) / sum;
}

describe.each([{ rates: [0.947, 0.812, 0.65] }, { rates: [0.947, 0.812] }, { rates: [0.6, 0.3] }])("rates $rates", ({ rates }) => {
  test.each([[4, 256], [8, 128], [16, 128], [32, 128]])("%i requests of %i tokens", (n, nTokens) => {
    const acceptance = new AcceptanceEstimate(rates.length, { priorWeight: 0 });
    // 1000 drafts with these unconditional rates.
    for (let i = 0; i < 1000; i++) acceptance.note(rates.length, rates.filter((rate) => i / 1000 < rate).length);
    const k = rates.length;
    const loss = endLoss(spreadOf(together(n, nTokens), 1), acceptance.expectedTokens(k), acceptance.tokenVariance(k));
    // Prompts that are read in pieces are counted on top: half as much again.
    expect(loss / 1.5 / simulated(n, nTokens, rates)).toBeGreaterThan(0.85);
    expect(loss / 1.5 / simulated(n, nTokens, rates)).toBeLessThan(1.15);
  });
});

test("nothing is lost where requests end apart anyway, alone, by stops, or when every draft is accepted", () => {
  expect(spreadOf([], 1)).toBe(noSpread);
  expect(spreadOf(together(1), 1)).toBe(noSpread);
  expect(spreadOf([...together(1, 100), ...together(1, 128), ...together(1, 128, 9)], 1)).toBe(noSpread);
  expect(endLoss(spreadOf(together(8), 0), 2.7, 0.3)).toBe(0);
  expect(endLoss(spreadOf(together(8), 1), 3, 0)).toBe(0);
});

test("two groups of four lose less than one of eight, and requests that are about to begin belong together", () => {
  const loss = (running: Parameters<typeof spreadOf>[0]): number => endLoss(spreadOf(running, 1), 2.7, 0.3);
  expect(loss([...together(4), ...together(4, 128, 20)])).toBeLessThan(loss(together(8)));
  expect(loss(together(8, 128, undefined))).toBe(loss(together(8)));
});

test("a gain that ends together would eat is not drafted for, one that is larger is", () => {
  const rates = [0.947, 0.812];
  const chosen = (ms: readonly number[], endSpread = spreadOf(together(8), 1)): number => {
    const gate = new Gate({ mode: "adaptive", nMax: 2 }, new CostTable({ nSeqs: [8, 16], stepMs: [ms, ms.map((x) => 2 * x)], changeMs: 0, moveMs: 0, prefillBaseMs: 0, prefillRowMs: 1 }));
    gate.value.endSpread = () => endSpread;
    const rng = new Rng(1);
    let k = 0;
    for (let step = 0; step < 200; step++) {
      k = gate.choose(8, 2);
      for (let i = 0; i < 8; i++) {
        const u = rng.uniform();
        gate.note(2, rates.filter((rate) => u < rate).length);
      }
      gate.endStep(8, k, undefined);
    }
    return k;
  };
  // 2.76 tokens in 40 ms are 3% more than 1 in 15; in 36 ms 15% more.
  expect([chosen([15, 34, 40]), chosen([15, 34, 40], noSpread), chosen([15, 31, 36])]).toEqual([0, 2, 2]);
});

test("an engine learns that its requests end by their limits, and which of them run together", () => {
  const h = harness({ nMax: 2 });
  const lateness = (): number => {
    h.engine.step();
    h.engine.step();
    h.engine.step();
    return h.engine.gate.value.endSpread().lateness;
  };
  for (let id = 0; id < 4; id++) h.engine.submit(request(id, [1, 2, 3], { maxTokens: 20, ignoreEos: true }));
  // Not known yet: half of it.
  const before = lateness();
  expect(before).toBeGreaterThan(0.3);
  h.runAll();
  for (let id = 4; id < 8; id++) h.engine.submit(request(id, [1, 2, 3], { maxTokens: 20, ignoreEos: true }));
  expect(lateness()).toBeGreaterThan(before * 1.2);
  h.runAll();
  for (let id = 8; id < 12; id++) h.engine.submit(request(id, [1, 2, 3], { maxTokens: 20 + id, ignoreEos: true }));
  expect(lateness()).toBe(0);
});
