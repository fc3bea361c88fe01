import { describe, expect, test } from "vitest";
import { OracleDrafter } from "../../src/engine/drafters/oracle.ts";
import { hashNext } from "../fake-backend.ts";
import { request } from "../request.ts";
import { harness, plainText } from "./run.ts";

const nVocab = 97;
const next = (history: readonly number[]): number => hashNext(history, nVocab);
const prompt = (length: number, seed = 1): number[] => Array.from({ length }, (_, i) => (i * 31 + seed * 17 + 5) % (nVocab - 1));

describe("the oracle", () => {
  const records = [0, 1, 2, 3].map((id) => ({ prompt: prompt(6 + id, id), output: plainText(next, prompt(6 + id, id), 200) }));

  test.each([0, 0.5, 0.9, 1])("rate %d: text exact, acceptance as set", (rate) => {
    const h = harness({ nMax: 3 }, { nSeq: 4, nHeads: 0 }, { drafter: new OracleDrafter(records, rate, nVocab, 5) });
    for (let id = 0; id < 4; id++) h.engine.submit(request(id, prompt(6 + id, id), { maxTokens: 200 }));
    h.runAll();
    for (let id = 0; id < 4; id++) expect(h.tokensOf(id)).toEqual(records[id]?.output);
    const { draft } = h.engine.snapshot();
    expect(Math.abs((draft.acceptedAt[0] as number) / draft.nDrafts - rate)).toBeLessThan(0.08);
  });
});

describe.each([2, 3])("%i heads, a context each", (nHeads) => {
  test.each([1, 2, 3, 4])("n_max %i: text exact; every hidden row belongs to its token (the backend checks it)", (nMax) => {
    const h = harness({ nMax, nRingRows: 64 }, { nSeq: 3, nHeads, isDraftRight: (p, s) => (p * 5 + s) % 4 !== 0 });
    for (let id = 0; id < 5; id++) h.engine.submit(request(id, prompt(3 + id * 7, id), { maxTokens: 40 }));
    h.runAll();
    for (let id = 0; id < 5; id++) expect(h.tokensOf(id)).toEqual(plainText(next, prompt(3 + id * 7, id), 40));
    h.engine.checkIntegrity();
  });

  test("a batch too small for what all sequences lack at once", () => {
    const h = harness({ nMax: 2 }, { nSeq: 4, nHeads, nRows: 16, nUbatch: 16 });
    h.engine.gate.force(0);
    for (let id = 0; id < 4; id++) h.engine.submit(request(id, prompt(4, id), { maxTokens: 40 }));
    for (let i = 0; i < 10; i++) h.engine.step();
    h.engine.gate.force(2);
    h.runAll();
    for (let id = 0; id < 4; id++) expect(h.tokensOf(id)).toEqual(plainText(next, prompt(4, id), 40));
  });

  test("right heads are accepted whole", () => {
    const h = harness({ nMax: nHeads }, { nSeq: 2, nHeads });
    h.engine.submit(request(1, prompt(9), { maxTokens: 1 + 5 * (nHeads + 1) }));
    h.runAll();
    expect(h.finishOf(1).draft).toMatchObject({ nDrafts: 5, nAccepted: 5 * nHeads });
  });
});

describe.each([1, 2])("%i heads", (nHeads) => {
  test("a prompt longer than the ring, read while nothing is drafted: the lost rows are a gap, never other rows", () => {
    const h = harness({ nMax: 2, nRingRows: 16 }, { nSeq: 2, nHeads });
    h.engine.gate.force(0);
    for (let id = 0; id < 2; id++) h.engine.submit(request(id, prompt(60 + id, id), { maxTokens: 40 }));
    for (let i = 0; i < 6; i++) h.engine.step();
    h.engine.gate.force(2);
    h.runAll();
    for (let id = 0; id < 2; id++) expect(h.tokensOf(id)).toEqual(plainText(next, prompt(60 + id, id), 40));
    expect(h.engine.snapshot().draft.nAccepted).toBeGreaterThan(0);
  });
});
