/** What a step spares at rest: the target's hidden rows, the cost clock, counters. */
import { expect, test } from "vitest";
import { CostTable } from "../../src/engine/cost-table.ts";
import type { Gate } from "../../src/engine/gate.ts";
import { HiddenReading } from "../../src/engine/hidden-reading.ts";
import { request } from "../request.ts";
import { harness } from "./run.ts";

const gate = (canPay: boolean, stepsToProbe = 100, promisesLittle = true): Gate => ({ canPayAt: () => canPay, stepsToProbe: () => stepsToProbe, promisesLittle: () => promisesLittle }) as unknown as Gate;

test("on a CPU a hopeless head gets rows before a probe only, in time for the gate's rare looks", () => {
  const reading = new HiddenReading(false);
  expect(reading.next(gate(true), 4, false)).toBe(false);
  // A look comes every eight steps, and the hint wants five rows.
  expect(reading.next(gate(true, 13), 4, false)).toBe(true);
  expect(reading.next(gate(true, 100, false), 4, false)).toBe(true);
  expect(reading.next(gate(false, 13), 4, false)).toBe(false);
});

test("on a GPU reading begins at once where drafts may win, and ends between requests or after some looks, since each change costs a graph", () => {
  const reading = new HiddenReading(true);
  const may = gate(true, 0, false);
  expect(reading.next(may, 4, false)).toBe(true);
  expect(reading.next(gate(false), 4, false)).toBeUndefined();
  expect(reading.next(gate(false), 4, true)).toBe(false);
  expect(reading.next(may, 4, false)).toBe(true);
  const later = Array.from({ length: 12 }, () => reading.next(gate(false), 4, false));
  expect(later.indexOf(false)).toBe(3);
  expect(later.slice(0, 3).every((x) => x === undefined)).toBe(true);
});

test("on a GPU a head that promises little gets rows before a probe, where the pause is worth two graphs", () => {
  const reading = new HiddenReading(true);
  // A hint of 24 rows, the pending one, and a look that is late by eight steps.
  expect(reading.next(gate(true, 33 * 4), 4, true)).toBe(true);
  expect(reading.next(gate(true, 33 * 4 + 1), 4, true)).toBe(false);
  expect(reading.next(gate(true, 34), 4, false)).toBeUndefined();
  expect(reading.next(gate(true, 33), 4, false)).toBe(true);
  expect(reading.next(gate(true, 500, false), 4, true)).toBe(true);
});

test.for([true, false])("an engine whose drafts cannot pay reads no hidden rows, with a second target context or without (%s)", (hasPlain) => {
  const h = harness({ nMax: 2, gate: "adaptive" }, { hasPlain });
  const isRead: (boolean | undefined)[] = [];
  for (const context of [h.backend.target, h.backend.plainTarget]) if (context !== undefined) context.setHiddenOutput = (on) => void isRead.push(on);
  const row = [1, 3, 5];
  h.engine.gate.useTable(new CostTable({ nSeqs: [1, 4], stepMs: [row, row], changeMs: 0, moveMs: 0, prefillBaseMs: 0, prefillRowMs: 1 }));
  h.engine.submit(request(0, [1, 2, 3], { maxTokens: 100, ignoreEos: true }));
  h.runAll();
  expect(isRead.at(-1)).toBe(false);
  expect(h.engine.totals.stepsAtK.slice(1)).toEqual([0, 0]);
});

test.for([
  ["none", 0, 0],
  ["adaptive", 2, 0.3],
] as const)("a step that teaches nothing reads neither the cost clock nor libllama's counters (%s)", ([, nMax, share]) => {
  let nClock = 0;
  let nCounters = 0;
  const h = harness({ nMax, gate: "adaptive" }, { hasPlain: nMax > 0, nCtxSeq: 4096 }, { costClock: () => (nClock++, 0) });
  for (const context of [h.backend.target, h.backend.plainTarget]) {
    if (context === undefined) continue;
    const counters = context.counters.bind(context);
    context.counters = () => (nCounters++, counters());
  }
  const row = [1, 3, 5].slice(0, nMax + 1);
  if (nMax > 0) h.engine.gate.useTable(new CostTable({ nSeqs: [1, 4], stepMs: [row, row], changeMs: 0, moveMs: 0, prefillBaseMs: 0, prefillRowMs: 1 }));
  h.engine.submit(request(0, [1, 2, 3], { maxTokens: 400, ignoreEos: true }));
  for (let i = 0; i < 60; i++) h.engine.step();
  nClock = nCounters = 0;
  for (let i = 0; i < 300; i++) h.engine.step();
  expect(nClock).toBeLessThanOrEqual(2 * share * 300);
  expect(nCounters).toBeLessThanOrEqual(2 * share * 300);
});
