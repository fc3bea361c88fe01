import fc from "fast-check";
import { describe, expect, test } from "vitest";
import { depthWeightsOf, learningRateAt, parseStages, progressOf, stageAt, stagesPerPosition } from "../../src/train/schedule.ts";
import { StepThreads, threadCandidates } from "../../src/train/step-threads.ts";
import { UserError } from "../../src/util/errors.ts";

describe("stages", () => {
  test("depths, shares and rates", () => {
    expect(parseStages("1:3:8e-4,3:2", 1e-3)).toEqual([
      { nDepths: 1, share: 0.6, learningRate: 8e-4, trained: "shared" },
      { nDepths: 3, share: 0.4, learningRate: 1e-3, trained: "shared" },
    ]);
    for (const wrong of ["0", "x", "3:0", "3:-1", "3:1:0", "17", ""]) expect(() => parseStages(wrong, 1e-3), wrong).toThrow(UserError);
  });

  test("a stage begins where the one before ends, and the last lasts to the end", () => {
    const stages = parseStages("1:1,2:1,3:2", 1e-3);
    expect([0, 0.249, 0.25, 0.5, 0.75, 1].map((p) => stageAt(stages, p).index)).toEqual([0, 0, 1, 2, 2, 2]);
    expect(stageAt(stages, 0.75).fraction).toBeCloseTo(0.5);
    expect(stageAt(stages, 1).fraction).toBe(1);
  });

  test("weights by depth", () => {
    const [shared] = parseStages("3", 1e-3);
    expect(depthWeightsOf(shared as NonNullable<typeof shared>, 0.5)).toEqual([1, 0.5, 0.25]);
    expect(stagesPerPosition(3, 1e-3).map((s) => depthWeightsOf(s, 0.5))).toEqual([[1], [0, 1], [0, 0, 1]]);
  });

  test("the nearer limit ends a run", () => {
    expect(progressOf({ nSteps: 50, elapsedMs: 10 }, { maxSteps: 100, maxMs: 100 })).toBe(0.5);
    expect(progressOf({ nSteps: 50, elapsedMs: 90 }, { maxSteps: 100, maxMs: 100 })).toBe(0.9);
    expect(progressOf({ nSteps: 500, elapsedMs: 0 }, { maxSteps: 100, maxMs: 100 })).toBe(1);
  });

  test("the rate rises over the warm-up, never exceeds its peak, and ends at its floor", () => {
    const options = { warmupSteps: 10, floor: 0.1 };
    fc.assert(
      fc.property(fc.nat(10_000), fc.double({ min: 0, max: 1, noNaN: true }), (step, fraction) => {
        const rate = learningRateAt(2e-3, step, fraction, options);
        expect(rate).toBeGreaterThan(0);
        expect(rate).toBeLessThanOrEqual(2e-3);
      }),
    );
    expect(learningRateAt(2e-3, 0, 0, options)).toBeCloseTo(2e-4);
    expect(learningRateAt(2e-3, 10, 0, options)).toBe(2e-3);
    expect(learningRateAt(2e-3, 500, 1, options)).toBeCloseTo(2e-4);
  });
});

describe("threads of a step", () => {
  const run = (threads: StepThreads, msOf: (n: number) => number, n: number): number[] =>
    Array.from({ length: n }, () => {
      const used = threads.threads;
      threads.note(msOf(used));
      return used;
    });

  test("each candidate is tried, the fastest stays", () => {
    expect(threadCandidates(6)).toEqual([1, 2, 4, 6]);
    expect(threadCandidates(1)).toEqual([1]);
    const threads = new StepThreads([1, 2, 4]);
    expect(run(threads, (n) => 100 / n, 6)).toEqual([1, 1, 2, 2, 4, 4]);
    expect(run(threads, (n) => 100 / n, 50)).toEqual(Array.from({ length: 50 }, () => 4));
  });

  test("a neighbour that takes a core makes it measure again", () => {
    const threads = new StepThreads([1, 2]);
    run(threads, (n) => 100 / n, 20);
    expect(threads.threads).toBe(2);
    const busy = (n: number): number => (n === 2 ? 800 : 110);
    run(threads, busy, 20);
    expect(threads.threads).toBe(1);
  });

  test("a choice is looked at again now and then, ever later", () => {
    const threads = new StepThreads([1, 2]);
    const used = run(threads, (n) => (n === 2 ? 800 : 100), 1000);
    const probes = used.filter((n) => n === 2).length;
    expect(probes).toBeGreaterThan(2);
    expect(probes).toBeLessThan(12);
    expect(run(threads, (n) => 100 / n, 1000).at(-1)).toBe(2);
  });
});
