/** Calibration finds the costs that the backend has, on a clock that decodes move. */
import { expect, test } from "vitest";
import { calibrate, calibrationSizes } from "../../src/engine/calibrate.ts";
import { harness, type Harness } from "./run.ts";

const cost = { target: { baseMs: 5, rowMs: 1 }, head: { baseMs: 0.5, rowMs: 0.1 } };

/** @param onDecode milliseconds that a decode of a target takes besides its rows */
function timed(hasPlain: boolean, onDecode = (): number => cost.target.baseMs): Harness {
  const clock = { now: 0 };
  const h = harness({ nMax: 2, gate: "adaptive" }, { nSeq: 4, nCtxSeq: 512, hasPlain }, { clock: () => (clock.now += 1e-4) });
  const { target, plainTarget, heads } = h.backend;
  for (const [context, { baseMs, rowMs }] of [[target, cost.target], ...(plainTarget === undefined ? [] : [[plainTarget, cost.target] as const]), ...heads.map((head) => [head, cost.head] as const)] as const) {
    const decode = context.decode.bind(context);
    const isHead = heads.some((head) => head === context);
    context.decode = () => {
      clock.now += (isHead ? baseMs : onDecode()) + rowMs * context.rows.n;
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

/** Decodes of a target after the `nTogether`-th of a round cost less: the other engine has stopped. */
function inCompany(nTogether: (round: number) => number): { readonly stepMs: readonly (readonly number[])[]; readonly nOfRound: readonly number[] } {
  const nOfRound: number[] = [];
  const onDecode = (): number => {
    const round = nOfRound.length - 1;
    const n = (nOfRound[round] ?? 0) + 1;
    nOfRound[round] = n;
    return n > nTogether(round) ? 1 : cost.target.baseMs;
  };
  const { stepMs } = calibrate(timed(false, onDecode).engine, { meet: () => void nOfRound.push(0) });
  return { stepMs: stepMs.map((row) => row.map((ms) => Number(ms.toFixed(6)))), nOfRound };
}

test("an engine that is the last of those that met measures nothing of the steps in which it is alone", () => {
  const together = inCompany(() => Infinity);
  const alone = inCompany((round) => (together.nOfRound[round] as number) - 3);
  expect(alone.stepMs).toEqual(together.stepMs);
  expect(inCompany(() => 0).stepMs).not.toEqual(together.stepMs);
});
