import fc from "fast-check";
import { describe, expect, test } from "vitest";
import { DecodeError } from "../../src/engine/backend.ts";
import { CostTable } from "../../src/engine/cost-table.ts";
import { createDraftTimes } from "../../src/engine/drafters/drafter.ts";
import type { Sequence } from "../../src/engine/sequence.ts";
import type { StepRecord } from "../../src/engine/trace.ts";
import { hashNext } from "../fake-backend.ts";
import { request } from "../request.ts";
import { harness, plainText } from "./run.ts";

const nVocab = 97;
const next = (history: readonly number[]): number => hashNext(history, nVocab);
const prompt = (length: number, seed = 1): number[] => Array.from({ length }, (_, i) => (i * 31 + seed * 17 + 5) % (nVocab - 1));

const modes = [
  { verify: "batched", catchup: "fused" },
  { verify: "batched", catchup: "immediate" },
  { verify: "batched", catchup: "deferred" },
  { verify: "batched", catchup: "deferred-batched" },
  { verify: "batched", catchup: "fused", pad: true },
  { verify: "by-depth", catchup: "fused" },
  { verify: "sequential", catchup: "fused" },
] as const;

describe.each(modes)("$verify verification, $catchup catch-up, pad $pad", (mode) => {
  test.each([0, 1, 2, 3, 4])("n_max %i gives the text of plain decoding whatever the head proposes", (nMax) => {
    const h = harness({ ...mode, nMax }, { nSeq: 4, isDraftRight: (position, seq) => (position * 7 + seq) % 3 !== 0 });
    for (let id = 0; id < 7; id++) h.engine.submit(request(id, prompt(3 + id * 4, id), { maxTokens: 20 + id }));
    h.runAll();
    for (let id = 0; id < 7; id++) {
      expect(h.tokensOf(id)).toEqual(plainText(next, prompt(3 + id * 4, id), 20 + id));
      expect(h.finishOf(id)).toMatchObject({ reason: "length", usage: { nPrompt: 3 + id * 4, nOutput: 20 + id } });
    }
    h.engine.checkIntegrity();
  });

  test("acceptance counts are those of the script", () => {
    const h = harness({ ...mode, nMax: 3 }, { nSeq: 2, isDraftRight: (position) => position % 4 !== 1 });
    h.engine.submit(request(1, prompt(5), { maxTokens: 41 }));
    h.runAll();
    // The first token comes from the prompt. A draft after token p is right unless p % 4 = 1 (p counts known tokens).
    const expected = { nDrafts: 0, nDrafted: 0, nAccepted: 0 };
    for (let known = 6; known < 46; ) {
      let accepted = 0;
      while (accepted < 3 && (known + accepted) % 4 !== 1) accepted++;
      expected.nDrafts++;
      expected.nDrafted += 3;
      expected.nAccepted += Math.min(accepted, 46 - known);
      known += accepted + 1;
    }
    expect(h.finishOf(1).draft).toMatchObject(expected);
  });
});

