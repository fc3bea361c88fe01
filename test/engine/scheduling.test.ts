/** What the scheduler is worth end to end, on the virtual H200: closed-loop clients, prompts of 145 tokens. */
import { describe, expect, test } from "vitest";
import { planPrefillChunk } from "../../src/engine/prefill-plan.ts";
import fc from "fast-check";
import type { StepRecord } from "../../src/engine/trace.ts";
import { h200Table, plainFactor, runVirtual } from "./virtual-h200.ts";

const rates = [0.947, 0.812, 0.65];
const pairTable = { ...h200Table, stepMs: h200Table.stepMs.map((row) => row.map((ms, k) => ms * (k === 0 ? plainFactor : 1))) };
const load = { concurrency: 16, nRequests: 96, maxTokens: 128 };

describe("sixteen streams on a virtual H200", () => {
  const plain = runVirtual({ nMax: 0, prefillWaitMs: 100 }, load, () => rates, { isPinned: true });
  const drafted = runVirtual({ nMax: 2, gate: "fixed", pad: true, prefillWaitMs: 100 }, load, () => rates, { isPinned: true });
  const hasty = runVirtual({ nMax: 2, gate: "fixed", pad: true, prefillWaitMs: 0 }, load, () => rates, { isPinned: true });
  const gated = runVirtual({ gate: "adaptive", pad: true, prefillWaitMs: 100 }, load, () => rates, { isPinned: true, hasPlain: true, table: pairTable });

  test("drafting does not lose to plain decoding without snapshots, prompts included; the gate is near, learning included", () => {
    expect(drafted.tokPerSec).toBeGreaterThan(plain.tokPerSec);
    expect(gated.tokPerSec).toBeGreaterThan(plain.tokPerSec * 0.96);
  });

  test("reading prompts together pays, and nobody waits long for it", () => {
    expect(drafted.tokPerSec).toBeGreaterThan(hasty.tokPerSec * 1.02);
    expect(drafted.ttftP95Ms).toBeLessThan(400);
  });
});

test("requests of different lengths: prompts are read in few forwards beside streams, and no pause is longer than two forwards' fixed cost", () => {
  const steps: StepRecord[] = [];
  const run = runVirtual({ nMax: 0, prefillWaitMs: 100 }, { concurrency: 8, nRequests: 64, maxTokens: 128, maxTokensSpread: 40 }, () => rates, { isPinned: true, trace: (step) => void steps.push(step) });
  const prefills = steps.filter((s) => s.kind === "prefill").slice(2);
  // Chunks of 128 rows took a second forward for the last 17 rows of nearly every prompt: 0.87 of this rate, twice the wait.
  expect(prefills.length).toBeLessThan(0.7 * 64);
  expect(Math.max(...prefills.map((s) => s.totalMs))).toBeLessThan(2 * h200Table.prefillBaseMs + 20);
  expect(run.ttftP95Ms).toBeLessThan(300);
});

test("the successors of a wave that ends over some steps are read together, though it takes longer than the usual wait", () => {
  const steps: StepRecord[] = [];
  runVirtual({ nMax: 2, gate: "fixed", pad: true, prefillWaitMs: 30 }, { ...load, nRequests: 128 }, () => rates, { isPinned: true, trace: (step) => void steps.push(step) });
  // Eight waves, the first in two forwards; without patience 32.
  expect(steps.filter((s) => s.kind === "prefill").length).toBeLessThan(12);
});

test("a lone user never waits for company", () => {
  const one = runVirtual({ nMax: 0, prefillWaitMs: 100 }, { concurrency: 1, nRequests: 6, maxTokens: 64 }, () => rates);
  expect(one.ttftP95Ms).toBeLessThan(60);
});

test("every prefill plan ends: chunks of equal length within the limits, padding at the end only", () => {
  fc.assert(
    fc.property(fc.array(fc.integer({ min: 1, max: 700 }), { minLength: 1, maxLength: 20 }), fc.integer({ min: 1, max: 512 }), fc.integer({ min: 0, max: 4 }), (lengths, maxRows, maxPad) => {
      let left = [...lengths];
      for (let i = 0; left.length > 0; i++) {
        expect(i).toBeLessThan(20_000);
        const { members, length } = planPrefillChunk(left, maxRows, maxPad);
        expect(members.length).toBeGreaterThan(0);
        expect(length).toBeGreaterThan(0);
        expect(members.length * length).toBeLessThanOrEqual(maxRows);
        for (const m of members) expect((left[m] as number) + maxPad).toBeGreaterThanOrEqual(length);
        left = left.map((n, at) => (members.includes(at) ? n - length : n)).filter((n) => n > 0);
      }
    }),
    { numRuns: 300 },
  );
});

describe("two contexts of the target on the virtual H200", () => {
  const load = (concurrency: number) => ({ concurrency, nRequests: concurrency * 6, maxTokens: 256, maxTokensSpread: 100 });

  test.each([
    [1, [0.01, 0, 0]],
    [4, [0.01, 0, 0]],
    [8, [0.9, 0.6, 0.3]],
    [16, [0.5, 0.3, 0.1]],
  ] as const)("%i streams, rates %j: where drafting does not pay, probes and the head's upkeep cost at most 3 percent of plain decoding without a head", (concurrency, rates) => {
    const plain = runVirtual({ nMax: 0, prefillWaitMs: 100 }, load(concurrency), () => rates, { isPinned: true });
    const gated = runVirtual({ gate: "adaptive", pad: true, prefillWaitMs: 100 }, load(concurrency), () => rates, { isPinned: true, hasPlain: true, table: pairTable });
    expect(gated.tokPerSec / plain.tokPerSec).toBeGreaterThan(0.97);
  });

  test.each([
    [1, 1.4],
    [4, 1.1],
    [8, 0.98],
    [16, 1],
  ])("%i streams, good drafts: %f times plain decoding or more", (concurrency, gain) => {
    const plain = runVirtual({ nMax: 0, prefillWaitMs: 100 }, load(concurrency), () => rates, { isPinned: true });
    const gated = runVirtual({ gate: "adaptive", pad: true, prefillWaitMs: 100 }, load(concurrency), () => rates, { isPinned: true, hasPlain: true, table: pairTable });
    expect(gated.tokPerSec / plain.tokPerSec).toBeGreaterThan(gain);
  });

  test("drafting that begins to pay in mid-run is found and taken up", () => {
    const good = [0.95, 0.81, 0.65] as const;
    const bad = [0.01, 0, 0] as const;
    const run = runVirtual({ gate: "adaptive", pad: true, prefillWaitMs: 100 }, { concurrency: 1, nRequests: 12, maxTokens: 1000 }, (step) => (step < 3000 ? bad : good), { isPinned: true, hasPlain: true, table: pairTable });
    const nLater = run.stepsAtK.reduce((a, b) => a + b, 0) - 3000;
    expect(run.stepsAtK.slice(1).reduce((a, b) => a + b, 0)).toBeGreaterThan(0.85 * nLater);
  });
});
