/** What steps take over the table's steady ones. */
import { expect, test } from "vitest";
import { CostTable } from "../../src/engine/cost-table.ts";
import { Excess } from "../../src/engine/excess.ts";
import { Gate } from "../../src/engine/gate.ts";

test("steps with and without drafts have means of their own; what does not run drifts to the other", () => {
  const excess = new Excess();
  expect(excess.ofDrafting).toBe(1);
  for (let i = 0; i < 400; i++) excess.note(true, i % 10 === 0 ? 2 : 1);
  expect(excess.ofDrafting).toBeCloseTo(1.1, 1);
  for (let i = 0; i < 400; i++) excess.note(false, 1.1);
  expect(excess.ofDrafting).toBeCloseTo(1, 1);
  for (let i = 0; i < 400; i++) excess.note(true, 50);
  expect(excess.ofDrafting).toBeLessThan(2);
  for (let i = 0; i < 20_000; i++) excess.note(false, 1);
  expect(excess.ofDrafting).toBeCloseTo(1, 2);
});

test("drafting that wins by its steady steps, and loses by the others, is given up", () => {
  const gate = new Gate({ mode: "adaptive", nMax: 1 }, new CostTable({ nSeqs: [4, 8], stepMs: [[10, 18], [10, 18]], changeMs: 0, moveMs: 5, prefillBaseMs: 0, prefillRowMs: 0 }));
  for (let i = 0; i < 200; i++) gate.note(1, 1);
  let n = 0;
  const run = (nSteps: number, slowEvery: number): number => {
    let nDrafting = 0;
    for (let i = 0; i < nSteps; i++) {
      const k = gate.choose(4, 1);
      if (k > 0) nDrafting++;
      for (let seq = 0; seq < 4; seq++) gate.note(k, k);
      const isSlow = k > 0 && n++ % slowEvery === 0;
      gate.endStep(4, k, isSlow ? 50 : [10, 18][k], !isSlow);
    }
    return nDrafting;
  };
  // Two tokens in 18 ms are better than one in 10; with a step of 50 ms among four they are not.
  expect(run(400, 1e9)).toBe(400);
  run(400, 4);
  expect(run(400, 4)).toBeLessThan(60);
  // It is tried again when that may have passed.
  run(6000, 1e9);
  expect(run(400, 1e9)).toBe(400);
});

test("what is not looked at is forgotten in as many steps, however few of them are known", () => {
  const after = (nSteps: number, every: number): number => {
    const excess = new Excess();
    for (let i = 0; i < 500; i++) excess.note(true, 1.5);
    for (let i = 0; i < nSteps; i += every) excess.note(false, 1, every);
    return excess.ofDrafting;
  };
  expect(after(1600, 1)).toBeLessThan(1.25);
  expect(after(1600, 16)).toBeCloseTo(after(1600, 1), 2);
});