describe("a decode step", () => {
  const shapes = (h: ReturnType<typeof harness>, role: "target" | "head") =>
    h.backend.log.filter((d) => d.role === role).map((d) => d.rows.reduce((counts, r) => counts.set(r.seq, (counts.get(r.seq) ?? 0) + 1), new Map<number, number>()));

  test("decodes the same number of rows for every sequence, one forward, also near max_tokens", () => {
    const h = harness({ nMax: 3 }, { nSeq: 8, isDraftRight: (p, s) => (p + s) % 2 === 0 });
    for (let id = 0; id < 8; id++) h.engine.submit(request(id, prompt(12, id), { maxTokens: 10 + id }));
    h.runAll();
    for (const shape of shapes(h, "target").slice(1)) expect(new Set(shape.values())).toEqual(new Set([4]));
    expect(h.backend.log.filter((d) => d.role === "target").every((d) => d.nForwards === 1)).toBe(true);
  });

  test("fused catch-up costs n_max head decodes a step and feeds no rejected row", () => {
    const h = harness({ nMax: 2 }, { nSeq: 1, isDraftRight: () => false });
    h.engine.submit(request(1, prompt(6), { maxTokens: 11 }));
    h.runAll();
    const head = h.backend.log.filter((d) => d.role === "head");
    // One to read the prompt, then two for each of the ten steps after the first token.
    expect(head).toHaveLength(1 + 2 * 10);
    const firstOfStep = head.slice(1).filter((_, i) => i % 2 === 0);
    for (const decode of firstOfStep) expect(decode.rows).toHaveLength(1);
  });

  test("padding gives every head decode the same shape", () => {
    const h = harness({ nMax: 3, pad: true }, { nSeq: 3, isDraftRight: (p, s) => (p * 3 + s) % 5 > 1 });
    for (let id = 0; id < 3; id++) h.engine.submit(request(id, prompt(9, id), { maxTokens: 30 }));
    h.runAll();
    const decodes = h.backend.log.filter((d) => d.role === "head" && d.rows.some((r) => r.wantsOutput) && new Set(d.rows.map((r) => r.seq)).size === 3);
    const signature = (d: (typeof decodes)[number]): string => d.rows.map((r) => `${r.seq}${r.wantsOutput ? "!" : ""}`).join(" ");
    expect(new Set(decodes.map(signature)).size).toBe(1);
  });

  test("without draft it is plain decoding: one row a sequence and no head decode", () => {
    const h = harness({ nMax: 3 }, { nSeq: 2 });
    h.engine.submit(request(1, prompt(6), { maxTokens: 20, nMax: 0 }));
    h.engine.submit(request(2, prompt(6, 2), { maxTokens: 20, nMax: 0 }));
    h.runAll();
    expect(h.finishOf(1).draft.nDrafts).toBe(0);
    expect(h.engine.totals.stepsAtK).toEqual([19, 0, 0, 0]);
  });

  test("a request that declines speculation keeps its text and its counts at zero beside one that does not", () => {
    const h = harness({ nMax: 3 }, { nSeq: 2 });
    h.engine.submit(request(1, prompt(6), { maxTokens: 20, nMax: 0 }));
    h.engine.submit(request(2, prompt(6, 2), { maxTokens: 20 }));
    h.runAll();
    expect(h.tokensOf(1)).toEqual(plainText(next, prompt(6), 20));
    expect(h.finishOf(1).draft.nAccepted).toBe(0);
    expect(h.finishOf(2).draft.nAccepted).toBeGreaterThan(10);
  });
});

