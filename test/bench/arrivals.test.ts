import * as fc from "fast-check";
import { describe, expect, test } from "vitest";
import { arrivalTimes, runClosedLoop, runOpenLoop } from "../../src/bench/arrivals.ts";
import type { RequestRecord } from "../../src/bench/record.ts";
import { TurnLimiter } from "../../src/bench/turns.ts";
import { summarize } from "../../src/bench/summarize.ts";
import { mean, standardDeviation } from "../../src/util/stats.ts";
import { VirtualClock } from "./virtual-clock.ts";

describe("arrivalTimes", () => {
  const gaps = (times: readonly number[]): number[] => times.slice(1).map((t, i) => t - (times[i] as number));

  test.each([0.25, 1, 4])("gamma gaps of shape %d: mean 1/rate, coefficient of variation 1/sqrt(shape)", (burstiness) => {
    const g = gaps(arrivalTimes(20_001, 50, burstiness, 3));
    expect(mean(g)).toBeGreaterThan(19);
    expect(mean(g)).toBeLessThan(21);
    expect(standardDeviation(g) / mean(g) / (1 / Math.sqrt(burstiness))).toBeCloseTo(1, 1);
  });

  test("infinite burstiness is a metronome, and a seed gives the same times", () => {
    expect(arrivalTimes(4, 100, Infinity, 1)).toEqual([0, 10, 20, 30]);
    expect(arrivalTimes(9, 3, 1, 7)).toEqual(arrivalTimes(9, 3, 1, 7));
  });
});

describe("runClosedLoop", () => {
  test("never has more in flight than the concurrency, sends each once, keeps the order", async () => {
    await fc.assert(
      fc.asyncProperty(fc.integer({ min: 1, max: 40 }), fc.integer({ min: 1, max: 8 }), fc.array(fc.nat(30), { minLength: 1 }), async (n, concurrency, delays) => {
        const clock = new VirtualClock();
        let inFlight = 0;
        let most = 0;
        const results = await clock.run(
          runClosedLoop(n, concurrency, async (i) => {
            most = Math.max(most, ++inFlight);
            await clock.sleep(delays[i % delays.length] as number);
            inFlight--;
            return i;
          }),
        );
        expect(results).toEqual(Array.from({ length: n }, (_, i) => i));
        expect(most).toBe(Math.min(n, concurrency));
      }),
      { numRuns: 30 },
    );
  });
});

/** One slot, 10 ms a request, and a stall of one second that begins at 500 ms. */
function stallingServer(clock: VirtualClock): (index: number, intendedAtMs?: number) => Promise<RequestRecord> {
  let freeAtMs = 0;
  return async (index, intendedAtMs) => {
    const sentAtMs = clock.now();
    let startMs = Math.max(sentAtMs, freeAtMs);
    if (startMs >= 500 && startMs < 1500) startMs = 1500;
    const endAtMs = startMs + 10;
    freeAtMs = endAtMs;
    await clock.sleepUntil(endAtMs);
    return { kind: "request", index, promptId: "", intendedAtMs: intendedAtMs ?? sentAtMs, sentAtMs, contentAtMs: [endAtMs], endAtMs, nOutput: 1, nReconnects: 0 };
  };
}

describe("coordinated omission", () => {
  const n = 100;
  const times = arrivalTimes(n, 50, Infinity, 1);

  test("a closed loop asks less while the server stalls: one bad request of a hundred", async () => {
    const clock = new VirtualClock();
    const records = await clock.run(runClosedLoop(n, 1, stallingServer(clock)));
    expect(summarize(records).ttftMs?.p90).toBe(10);
    expect(records.filter((r) => r.endAtMs - r.sentAtMs > 100)).toHaveLength(1);
  });

  test("an open loop counts from the intended time, so every request the stall hit shows it", async () => {
    const clock = new VirtualClock();
    const records = await clock.run(runOpenLoop(times, clock, stallingServer(clock)));
    const summary = summarize(records);
    // Requests due every 20 ms from 500 ms on wait for 1500 ms and then for those before them: 10 ms each.
    expect(summary.ttftMs?.max).toBe(1010);
    expect(records.filter((r) => r.endAtMs - r.intendedAtMs > 100).length).toBeGreaterThan(70);
    expect(summary.ttftMs?.p50).toBeGreaterThan(200);
  });

  test("a limit on requests in flight does not hide the wait: it is in the latency, and send delay says why", async () => {
    const clock = new VirtualClock();
    const records = await clock.run(runOpenLoop(times, clock, stallingServer(clock), { maxInFlight: 1 }));
    const summary = summarize(records);
    expect(summary.ttftMs?.max).toBe(1010);
    expect(summary.sendDelayMs?.max).toBeGreaterThan(900);
    // What a client would report that takes the time it happened to send as the start:
    const naive = summarize(records.map((r) => ({ ...r, intendedAtMs: r.sentAtMs })));
    expect(naive.ttftMs?.p95).toBe(10);
  });
});

test("at most so many requests begin in one turn of the event loop, and all begin", async () => {
  const turns = new TurnLimiter(3);
  let turn = 0;
  let isRunning = true;
  const count = (): void => {
    turn++;
    if (isRunning) setImmediate(count);
  };
  setImmediate(count);
  const beganIn = await Promise.all(Array.from({ length: 10 }, async () => (await turns.enter(), turn)));
  isRunning = false;
  const perTurn = new Map<number, number>();
  for (const t of beganIn) perTurn.set(t, (perTurn.get(t) ?? 0) + 1);
  expect(Math.max(...perTurn.values())).toBeLessThanOrEqual(3);
  expect(beganIn).toHaveLength(10);
});
