import { expect, test } from "vitest";
import { randomOperations } from "../../bench/random-operations.ts";
import { CostTable } from "../../src/engine/cost-table.ts";
import type { FakeContext } from "../fake-backend.ts";
import { harness } from "./run.ts";

const table = new CostTable({ nSeqs: [1, 3, 5], stepMs: [[1, 1.1, 1.2, 1.3], [1.5, 2, 2.6, 3.2], [2, 4, 6, 8]], changeMs: 0, moveMs: 5, prefillBaseMs: 0, prefillRowMs: 0.1 });

test("10,000 random operations on two contexts of the target, drafting now and then: one end each, slots and contexts agree", () => {
  let nMoved = 0;
  const counts = randomOperations(
    (sink) => {
      const h = harness({ gate: "adaptive", nMax: 3, nRingRows: 64, cachePrompt: true, cacheRamBytes: 20_000, maxQueue: 1e6 }, { nSeq: 5, nCtxSeq: 256, hasPlain: true, isDraftRight: (p, s) => (p * 7 + s) % 5 > 1 }, { sink });
      h.engine.gate.useTable(table);
      for (const context of [h.backend.target, h.backend.plainTarget as FakeContext]) {
        const save = context.saveSequence.bind(context);
        context.saveSequence = (seq) => {
          nMoved++;
          return save(seq);
        };
      }
      return h.engine;
    },
    10_000,
    7,
    3,
  );
  expect(nMoved).toBeGreaterThan(100);
  expect(counts.nSubmitted).toBeGreaterThan(1000);
});

test.each([
  { nHeads: 1, verify: "batched", gate: "fixed", catchup: "fused", isUnified: true },
  { nHeads: 1, verify: "by-depth", gate: "adaptive", catchup: "deferred-batched", isUnified: true },
  { nHeads: 1, verify: "sequential", gate: "fixed", catchup: "immediate", isUnified: true },
  { nHeads: 2, verify: "batched", gate: "fixed", catchup: "fused", isUnified: true },
  { nHeads: 1, verify: "batched", gate: "fixed", catchup: "fused", isUnified: false },
] as const)("10,000 random operations, %j: one end each, slots and contexts agree", ({ nHeads, isUnified, ...mode }) => {
  const counts = randomOperations(
    (sink) => harness({ ...mode, nMax: 3, nRingRows: 64, cachePrompt: true, cacheRamBytes: 20_000, maxQueue: 1e6 }, { nSeq: 5, nCtxSeq: 256, nHeads, isUnified, isDraftRight: (p, s) => (p * 7 + s) % 5 > 1 }, { sink }).engine,
    10_000,
    nHeads + mode.verify.length,
    3,
  );
  expect(counts.nSubmitted).toBeGreaterThan(1000);
  expect(counts.nCancelled).toBeGreaterThan(200);
  expect(counts.nIdleChecks).toBeGreaterThan(0);
  expect(Object.keys(counts.finished).toSorted()).toEqual(["abort", "length", "stop"]);
});