describe("the end of a request", () => {
  test("max_tokens inside an accepted run: exactly that many tokens, counts without the rest", () => {
    const h = harness({ nMax: 4 });
    h.engine.submit(request(1, prompt(5), { maxTokens: 8 }));
    h.runAll();
    // 1 from the prompt, 5 from a fully accepted step, 2 of the next.
    expect(h.tokensOf(1)).toEqual(plainText(next, prompt(5), 8));
    expect(h.finishOf(1)).toMatchObject({ reason: "length", draft: { nDrafts: 2, nDrafted: 8, nAccepted: 6 } });
  });

  test("end of generation inside an accepted run: nothing after it, reason stop", () => {
    const text = plainText(next, prompt(5), 30);
    const eog = text[9] as number;
    const first = text.indexOf(eog);
    const h = harness({ nMax: 4 }, { endOfGeneration: eog });
    h.engine.submit(request(1, prompt(5), { maxTokens: 30 }));
    h.engine.submit(request(2, prompt(5), { maxTokens: 30, ignoreEos: true }));
    h.runAll();
    expect(h.tokensOf(1)).toEqual(text.slice(0, first));
    expect(h.finishOf(1).reason).toBe("stop");
    expect(h.tokensOf(2)).toEqual(text);
  });

  test("a stop string over token borders inside an accepted run ends at the token that completes it", () => {
    const text = plainText(next, prompt(5), 30);
    const letters = text.map((t) => String.fromCharCode(97 + (t % 26)));
    const stop = letters.slice(6, 9).join("");
    const at = letters.join("").indexOf(stop) + stop.length;
    const h = harness({ nMax: 4 });
    h.engine.submit(request(1, prompt(5), { maxTokens: 30, stop: ["never there", stop] }));
    h.runAll();
    expect(h.tokensOf(1)).toEqual(text.slice(0, at));
    expect(h.finishOf(1)).toMatchObject({ reason: "stop", stopString: stop });
  });

  test("the end of the context ends with length, and drafts shorten before it", () => {
    const h = harness({ nMax: 3 }, { nSeq: 2, nCtxSeq: 24 });
    h.engine.submit(request(1, prompt(10), { maxTokens: 1000 }));
    h.engine.submit(request(2, prompt(24), { maxTokens: 1000 }));
    h.engine.submit(request(3, prompt(25), { maxTokens: 1000 }));
    h.runAll();
    // 24 positions, of which 10 are prompt: 14 more decode, and the last decode's token needs no position.
    expect(h.finishOf(1)).toMatchObject({ reason: "length", usage: { nOutput: 15 } });
    expect(h.finishOf(2)).toMatchObject({ reason: "length", usage: { nOutput: 1 } });
    expect(h.finishOf(3)).toMatchObject({ reason: "error", usage: { nOutput: 0 } });
    expect(h.finishOf(3).message).toContain("the prompt has 25 tokens, a slot holds 24");
    h.engine.checkIntegrity();
  });

  test("cancel frees the slot at the next step; a queued one cancels only itself", () => {
    const h = harness({ nMax: 2 }, { nSeq: 1 });
    for (const id of [1, 2, 3]) h.engine.submit(request(id, prompt(5, id), { maxTokens: 50 }));
    for (let i = 0; i < 4; i++) h.engine.step();
    h.engine.cancel(2);
    h.engine.cancel(1);
    h.engine.cancel(99);
    h.runAll();
    expect(h.finishOf(1).reason).toBe("abort");
    expect(h.finishOf(2)).toMatchObject({ reason: "abort", usage: { nOutput: 0 } });
    expect(h.tokensOf(3)).toEqual(plainText(next, prompt(5, 3), 50));
  });

  test("a refused decode ends its requests with an error and the engine goes on", () => {
    const h = harness({ nMax: 2 }, { nSeq: 2 });
    h.engine.submit(request(1, [5, 6, 1000], { maxTokens: 5 }));
    h.runAll();
    expect(h.finishOf(1).reason).toBe("error");
    h.engine.submit(request(2, prompt(5), { maxTokens: 5 }));
    h.runAll();
    expect(h.tokensOf(2)).toEqual(plainText(next, prompt(5), 5));
    h.engine.checkIntegrity();
  });
});

test.each(["sequential", "by-depth"] as const)("%s: a decode refused in mid-step ends its requests with an error after the tokens that were written", (verify) => {
  const h = harness({ nMax: 2, verify }, { nSeq: 2 });
  for (const id of [0, 1]) h.engine.submit(request(id, prompt(5, id), { maxTokens: 30 }));
  for (let i = 0; i < 3; i++) h.engine.step();
  const decode = h.backend.target.decode.bind(h.backend.target);
  let n = 0;
  h.backend.target.decode = () => {
    if (++n === 2) throw new DecodeError(1, "no room");
    decode();
  };
  h.runAll();
  for (const id of [0, 1]) {
    const { reason, usage } = h.finishOf(id);
    expect(reason).toBe("error");
    expect(h.tokensOf(id)).toEqual(plainText(next, prompt(5, id), usage.nOutput));
  }
  h.engine.submit(request(2, prompt(5, 2), { maxTokens: 9 }));
  h.runAll();
  expect(h.tokensOf(2)).toEqual(plainText(next, prompt(5, 2), 9));
  h.engine.checkIntegrity();
});

