/** What the gate believes of times: measured, read so that no length is left out for ever. */
import { expect, test } from "vitest";
import { CostTable } from "../../src/engine/cost-table.ts";

const table = (): CostTable => new CostTable({ nSeqs: [8, 16], stepMs: [[14, 29, 41], [26, 55, 65]], changeMs: 14, moveMs: 15, prefillBaseMs: 40, prefillRowMs: 0.1 });
const refine = (t: CostTable, k: number, ms: number, n = 200): void => {
  for (let i = 0; i < n; i++) t.refine(16, k, ms);
};

test("a length that was cheap for a moment leaves shorter ones as they were measured", () => {
  const t = table();
  refine(t, 2, 44);
  expect(t.stepMs(16, 2)).toBeCloseTo(44, 0);
  // Never dearer than a longer one, or it would not be tried.
  expect(t.stepMs(16, 1)).toBeCloseTo(44 / 1.06, 0);
  refine(t, 2, 65);
  expect(t.stepMs(16, 1)).toBeCloseTo(55, 5);
  expect(t.stepMs(16, 0)).toBeCloseTo(26, 5);
});

test("a short length that is measured says what longer ones take at least", () => {
  const t = table();
  refine(t, 2, 44);
  refine(t, 1, 55);
  expect(t.stepMs(16, 1)).toBeCloseTo(55, 0);
  expect(t.stepMs(16, 2)).toBeGreaterThan(55);
});

test("a step says nothing about lengths between it and a longer one", () => {
  const t = table();
  refine(t, 2, 44);
  t.refine(16, 0, 26);
  expect(t.stepMs(16, 2)).toBeCloseTo(44, 0);
  expect(t.stepMs(16, 0)).toBeCloseTo(26, 0);
  // Nor about other numbers of sequences.
  t.refine(8, 1, 29);
  expect(t.stepMs(16, 2)).toBeCloseTo(44, 0);
});

test("a length that was calibrated too dear does not make longer ones dear while it is corrected", () => {
  const t = new CostTable({ nSeqs: [4, 8], stepMs: [[14.2, 10.1, 31.8], [20, 30, 60]], changeMs: 0, moveMs: 0, prefillBaseMs: 0, prefillRowMs: 0 });
  expect(t.stepMs(4, 0)).toBeCloseTo(10.1 / 1.06, 5);
  for (let i = 0; i < 200; i++) t.refine(4, 0, 9.6);
  expect(t.stepMs(4, 0)).toBeCloseTo(9.6, 1);
  expect(t.stepMs(4, 1)).toBeCloseTo(10.2, 0);
});

test("a table keeps what was measured, and is read the same when it comes back", () => {
  const t = table();
  refine(t, 2, 44, 50);
  const again = new CostTable(t.toJSON());
  for (const n of [8, 12, 16, 20]) for (const k of [0, 1, 2]) expect(again.stepMs(n, k)).toBeCloseTo(t.stepMs(n, k), 2);
});

test("tables in one memory learn what each of them measures", () => {
  const data = { nSeqs: [1, 4], stepMs: [[10, 20], [10, 20]], changeMs: 0, moveMs: 0, prefillBaseMs: 0, prefillRowMs: 1 };
  const memory = new Float64Array(12);
  const [a, b] = [new CostTable(data, { memory }), new CostTable(data, { memory })];
  const apart = new CostTable(data);
  for (let i = 0; i < 100; i++) a.refine(4, 0, 8);
  expect(b.stepMs(4, 0)).toBe(a.stepMs(4, 0));
  expect(b.stepMs(4, 0)).toBeLessThan(8.2);
  expect(b.toJSON()).toEqual(a.toJSON());
  expect(apart.stepMs(4, 0)).toBe(10);
  expect(() => new CostTable(data, { memory: new Float64Array(11) })).toThrow("needs 12 numbers of memory, not 11");
});
