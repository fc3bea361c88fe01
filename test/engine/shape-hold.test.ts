import { describe, expect, test } from "vitest";
import { DecodeError } from "../../src/engine/backend.ts";
import { randomOperations } from "../../bench/random-operations.ts";
import type { StepRecord } from "../../src/engine/trace.ts";
import { hashNext } from "../fake-backend.ts";
import { request } from "../request.ts";
import { harness, plainText } from "./run.ts";

const nVocab = 97;
const next = (history: readonly number[]): number => hashNext(history, nVocab);
const prompt = (length: number, seed = 1): number[] => Array.from({ length }, (_, i) => (i * 31 + seed * 17 + 5) % (nVocab - 1));

function holding(nMax: number, nSeq: number, changeMs = 1) {
  const steps: StepRecord[] = [];
  const h = harness(
    { nMax, pad: true, decodeLast: true, holdShape: true },
    { nSeq, isAsynchronous: true, isDraftRight: (p, s) => (p * 7 + s) % 3 !== 0 },
    { trace: (record) => void steps.push(record) },
  );
  h.engine.shape.changeMs = changeMs;
  return { ...h, steps };
}

describe("a prompt's last token", () => {
  test("is read with the prompt by one sequence alone: nobody gains by its waiting", () => {
    const h = holding(2, 2);
    for (const id of [1, 2, 3]) {
      h.engine.submit(request(id, prompt(9, id), { maxTokens: 7 }));
      h.runAll();
    }
    expect(h.steps.filter((s) => s.kind === "prefill").map((s) => [s.nRows, s.nOutputs])).toEqual([[9, 1], [9, 1], [9, 1]]);
  });

  test("is read with the prompt where the shape changes anyway: the first tokens come sooner", () => {
    const h = holding(2, 4);
    for (const id of [1, 2, 3]) h.engine.submit(request(id, prompt(9, id), { maxTokens: 7 }));
    h.runAll();
    expect(h.steps.find((s) => s.kind === "prefill")).toMatchObject({ nRows: 27, nOutputs: 3 });
  });

  test("a prompt of one token, and one whose history ends before its last token, need no forward without outputs", () => {
    const h = holding(1, 1);
    for (const [id, length] of [1, 2, 3].entries()) {
      h.engine.submit(request(id, prompt(length, id), { maxTokens: 5 }));
      h.runAll();
      expect(h.tokensOf(id)).toEqual(plainText(next, prompt(length, id), 5));
    }
  });
});