describe("where no acceptance could pay, hidden rows are not kept", () => {
  const hopeless = { nSeqs: [1, 2], stepMs: [[1, 2.5, 4], [2, 5, 8]], changeMs: 0, moveMs: 5, prefillBaseMs: 0, prefillRowMs: 0.1 };
  const paying = { ...hopeless, stepMs: [[1, 1.1, 1.2], [2, 2.2, 2.4]] };

  /** Decodes take the time that the tables say. */
  function timed(config: Parameters<typeof harness>[0], nSeq: number): ReturnType<typeof harness> {
    let now = 0;
    const h = harness({ gate: "adaptive", nMax: 2, ...config }, { nSeq, hasPlain: true }, { clock: () => now });
    for (const context of [h.backend.target, h.backend.plainTarget as NonNullable<typeof h.backend.plainTarget>]) {
      const decode = context.decode.bind(context);
      context.decode = () => {
        const { n, seqs } = context.rows;
        now += 0.9 * new Set(seqs.subarray(0, n)).size + 0.1 * n;
        decode();
      };
    }
    h.engine.gate.useTable(new CostTable(hopeless));
    return h;
  }

  test("the head is never fed, from the first prompt on", () => {
    const h = timed({}, 2);
    for (const id of [0, 1, 2]) h.engine.submit(request(id, prompt(9, id), { maxTokens: 40 }));
    h.runAll();
    for (const id of [0, 1, 2]) expect(h.tokensOf(id)).toEqual(plainText(next, prompt(9, id), 40));
    expect(h.backend.log.filter((d) => d.role === "head")).toHaveLength(0);
  });

  test("when drafting begins to pay in mid-run, only rows that were kept are fed", () => {
    const h = timed({}, 2);
    for (const id of [0, 1]) h.engine.submit(request(id, prompt(9 + id, id), { maxTokens: 100 }));
    for (let i = 0; i < 10; i++) h.engine.step();
    h.engine.gate.useTable(new CostTable(paying));
    h.runAll();
    for (const id of [0, 1]) expect(h.tokensOf(id)).toEqual(plainText(next, prompt(9 + id, id), 100));
    expect(h.engine.snapshot().draft.nAccepted).toBeGreaterThan(10);
  });

  test("a prompt saved without its rows is restored without them", () => {
    const h = timed({ cachePrompt: true, cacheRamBytes: 1e9 }, 1);
    const shared = prompt(100, 4);
    for (const id of [0, 1, 2]) {
      if (id === 2) h.engine.gate.useTable(new CostTable(paying));
      h.engine.submit(request(id, [...shared, ...prompt(9, id)], { maxTokens: 40, cachePrompt: true }));
      h.runAll();
      expect(h.tokensOf(id)).toEqual(plainText(next, [...shared, ...prompt(9, id)], 40));
    }
    expect(h.finishOf(2).usage.nCached).toBe(100);
    expect(h.engine.snapshot().draft.nAccepted).toBeGreaterThan(10);
  });
});

test("a drafter without a head, such as the oracle, is probed by comparison too", () => {
  let now = 0;
  let isGood = false;
  const text = plainText(next, prompt(9), 1600);
  const drafter = {
    draft: (seqs: readonly Sequence[], n: number) => {
      for (const seq of seqs) for (let i = 0; i < n; i++) seq.draft[i] = isGood ? (text[seq.nPast - 8 + i] as number) : 0;
      return n;
    },
    afterVerify: () => {},
    afterPrefill: () => {},
    afterPlain: () => {},
    release: () => {},
    save: () => [],
    restore: () => true,
    times: createDraftTimes(),
  };
  const h = harness({ gate: "adaptive", nMax: 2 }, { nSeq: 1, nCtxSeq: 4096, nHeads: 0 }, { drafter, clock: () => now });
  const decode = h.backend.target.decode.bind(h.backend.target);
  h.backend.target.decode = () => {
    now += 0.9 + 0.1 * h.backend.target.rows.n;
    decode();
  };
  h.engine.gate.useTable(new CostTable({ nSeqs: [1], stepMs: [[1, 1.1, 1.2]], changeMs: 0, moveMs: 0, prefillBaseMs: 0, prefillRowMs: 0.1 }));
  h.engine.submit(request(1, prompt(9), { maxTokens: 1500 }));
  for (let i = 0; i < 200; i++) h.engine.step();
  expect(h.engine.gate.isDrafting).toBe(false);
  isGood = true;
  for (let i = 0; i < 300; i++) h.engine.step();
  expect(h.engine.gate.isDrafting).toBe(true);
  h.runAll();
  expect(h.tokensOf(1)).toEqual(text.slice(0, 1500));
});

