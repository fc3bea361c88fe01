/** Draft lengths that are known from calibration only run for a moment, once in a while. */
import { expect, test } from "vitest";
import { Trials } from "../../src/engine/trials.ts";

/** Lengths on trial, step by step. */
function run(nSteps: number, { nSeqs = 8, others, known = new Set<number>() }: { nSeqs?: number; others?: (step: number) => number | undefined; known?: Set<number> } = {}): (number | undefined)[] {
  const trials = new Trials();
  return Array.from({ length: nSteps }, (_, step) => trials.next(nSeqs, 3, others?.(step), (k) => k !== 1 && !known.has(k)));
}
const starts = (lengths: readonly (number | undefined)[]): number[] => lengths.flatMap((k, i) => (k !== undefined && lengths[i - 1] === undefined ? [i] : []));

test("a trial is sixteen steps, the first soon, the next ones 512 steps apart, four of a length", () => {
  const lengths = run(8000);
  expect(starts(lengths).slice(0, 3)).toEqual([63, 63 + 16 + 511, 63 + 2 * (16 + 511)]);
  expect(lengths.slice(63, 79)).toEqual(Array(16).fill(2));
  expect([2, 3].map((k) => lengths.filter((x) => x === k).length)).toEqual([64, 64]);
  expect(run(8000, { known: new Set([2, 3]) }).every((k) => k === undefined)).toBe(true);
});

test("what another group drafts is tried at once, by each number of sequences, and only where it is worth it", () => {
  expect(starts(run(60, { others: (step) => (step === 20 ? 3 : 1) }))).toEqual([20]);
  expect(starts(run(60, { others: () => 3, known: new Set([3]) }))).toEqual([]);
});

test("a trial ends when another number of sequences decodes", () => {
  const trials = new Trials();
  for (let i = 0; i < 63; i++) expect(trials.next(8, 3, undefined, () => true)).toBeUndefined();
  expect(trials.next(8, 3, undefined, () => true)).toBe(1);
  expect(trials.next(7, 3, undefined, () => true)).toBeUndefined();
  expect(trials.next(8, 3, undefined, () => true)).toBeUndefined();
});