describe("the slot of a request that ended", () => {
  const decodes = (steps: readonly StepRecord[]) => steps.filter((s) => s.kind === "decode").map((s) => [s.nSeqs, s.nGhosts]);

  test("is decoded on, says nothing, and is taken by the next request, which finds the shape", () => {
    const h = holding(2, 4);
    for (const id of [1, 2, 3]) h.engine.submit(request(id, prompt(9, id), { maxTokens: id === 2 ? 9 : 40 }));
    while (h.events.every((e) => e.kind !== "finish")) h.engine.step();
    h.engine.step();
    expect(h.engine.snapshot().slots.filter((s) => s.phase !== "idle")).toHaveLength(2);
    h.engine.submit(request(4, prompt(12, 4), { maxTokens: 20 }));
    h.runAll();
    for (const [id, n] of [[1, 40], [2, 9], [3, 40]] as const) expect(h.tokensOf(id)).toEqual(plainText(next, prompt(9, id), n));
    expect(h.tokensOf(4)).toEqual(plainText(next, prompt(12, 4), 20));
    expect(h.finishOf(4).usage).toEqual({ nPrompt: 12, nCached: 0, nOutput: 20 });
    expect(h.finishOf(4).timings.prefillMs).toBeGreaterThan(0);
    expect(h.engine.snapshot().nPromptTokens).toBe(39);
    expect(h.events.filter((e) => e.kind === "start").map((e) => e.slot)).toEqual([0, 1, 2, 1]);
    const shapes = decodes(h.steps);
    const first = shapes.findIndex(([, nGhosts]) => nGhosts === 1);
    expect(first).toBeGreaterThan(0);
    // Up to the end of the next request: three sequences in every step, the new prompt read without outputs.
    expect(shapes.slice(0, first + 4).every(([nSeqs]) => nSeqs === 3)).toBe(true);
    expect(h.steps.filter((s) => s.kind === "prefill").map((s) => s.nOutputs)).toEqual([3, 0]);
    // Ghosts are no work: neither counted nor emitted.
    expect(h.engine.snapshot().nOutputTokens).toBe(109);
    h.engine.checkIntegrity();
  });

  test("is left when a decode is refused: only requests end with an error", () => {
    const h = holding(2, 4, 1000);
    for (const id of [1, 2, 3]) h.engine.submit(request(id, prompt(9, id), { maxTokens: id === 2 ? 9 : 400 }));
    while (!h.steps.some((s) => s.nGhosts === 1)) h.engine.step();
    const decode = h.backend.target.decode.bind(h.backend.target);
    h.backend.target.decode = () => {
      h.backend.target.decode = decode;
      throw new DecodeError(1, "no room");
    };
    h.runAll();
    for (const id of [1, 3]) expect(h.finishOf(id)).toMatchObject({ reason: "error", message: "no room" });
    expect(h.finishOf(2).reason).toBe("length");
    h.engine.checkIntegrity();
  });

  test("is not decoded on when it ends in the step that is refused half way", () => {
    const steps: StepRecord[] = [];
    // Two sequences of four rows fill a forward: three sequences are two decodes.
    const h = harness({ nMax: 3, holdShape: true }, { nSeq: 4, nUbatch: 8, nRows: 64, isAsynchronous: true }, { trace: (record) => void steps.push(record) });
    h.engine.shape.changeMs = 1000;
    for (const id of [1, 2, 3]) h.engine.submit(request(id, prompt(5, id), { maxTokens: id === 1 ? 9 : 400 }));
    const decode = h.backend.target.decode.bind(h.backend.target);
    h.backend.target.decode = () => {
      const ended = h.engine.slots.sequences.some((s) => s.finish !== undefined && s.request !== undefined);
      if (ended) throw new DecodeError(1, "no room");
      decode();
    };
    while (h.events.every((e) => e.kind !== "finish")) h.engine.step();
    h.backend.target.decode = decode;
    h.runAll();
    expect(h.finishOf(1)).toMatchObject({ reason: "length", usage: { nOutput: 9 } });
    for (const id of [2, 3]) expect(h.finishOf(id)).toMatchObject({ reason: "error", message: "no room" });
    h.engine.checkIntegrity();
  });

  test("that never was in a decode step is not decoded on: it would change the shape", () => {
    const h = holding(2, 4, 1000);
    for (const id of [1, 2]) h.engine.submit(request(id, prompt(9, id), { maxTokens: 60 }));
    for (let i = 0; i < 6; i++) h.engine.step();
    h.engine.submit(request(3, prompt(9, 3), { maxTokens: 1 }));
    h.runAll();
    expect(h.steps.filter((s) => s.kind === "decode").every((s) => s.nSeqs <= 2)).toBe(true);
  });

  test("is given up when it has cost what a change of shape costs", () => {
    const h = holding(2, 4, 0.3);
    for (const id of [1, 2, 3]) h.engine.submit(request(id, prompt(9, id), { maxTokens: id === 2 ? 9 : 400 }));
    h.runAll();
    const nGhostSteps = h.steps.filter((s) => s.nGhosts > 0).length;
    expect(nGhostSteps).toBeGreaterThan(0);
    expect(nGhostSteps).toBeLessThan(20);
  });

  test("is not decoded on where nobody takes freed slots, where the price is unknown, or alone", () => {
    const unknown = holding(2, 4, 0);
    for (const id of [1, 2, 3]) unknown.engine.submit(request(id, prompt(9, id), { maxTokens: 5 + id * 3 }));
    unknown.runAll();
    const alone = holding(2, 4);
    alone.engine.submit(request(1, prompt(9), { maxTokens: 12 }));
    alone.runAll();
    for (const h of [unknown, alone]) expect(h.steps.every((s) => s.nGhosts === 0)).toBe(true);
    const drained = holding(2, 4, 1000);
    for (let round = 0; round < 12; round++) {
      for (const id of [1, 2, 3]) drained.engine.submit(request(round * 4 + id, prompt(9, id), { maxTokens: 20 + id * 5 }));
      drained.runAll();
      drained.clock.now += 1000;
    }
    const perRound = drained.steps.filter((s) => s.nGhosts > 0).length / 12;
    expect(perRound).toBeLessThan(6);
  });
});

test.each([
  { gate: "fixed", nHeads: 1, hasPlain: false, isUnified: true },
  { gate: "adaptive", nHeads: 1, hasPlain: true, isUnified: true },
  { gate: "fixed", nHeads: 2, hasPlain: false, isUnified: false },
] as const)("10,000 random operations with ghosts, %j: one end each, slots and contexts agree", ({ gate, ...fake }) => {
  let nGhosts = 0;
  const counts = randomOperations(
    (sink) => {
      const h = harness(
        { gate, nMax: 3, nRingRows: 64, pad: true, decodeLast: true, holdShape: true, maxQueue: 1e6 },
        { nSeq: 5, nCtxSeq: 256, isAsynchronous: true, isDraftRight: (p, s) => (p * 7 + s) % 5 > 1, ...fake },
        { sink, trace: (record) => void (nGhosts += record.nGhosts) },
      );
      h.engine.shape.changeMs = 1;
      return h.engine;
    },
    10_000,
    11,
    3,
  );
  expect(counts.nSubmitted).toBeGreaterThan(1000);
  expect(nGhosts).toBeGreaterThan(100);
});