test("a head whose drafts are never accepted is fed a hint at each probe, not all that it missed", () => {
  // The clock of the harness does not know these times: the table stays as it is.
  const table = new CostTable({ nSeqs: [1, 2], stepMs: [[1, 1.2, 1.4], [1.5, 1.9, 2.3]], changeMs: 0, moveMs: 5, prefillBaseMs: 0, prefillRowMs: 0.1 }, { learningRate: 0 });
  const h = harness({ gate: "adaptive", nMax: 2, nRingRows: 512 }, { nSeq: 2, nCtxSeq: 2048, hasPlain: true, isDraftRight: () => false });
  h.engine.gate.useTable(table);
  for (const id of [0, 1]) h.engine.submit(request(id, prompt(9 + id, id), { maxTokens: 1500 }));
  for (let i = 0; i < 300; i++) h.engine.step();
  h.backend.log.length = 0;
  for (let i = 0; i < 1000; i++) h.engine.step();
  const head = h.backend.log.filter((d) => d.role === "head");
  expect(head.length).toBeGreaterThan(4);
  // Two sequences: the hint and the pending token, in one decode.
  for (const decode of head) expect(decode.rows.length).toBeLessThanOrEqual(2 * 16);
  h.runAll();
  for (const id of [0, 1]) expect(h.tokensOf(id)).toEqual(plainText(next, prompt(9 + id, id), 1500));
});

describe("synthetic acceptance", () => {
  test("a grammar is refused: set rates would break it", () => {
    const h = harness({ nMax: 2, syntheticRates: [0.9, 0.6] });
    h.engine.submit(request(1, prompt(5), { grammar: 'root ::= "a"' }));
    h.runAll();
    expect(h.finishOf(1)).toMatchObject({ reason: "error", isRefusal: true });
  });

  test("follows the unconditional rates, at any mode, and says so", () => {
    for (const verify of ["batched", "by-depth", "sequential"] as const) {
      const h = harness({ nMax: 2, verify, syntheticRates: [0.9, 0.6], seed: 3 }, { nSeq: 4, nCtxSeq: 4096, isDraftRight: () => false });
      for (let id = 0; id < 4; id++) h.engine.submit(request(id, prompt(5, id), { maxTokens: 2000 }));
      h.runAll(100_000);
      const { draft, isSynthetic } = h.engine.snapshot();
      expect(isSynthetic).toBe(true);
      expect((draft.acceptedAt[0] as number) / draft.nDrafts).toBeCloseTo(0.9, 1);
      expect((draft.acceptedAt[1] as number) / draft.nDrafts).toBeCloseTo(0.6, 1);
    }
  });
});

