/** What the scheduler is worth end to end, on the virtual H200: closed-loop clients, prompts of 145 tokens. */
import { describe, expect, test } from "vitest";
import { planPrefillChunk } from "../../src/engine/prefill-plan.ts";
import fc from "fast-check";
import { runVirtual } from "./virtual-h200.ts";

const rates = [0.947, 0.812, 0.65];
const load = { concurrency: 16, nRequests: 96, maxTokens: 128 };

describe("sixteen streams on a virtual H200", () => {
  const plain = runVirtual({ nMax: 0, prefillWaitMs: 100 }, load, () => rates, { isPinned: true });
  const drafted = runVirtual({ nMax: 2, gate: "fixed", pad: true, prefillWaitMs: 100 }, load, () => rates, { isPinned: true });
  const hasty = runVirtual({ nMax: 2, gate: "fixed", pad: true, prefillWaitMs: 0 }, load, () => rates, { isPinned: true });
  const gated = runVirtual({ gate: "adaptive", pad: true, prefillWaitMs: 100 }, load, () => rates, { isPinned: true });

  test("drafting beats plain decoding, and the gate does not lose to it", () => {
    expect(drafted.tokPerSec).toBeGreaterThan(plain.tokPerSec * 1.02);
    expect(gated.tokPerSec).toBeGreaterThan(plain.tokPerSec);
  });

  test("reading prompts together pays, and nobody waits long for it", () => {
    expect(drafted.tokPerSec).toBeGreaterThan(hasty.tokPerSec * 1.02);
    expect(drafted.ttftP95Ms).toBeLessThan(400);
  });
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
