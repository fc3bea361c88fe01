/** Calibration finds the costs that the backend has, on a clock that decodes move. */
import { expect, test } from "vitest";
import { calibrate, calibrationSizes } from "../../src/engine/calibrate.ts";
import { harness, type Harness } from "./run.ts";

const cost = { target: { baseMs: 5, rowMs: 1 }, head: { baseMs: 0.5, rowMs: 0.1 } };

function timed(hasPlain: boolean): Harness {
  const clock = { now: 0 };
  const h = harness({ nMax: 2, gate: "adaptive" }, { nSeq: 4, nCtxSeq: 512, hasPlain }, { clock: () => (clock.now += 1e-4) });
  const { target, plainTarget, heads } = h.backend;
  for (const [context, { baseMs, rowMs }] of [[target, cost.target], ...(plainTarget === undefined ? [] : [[plainTarget, cost.target] as const]), ...heads.map((head) => [head, cost.head] as const)] as const) {
    const decode = context.decode.bind(context);
    context.decode = () => {
      clock.now += baseMs + rowMs * context.rows.n;
      decode();
    };
  }
  return h;
}

test("sizes are powers of two and the number of slots", () => {
  expect([1, 4, 6, 16].map(calibrationSizes)).toEqual([[1], [1, 2, 4], [1, 2, 4, 6], [1, 2, 4, 8, 16]]);
});

test.each([false, true])("the table is the backend's cost (two contexts: %s)", (hasPlain) => {
  const { stepMs, nSeqs, moveMs, prefillBaseMs, prefillRowMs } = calibrate(timed(hasPlain).engine);
  expect(nSeqs).toEqual([1, 2, 4]);
  for (const [i, n] of nSeqs.entries()) {
    for (const k of [0, 1, 2]) {
      const ms = stepMs[i]?.[k] as number;
      expect(ms).toBeGreaterThanOrEqual(5 + n * (k + 1) + k * 0.5);
      // Fused drafts bring the rows accepted since the last step along.
      expect(ms).toBeLessThan(5 + n * (k + 1) + k * (0.5 + 0.1 * n * 3) + 0.1);
    }
  }
  expect(prefillBaseMs).toBeGreaterThan(4);
  expect(prefillBaseMs).toBeLessThan(8);
  expect(prefillRowMs).toBeGreaterThan(0.99);
  expect(prefillRowMs).toBeLessThan(1.2);
  expect(moveMs > 0).toBe(hasPlain);
});
