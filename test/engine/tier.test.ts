/** When the target's contexts change, and what the running requests' states cost to copy. */
import { expect, test } from "vitest";
import type { TargetPair } from "../../src/engine/target-pair.ts";
import { Tier } from "../../src/engine/tier.ts";

/** A pair in the rolling context; slots 0..nHeld-1 hold text. Copying one takes 15 ms of the clock. */
function tierWith(nHeld: number): { tier: Tier; moved: number[]; isPlain: () => boolean } {
  let isPlain = false;
  let now = 0;
  const moved: number[] = [];
  const pair = {
    get isPlain() {
      return isPlain;
    },
    use: (on: boolean) => void (isPlain = on),
    lastPosition: (slot: number) => (slot < nHeld ? 150 : -1),
    moveToActive: (slots: readonly number[]) => {
      moved.push(...slots);
      now += 15 * slots.filter((slot) => slot < nHeld).length;
    },
  } as unknown as TargetPair;
  const tier = new Tier(pair, () => now);
  tier.msPerMove = 15;
  return { tier, moved, isPlain: () => isPlain };
}

const slots = [0, 1, 2, 3, 4, 5, 6, 7];

test("between requests a change is free", () => {
  const { tier, moved, isPlain } = tierWith(0);
  tier.choose(0.05, 0, slots);
  expect([isPlain(), moved.length]).toEqual([true, 0]);
});

test("between requests drafting must promise five percent, whatever lies ahead", () => {
  for (const aheadMs of [0, 420]) {
    const { tier, isPlain } = tierWith(0);
    tier.choose(-0.04, 0, slots, aheadMs);
    expect(isPlain()).toBe(true);
    tier.choose(-0.04, 0, slots, aheadMs);
    expect(isPlain()).toBe(true);
    tier.choose(-0.06, 0, slots, aheadMs);
    expect(isPlain()).toBe(false);
  }
});

test("a gain within the noise of probes copies nothing, however long the requests", () => {
  const { tier, isPlain } = tierWith(1);
  for (let i = 0; i < 20; i++) tier.choose(0.003, 7, [0], 7000);
  expect(isPlain()).toBe(false);
});

test("running requests move when the other context would have saved the copies by now", () => {
  const { tier, isPlain } = tierWith(8);
  let nSteps = 0;
  while (!isPlain() && nSteps < 1000) {
    tier.choose(0.05, 30, slots);
    nSteps++;
  }
  // 8 copies of 15 ms, 1.5 ms saved a step.
  expect(nSteps).toBe(80);
});

test("what lies ahead for sure counts: one that was read early does not hold a whole burst, eight do", () => {
  const one = tierWith(1);
  one.tier.choose(0.05, 0, slots, 420);
  expect([one.isPlain(), one.moved]).toEqual([true, slots]);
  const eight = tierWith(8);
  eight.tier.choose(0.05, 0, slots, 420);
  expect(eight.isPlain()).toBe(false);
  const unknown = tierWith(1);
  unknown.tier.choose(0.05, 0, slots);
  expect(unknown.isPlain()).toBe(false);
});
