/** What a long piece of work says on a terminal, in a log file, to the lab, and not at all. */
import { afterEach, beforeEach, expect, test, vi } from "vitest";
import { createProgress } from "../../src/util/progress.ts";

beforeEach(() => void vi.useFakeTimers({ toFake: ["performance"] }));
afterEach(() => {
  vi.useRealTimers();
  vi.unstubAllEnvs();
});

/** Work of two minutes that reports each second. */
function twoMinutes(wish: string, isTTY: boolean): string[] {
  vi.stubEnv("FORETOKEN_PROGRESS", wish);
  const written: string[] = [];
  const progress = createProgress("quantize", { total: 120, stream: { isTTY, columns: 80, write: (text: string) => written.push(text) > 0 } as unknown as NodeJS.WriteStream });
  for (let second = 1; second <= 120; second++) {
    vi.advanceTimersByTime(1000);
    progress.update(second, "blk.3");
  }
  progress.end();
  return written;
}

test("a log file gets a line every half minute, none of short work", () => {
  const lines = twoMinutes("", false);
  expect(lines).toEqual(["quantize  30 of 120 (25%)  1/s  1 min 30 s left  blk.3\n", "quantize  60 of 120 (50%)  1/s  1 min 00 s left  blk.3\n", "quantize  90 of 120 (75%)  1/s  30.0 s left  blk.3\n", "quantize  120 of 120 (100%)  1/s  blk.3\n"]);
});

test("the lab reads a line every five seconds, a quiet run is quiet, a terminal is redrawn and left clean", () => {
  expect(twoMinutes("plain", false)).toHaveLength(24);
  expect(twoMinutes("off", false)).toEqual([]);
  expect(twoMinutes("off", true)).toEqual([]);
  const drawn = twoMinutes("", true);
  expect(drawn).toHaveLength(121);
  expect(drawn.at(-1)).toBe("\r\x1b[2K");
});