describe("prefill", () => {
  test("a burst of equal prompts is one forward; every hidden row belongs to its token", () => {
    const h = harness({ nMax: 2 }, { nSeq: 16 });
    for (let id = 0; id < 16; id++) h.engine.submit(request(id, prompt(20, id), { maxTokens: 5 }));
    h.engine.step();
    expect(h.backend.log.filter((d) => d.role === "target")).toHaveLength(1);
    h.runAll();
  });

  test("ragged prompts end in few forwards, each of equal chunks", () => {
    const lengths = [130, 133, 137, 138, 141, 145, 146, 149, 150, 152, 153, 155, 157, 158, 159, 160];
    const h = harness({ nMax: 2 }, { nSeq: 16, nRows: 4096, nUbatch: 4096 });
    for (const [id, length] of lengths.entries()) h.engine.submit(request(id, prompt(length, id), { maxTokens: 1 }));
    h.runAll();
    const target = h.backend.log.filter((d) => d.role === "target");
    expect(target.length).toBeLessThanOrEqual(7);
    expect(target.every((d) => d.nForwards === 1)).toBe(true);
    for (const id of lengths.keys()) expect(h.tokensOf(id)).toHaveLength(1);
  });

  test("a padded prompt stays within the context", () => {
    const h = harness({ nMax: 4, cachePrompt: true }, { nSeq: 2, nCtxSeq: 64 });
    h.engine.submit(request(0, prompt(30), { maxTokens: 3, cachePrompt: true }));
    h.runAll();
    const full = [...prompt(30), ...h.tokensOf(0), ...prompt(31, 2)];
    h.engine.submit(request(1, full, { maxTokens: 5, cachePrompt: true }));
    h.engine.submit(request(2, prompt(35, 3), { maxTokens: 5 }));
    h.runAll();
    expect(h.finishOf(1)).toMatchObject({ reason: "length", usage: { nPrompt: 64, nCached: 33 } });
    expect(h.finishOf(2).reason).toBe("length");
  });

  test("trace: the outputs of a prompt are its last rows only", () => {
    const records: StepRecord[] = [];
    const h = harness({ nMax: 2 }, { nSeq: 2 }, { trace: (record) => void records.push(record) });
    for (const id of [0, 1]) h.engine.submit(request(id, prompt(20, id), { maxTokens: 4 }));
    h.runAll();
    expect(records[0]).toMatchObject({ kind: "prefill", nRows: 40, nOutputs: 2 });
    expect(records[1]).toMatchObject({ kind: "decode", nRows: 6, nOutputs: 6 });
  });

  describe("under a load of short prompts that never lets up", () => {
    const keepBusy = (h: ReturnType<typeof harness>, until: number, maxSteps: number): void => {
      for (let i = 0, id = 100; i < maxSteps && !h.events.some((e) => e.kind === "finish" && e.id === until); i++) {
        while (h.engine.slots.nQueued < 4) h.engine.submit(request(id, prompt(20, id++), { maxTokens: 1 }));
        h.engine.step();
        h.clock.now += 5;
      }
    };

    test("a stream that has its first token goes on", () => {
      const h = harness({}, { nSeq: 2, nHeads: 0 });
      h.engine.submit(request(0, prompt(5), { maxTokens: 30 }));
      keepBusy(h, 0, 500);
      expect(h.finishOf(0).usage.nOutput).toBe(30);
    });

    test("a long prompt is read to its end", () => {
      const h = harness({}, { nSeq: 2, nHeads: 0, nCtxSeq: 4096, nUbatch: 64 });
      h.engine.submit(request(0, prompt(1000), { maxTokens: 1 }));
      keepBusy(h, 0, 500);
      expect(h.finishOf(0).usage.nOutput).toBe(1);
    });
  });

  test("running streams keep at least half their pace while a long prompt is read", () => {
    const h = harness({}, { nSeq: 2, nCtxSeq: 100_000, nUbatch: 64, nHeads: 0 });
    h.engine.submit(request(1, prompt(5), { maxTokens: 5000 }));
    for (let i = 0; i < 5; i++) h.engine.step();
    h.engine.submit(request(2, prompt(3000, 2), { maxTokens: 1 }));
    const before = h.engine.snapshot();
    while (!h.events.some((e) => e.kind === "finish" && e.id === 2)) h.engine.step();
    const after = h.engine.snapshot();
    const decodeMs = after.decodeMs - before.decodeMs;
    const prefillMs = after.prefillMs - before.prefillMs;
    expect(decodeMs).toBeGreaterThanOrEqual(prefillMs * 0.95);
  });
});

/** Layouts in which libllama cuts a decode into several forwards: cells apart (where slots are no neighbours), short forwards. */
const layouts = [{}, { isUnified: false }, { nUbatch: 8 }, { isUnified: false, nUbatch: 8 }] as const;

