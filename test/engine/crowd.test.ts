/** Groups that share a device: what one believes of the others, and which costs it takes its own steps for. */
import { expect, test } from "vitest";
import { CostTable } from "../../src/engine/cost-table.ts";
import { Crowd } from "../../src/engine/crowd.ts";
import { inFlux } from "../../src/util/barrier.ts";
import { request } from "../request.ts";
import { Lately } from "../../src/engine/lately.ts";
import { harness } from "./run.ts";

test("others that stood still a moment ago still count, but their absence makes a step's time uncertain", () => {
  let now = 0;
  const view = { work: 0, most: 0, isAlike: true };
  const crowd = new Crowd(view, () => now);
  const look = (atMs: number, isCrowded: boolean): [boolean, boolean] => {
    now = atMs;
    view.most = isCrowded ? 2 : 0;
    crowd.look(true);
    return [crowd.isCrowded, crowd.isCertain];
  };
  // Before a decode, nobody has done anything unlike.
  expect(look(0, false)).toEqual([false, true]);
  expect(look(1000, true)).toEqual([true, true]);
  expect(look(1300, false)).toEqual([true, false]);
  expect(look(1600, false)).toEqual([false, true]);
  expect(view.work).toBe(1);
  crowd.look(false);
  expect(view.work).toBe(0);
});

test("a step's time is uncertain where another group drafts another length, at its start or at its end, and all know what one does", () => {
  const view = { work: 0, most: 2, isAlike: true };
  const crowd = new Crowd(view, () => 0);
  const step = (k: number, atStart: boolean, atEnd: boolean): boolean => {
    crowd.look(true);
    view.isAlike = atStart;
    crowd.decodes(k);
    view.isAlike = atEnd;
    return crowd.isCertain;
  };
  expect([step(2, true, true), step(2, false, true), step(2, true, false)]).toEqual([true, false, false]);
  // A length that has just changed is no measure for others.
  expect(view.work).toBe(3 + inFlux);
  step(2, true, true);
  expect(view.work).toBe(3);
  crowd.look(false);
  crowd.look(true);
  // Until it decodes again, the last length stands for what it does.
  expect(view.work).toBe(3);
  expect([step(0, true, true), view.work]).toEqual([true, 1 + inFlux]);
});

test("while a group reads prompts, and in its first steps after them, others learn nothing from theirs", () => {
  const view = { work: 0, most: 1, isAlike: true };
  const crowd = new Crowd(view, () => 0);
  const shown = (run: () => void): number => {
    crowd.look(true);
    run();
    return view.work;
  };
  const decode = (): number => shown(() => crowd.decodes(0));
  expect([decode(), shown(() => crowd.reads()), decode(), decode(), decode(), decode()]).toEqual([1, 1 + inFlux, 1 + inFlux, 1 + inFlux, 1, 1]);
  expect([crowd.isCrowded, crowd.othersRest, crowd.othersLength]).toEqual([true, true, undefined]);
  view.most = 3;
  crowd.look(true);
  expect([crowd.othersDraft, crowd.othersLength]).toEqual([true, 2]);
});

test("a step in whose middle others began or ended their work tells nothing", () => {
  const view = { work: 0, most: 1, isAlike: true };
  const crowd = new Crowd(view, () => 0);
  const step = (mostAtEnd: number): boolean => {
    view.most = 1;
    crowd.look(true);
    crowd.decodes(0);
    view.most = mostAtEnd;
    return crowd.isCertain;
  };
  expect([step(1), step(0)]).toEqual([true, false]);
});

test("groups that have long done different things learn from what they have", () => {
  const view = { work: 0, most: 1, isAlike: false };
  const crowd = new Crowd(view, () => 0);
  const certain = (): boolean => {
    crowd.look(true);
    crowd.decodes(2);
    return crowd.isCertain;
  };
  const first = Array.from({ length: 2000 }, certain).indexOf(true);
  expect(first).toBe(1000);
  view.isAlike = true;
  expect(certain()).toBe(true);
  view.isAlike = false;
  expect(certain()).toBe(false);
});

