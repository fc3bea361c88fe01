import { describe, expect, test } from "vitest";
import { clientHealth } from "../../src/bench/lag.ts";
import { parseExtraBody, parseLimits } from "../../src/bench/options.ts";
import type { RequestRecord } from "../../src/bench/record.ts";
import { summarize } from "../../src/bench/summarize.ts";

const record = (index: number, at: number, first: number, end: number, nOutput: number): RequestRecord => ({ kind: "request", index, promptId: "p", intendedAtMs: at, sentAtMs: at, contentAtMs: [at + first, at + end], endAtMs: at + end, status: 200, nPrompt: 100, nOutput, nReconnects: 0, finishReason: "stop" });

describe("summarize", () => {
  test("throughput is tokens over the wall time from the first send to the last end", () => {
    const summary = summarize([record(0, 1000, 100, 1100, 11), record(1, 1500, 200, 700, 6)]);
    expect(summary.wallMs).toBe(1200);
    expect(summary.outputTokens).toBe(17);
    expect(summary.outputTokPerSec).toBeCloseTo(17 / 1.2, 9);
    expect(summary.totalTokPerSec).toBeCloseTo(217 / 1.2, 9);
    expect(summary.tpotMs).toMatchObject({ n: 2, mean: 100, p50: 100 });
    expect(summary.ttftMs).toMatchObject({ mean: 150, p50: 150, p95: 195, max: 200 });
    expect(summary.cachedTokens).toBeUndefined();
    expect(summary.finishReasons).toEqual({ stop: 2 });
  });

  test("goodput counts requests within every stated limit", () => {
    const limits = parseLimits(["ttft:150", "tpot:100.5"]);
    const summary = summarize([record(0, 0, 100, 1100, 11), record(1, 0, 200, 700, 6), record(2, 0, 100, 1000, 2)], limits === undefined ? {} : { limits });
    expect(summary.goodput).toEqual({ limits: { ttftMs: 150, tpotMs: 100.5 }, good: 1, requestsPerSec: 1 / 1.1 });
  });

  test("failed requests give no tokens and no latency, but time", () => {
    const failed: RequestRecord = { ...record(1, 0, 10, 4000, 9), failure: { kind: "reset", message: "" } };
    const summary = summarize([record(0, 0, 100, 1100, 11), failed]);
    expect(summary).toMatchObject({ requests: 2, failed: 1, failures: { reset: 1 }, outputTokens: 11, wallMs: 4000 });
    expect(summary.e2elMs?.n).toBe(1);
  });

  test("nothing measured is nothing, not NaN", () => {
    const summary = summarize([]);
    expect(summary.outputTokPerSec).toBe(0);
    expect(JSON.stringify(summary)).not.toContain("null");
  });
});

test("a late client taints its run", () => {
  expect(clientHealth([0.1, 0.2, 0.3], 0.2).warning).toBeUndefined();
  expect(clientHealth(Array.from({ length: 100 }, (_, i) => (i < 90 ? 0 : 40)), 0.9)).toMatchObject({ lagP99Ms: 40, cpuShare: 0.9, warning: expect.stringContaining("40 ms late") as string });
});

test("flags that hold more than a number are checked", () => {
  expect(() => parseLimits(["ttft=3"])).toThrow("--goodput ttft=3: must be");
  expect(parseExtraBody('{"top_k":1}')).toEqual({ top_k: 1 });
  expect(() => parseExtraBody("[1]")).toThrow("must be a JSON object");
});