describe("a draft is rolled back before the next forward, which may move states away from their snapshots", () => {
  test.each(layouts)("%j", (layout) => {
    const h = harness({ nMax: 3, cachePrompt: true }, { nSeq: 5, ...layout, isDraftRight: (p, s) => (p + s) % 3 !== 0 });
    // Slots 1 and 3 empty first and are filled again, so that the others have gaps between them.
    const maxTokens = [40, 6, 38, 9, 41, 7, 30];
    for (const [id, n] of maxTokens.entries()) h.engine.submit(request(id, prompt(9 + (id % 3), id), { maxTokens: n, cachePrompt: id % 2 === 0 }));
    h.runAll();
    h.engine.checkIntegrity();
    const verifies = h.backend.log.filter((d) => d.role === "target" && d.rows.filter((r) => r.wantsOutput).length > 5);
    expect(verifies.length).toBeGreaterThan(5);
    for (const decode of h.backend.log) expect(decode.nForwards).toBe(1);
    for (const [id, n] of maxTokens.entries()) expect(h.tokensOf(id)).toEqual(plainText(next, prompt(9 + (id % 3), id), n));
  });

  test("a decode is cut no more often than libllama cuts it", () => {
    const h = harness({ nMax: 3 }, { nSeq: 6, isUnified: false, isDraftRight: () => false });
    for (let id = 0; id < 6; id++) h.engine.submit(request(id, prompt(8, id), { maxTokens: id === 2 ? 2 : 9 }));
    h.runAll();
    const slots = h.backend.log.filter((d) => d.role === "target").map((d) => [...new Set(d.rows.map((r) => r.seq))].join(""));
    // The burst, one step of all six, then those on either side of slot 2.
    expect(slots.slice(0, 6)).toEqual(["012345", "012345", "01", "345", "01", "345"]);
  });
});

test("random traffic: texts equal plain decoding, slots and contexts agree when idle", () => {
  fc.assert(
    fc.property(
      fc.array(fc.record({ length: fc.integer({ min: 1, max: 40 }), maxTokens: fc.integer({ min: 1, max: 60 }), nMax: fc.option(fc.integer({ min: 0, max: 4 }), { nil: undefined }), cancelAt: fc.option(fc.integer({ min: 0, max: 30 }), { nil: undefined }), gap: fc.integer({ min: 0, max: 4 }) }), { minLength: 1, maxLength: 20 }),
      fc.constantFrom(...modes),
      fc.integer({ min: 0, max: 4 }),
      fc.constantFrom(...layouts),
      (traffic, mode, nMax, layout) => {
        const h = harness({ ...mode, nMax, nRingRows: 16 }, { nSeq: 4, nCtxSeq: 64, ...layout, isDraftRight: (p, s) => (p * 13 + s * 5) % 7 > 2 });
        for (const [id, t] of traffic.entries()) {
          h.engine.submit(request(id, prompt(t.length, id), { maxTokens: t.maxTokens, nMax: t.nMax }));
          for (let i = 0; i < t.gap; i++) h.engine.step();
          for (const [other, o] of traffic.entries()) if (o.cancelAt === id && other < id) h.engine.cancel(other);
        }
        h.runAll();
        h.engine.checkIntegrity();
        for (const [id, t] of traffic.entries()) {
          const finish = h.finishOf(id);
          const tokens = h.tokensOf(id);
          expect(tokens).toHaveLength(finish.usage.nOutput);
          expect(tokens).toEqual(plainText(next, prompt(t.length, id), tokens.length));
          if (finish.reason === "length") expect(tokens).toHaveLength(Math.min(t.maxTokens, 64 - t.length + 1));
        }
      },
    ),
    { numRuns: 300 },
  );
});

test("counters that start anew forget the arrivals of before", () => {
  const h = harness({}, { nSeq: 8, nHeads: 0 });
  for (let id = 0; id < 8; id++) h.engine.submit(request(id, prompt(9, id), { maxTokens: 3 }));
  h.runAll();
  expect(h.engine.slots.arrivals.burstSize).toBe(8);
  h.engine.resetTotals();
  expect(h.engine.slots.arrivals.burstSize).toBe(1);
});