test("what a draft length costs is learned where all groups do the same, not at the others' expense", () => {
  const learned = (isAlike: boolean): number => {
    const clock = { now: 0 };
    const view = { work: 0, most: 2, isAlike };
    const h = harness({ nMax: 2, gate: "adaptive" }, { isAsynchronous: true }, { crowd: view, clock: () => clock.now });
    const table = new CostTable({ nSeqs: [1, 4], stepMs: [[10, 30, 50], [10, 30, 50]], changeMs: 0, moveMs: 0, prefillBaseMs: 0, prefillRowMs: 1 });
    h.engine.gate.useTable(table, table);
    const { target } = h.backend;
    const synchronize = target.synchronize.bind(target);
    target.synchronize = () => {
      clock.now += 8;
      synchronize();
    };
    for (let id = 0; id < 2; id++) h.engine.submit(request(id, [1, 2, 3], { maxTokens: 200, ignoreEos: true }));
    h.runAll();
    expect(h.engine.totals.stepsAtK.slice(1)).toEqual([0, 0]);
    return table.stepMs(2, 0);
  };
  expect(learned(false)).toBe(10);
  expect(learned(true)).toBeLessThan(9.5);
});

test("without groups nothing is ever crowded", () => {
  const crowd = new Crowd(undefined, () => 0);
  crowd.look(true);
  expect([crowd.isCrowded, crowd.isCertain]).toEqual([false, true]);
});

test("between two waves an engine chooses by the costs of company", () => {
  const view = { work: 0, most: 2, isAlike: true };
  const h = harness({ nMax: 2, gate: "adaptive" }, {}, { crowd: view });
  const table = (ms: readonly number[]): CostTable => new CostTable({ nSeqs: [1, 4], stepMs: [ms, ms], changeMs: 0, moveMs: 0, prefillBaseMs: 0, prefillRowMs: 1 });
  // Alone drafting always pays, in company it cannot.
  h.engine.gate.useTable(table([1, 1.06, 1.13]), table([1, 3, 5]));
  const wave = (first: number): number[] => {
    for (let id = first; id < first + 2; id++) h.engine.submit(request(id, [1, 2, 3], { maxTokens: 40, ignoreEos: true }));
    const before = [...h.engine.totals.stepsAtK];
    h.runAll();
    return h.engine.totals.stepsAtK.map((n, k) => n - (before[k] as number));
  };
  wave(0);
  view.most = 0;
  expect(wave(2).slice(1)).toEqual([0, 0]);
  h.clock.now += 1000;
  expect((wave(4)[2] as number) > 0).toBe(true);
});

test("the peak of a number lasts half a second to a second, then the next highest of that time counts", () => {
  const lately = new Lately();
  expect([lately.peak(8, 0), lately.peak(3, 499), lately.peak(2, 600), lately.peak(2, 999), lately.peak(2, 1000), lately.peak(4, 1400), lately.peak(1, 1500), lately.peak(1, 2600)]).toEqual([8, 8, 8, 8, 8, 4, 4, 1]);
});

test("who is left of a wave is drafted for at once", () => {
  const h = harness({ nMax: 2, gate: "adaptive" }, { nSeq: 8, hasPlain: true, isAsynchronous: true });
  h.engine.gate.useTable(new CostTable({ nSeqs: [1, 8], stepMs: [[10, 11, 12], [10, 25, 40]], changeMs: 0, moveMs: 0, prefillBaseMs: 0, prefillRowMs: 1 }));
  h.engine.tier.msPerMove = 0;
  for (let id = 0; id < 8; id++) h.engine.submit(request(id, [1, 2, 3], { maxTokens: id === 0 ? 400 : 90, ignoreEos: true }));
  while (h.engine.slots.running.length !== 1) h.engine.step();
  const before = h.engine.totals.stepsAtK[0] as number;
  h.runAll();
  // A probe's way to the other context, and no rest of the eight's.
  expect((h.engine.totals.stepsAtK[0] as number) - before).toBeLessThan(20);
});

test("a wave that comes in two bunches keeps the context that suits it as a whole", () => {
  let now = 0;
  const h = harness({ nMax: 2, gate: "adaptive" }, { nSeq: 8, hasPlain: true, isAsynchronous: true }, { clock: () => (now += 0.01) });
  // Up to four sequences win by drafts, eight do not.
  h.engine.gate.useTable(new CostTable({ nSeqs: [4, 8], stepMs: [[10, 11, 12], [10, 25, 40]], changeMs: 0, moveMs: 5, prefillBaseMs: 0, prefillRowMs: 1 }));
  const submit = (first: number, n: number): void => {
    for (let id = first; id < first + n; id++) h.engine.submit(request(id, [1, 2, 3], { maxTokens: 40, ignoreEos: true }));
  };
  submit(0, 8);
  h.runAll();
  expect(h.engine.tier.isPlain).toBe(true);
  submit(8, 4);
  h.engine.step();
  expect(h.engine.tier.isPlain).toBe(true);
  submit(12, 4);
  h.runAll();
  // Later four are four.
  now += 1000;
  submit(16, 4);
  h.engine.step();
  expect(h.engine.tier.isPlain).toBe(false);
  h.runAll();
});
