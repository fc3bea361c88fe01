import { describe, expect, test } from "vitest";
import { Arrivals } from "../../src/engine/arrivals.ts";
import { schedule, type ScheduleInput } from "../../src/engine/scheduler.ts";
import { request } from "../request.ts";
import { harness } from "./run.ts";

const waiting: ScheduleInput = {
  prefillLeft: [145],
  isFreshPrefill: true,
  nDecoding: 0,
  nStreaming: 0,
  nFreeSlots: 15,
  waitedMs: 1,
  decodeCreditMs: 0,
  maxRows: 2560,
  maxPad: 0,
  maxRowsWhileStreaming: 512,
  holdBack: { maxWaitMs: 100, arrivalMs: Infinity, forwardBaseMs: 40, marginalShare: 0.2 },
  sinceArrivalMs: 1,
  burstSize: 1,
  nExpected: 0,
};
const kind = (more: Partial<ScheduleInput>): string => schedule({ ...waiting, ...more }).kind;

describe("an idle engine with a prompt to read", () => {
  test("waits for the rest of a burst, not where requests come alone", () => {
    expect(kind({})).toBe("prefill");
    expect(kind({ burstSize: 16 })).toBe("gather");
    expect(kind({ burstSize: 16, sinceArrivalMs: 11 })).toBe("prefill");
    expect(kind({ burstSize: 16, waitedMs: 41 })).toBe("prefill");
    expect(kind({ burstSize: 16, nFreeSlots: 0 })).toBe("prefill");
  });

  test("a burst that has its usual size may have grown: it waits as long as requests still come one upon the other", () => {
    const eight = Array.from({ length: 8 }, () => 145);
    expect(kind({ prefillLeft: eight, burstSize: 8, sinceArrivalMs: 2 })).toBe("gather");
    expect(kind({ prefillLeft: eight, burstSize: 8, sinceArrivalMs: 4 })).toBe("prefill");
  });

  test("never waits when told so, or where a shared forward saves nothing", () => {
    expect(kind({ burstSize: 16, nExpected: 2, holdBack: { ...waiting.holdBack, maxWaitMs: 0 } })).toBe("prefill");
    expect(kind({ burstSize: 16, nExpected: 2, holdBack: { ...waiting.holdBack, forwardBaseMs: 0 } })).toBe("prefill");
  });

  test("waits for clients whose requests have just ended, however long the first has waited", () => {
    expect(kind({ nExpected: 2, waitedMs: 90, sinceArrivalMs: 50 })).toBe("gather");
    expect(kind({ nExpected: 2, nFreeSlots: 0 })).toBe("prefill");
  });
});

describe("a prompt beside running streams", () => {
  const beside = (more: Partial<ScheduleInput>, hold: Partial<ScheduleInput["holdBack"]> = {}): string => kind({ nDecoding: 15, nStreaming: 15, holdBack: { ...waiting.holdBack, arrivalMs: 60, ...hold }, ...more });

  test("waits for company where a shared forward saves more, at most so long, and not when it has been begun", () => {
    expect(beside({})).toBe("decode");
    expect(beside({ waitedMs: 100 })).toBe("prefill");
    expect(beside({ isFreshPrefill: false })).toBe("prefill");
    expect(beside({}, { arrivalMs: Infinity })).toBe("prefill");
    expect(beside({}, { maxWaitMs: 0 })).toBe("prefill");
    expect(beside({}, { marginalShare: 1, arrivalMs: 5000 })).toBe("prefill");
  });

  test("waits where all slots are taken if one becomes free in time", () => {
    expect(beside({ nFreeSlots: 0 })).toBe("decode");
    expect(beside({ nFreeSlots: 0, waitedMs: 41 })).toBe("prefill");
    expect(beside({ nFreeSlots: 0 }, { arrivalMs: 1800 })).toBe("prefill");
    // With a free slot anybody may come at any time.
    expect(beside({ nFreeSlots: 1 }, { arrivalMs: 1800 })).toBe("decode");
  });
});

describe("clients that send the next request when one ends", () => {
  function closedLoop(nRequests: number, turnMs = 2): { arrivals: Arrivals; now: number } {
    const arrivals = new Arrivals();
    let now = 0;
    for (let i = 0; i < nRequests; i++) {
      arrivals.noteFinish((now += 500));
      arrivals.noteArrival((now += turnMs));
    }
    return { arrivals, now };
  }

  test("are expected for some milliseconds after an end, once they have shown it", () => {
    const { arrivals, now } = closedLoop(12);
    arrivals.noteFinish(now + 100);
    arrivals.noteFinish(now + 101);
    expect(arrivals.nExpected(now + 102)).toBe(2);
    arrivals.noteArrival(now + 103);
    expect(arrivals.nExpected(now + 104)).toBe(1);
    expect(arrivals.nExpected(now + 120)).toBe(0);
  });

  test("are waited for as long as they take on a busy machine, but not for those who think first", () => {
    const isExpected = (turnMs: number, afterMs: number): boolean => {
      const { arrivals, now } = closedLoop(40, turnMs);
      arrivals.noteFinish(now + 100);
      return arrivals.nExpected(now + 100 + afterMs) === 1;
    };
    expect([isExpected(2, 14), isExpected(2, 16)]).toEqual([true, false]);
    expect([isExpected(20, 45), isExpected(20, 51)]).toEqual([true, false]);
    expect([isExpected(100, 14), isExpected(100, 16)]).toEqual([true, false]);
  });

  test("a client that left is waited for once, not before each request of the one that stays", () => {
    const h = harness({ prefillWaitMs: 100 }, { nSeq: 2 });
    h.engine.planner.prefillCost = { baseMs: 40, rowMs: 0.1 };
    let id = 0;
    const ask = (n: number): number => {
      const startMs = h.clock.now;
      for (let i = 0; i < n; i++) h.engine.submit(request(id++, [1, 2, 3], { maxTokens: 3 }));
      h.runAll();
      return h.clock.now - startMs;
    };
    for (let round = 0; round < 40; round++) ask(2);
    const waits = Array.from({ length: 8 }, () => ask(1));
    expect(waits[0]).toBeGreaterThan(10);
    expect(Math.max(...waits.slice(2))).toBeLessThan(3);
  });

  test("are not expected before that, nor where nobody follows", () => {
    const fresh = new Arrivals();
    fresh.noteFinish(1);
    expect(fresh.nExpected(2)).toBe(0);
    const { arrivals, now } = closedLoop(12);
    for (let i = 1; i <= 12; i++) {
      arrivals.noteFinish(now + i * 1000);
      arrivals.refillShare(now + i * 1000 + 500);
    }
    arrivals.noteFinish(now + 13_000);
    expect(arrivals.nExpected(now + 13_001)).toBe(0);
  });
});
