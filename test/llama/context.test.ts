import { afterAll, beforeAll, describe, expect, test } from "vitest";
import type { DecodeContext } from "../../src/engine/backend.ts";
import { createBackend, type LlamaBackend } from "../../src/llama/backend.ts";
import { tinyHead, tinyTrunk, tinyWithHead } from "./tiny-model.ts";

const shared = { nSlots: 2, ctxSize: 512, batchSize: 128, nMax: 3, threads: 1, device: "cpu" } as const;
const text = Array.from({ length: 40 }, (_, i) => 5 + ((i * 37 + ((i * i) % 11)) % 900));

interface Fill {
  readonly seq?: number;
  readonly from: number;
  readonly tokens: readonly number[];
  readonly outputs?: "all" | "last";
  readonly hidden?: readonly Float32Array[];
}

function decode(context: DecodeContext, ...fills: Fill[]): void {
  const { rows, nEmbd } = context;
  rows.n = 0;
  for (const { seq = 0, from, tokens, outputs = "last", hidden } of fills)
    tokens.forEach((token, i) => {
      rows.tokens[rows.n] = token;
      rows.positions[rows.n] = from + i;
      rows.seqs[rows.n] = seq;
      rows.outputs[rows.n] = Number(outputs === "all" || i === tokens.length - 1);
      if (hidden !== undefined) rows.hidden.set(hidden[i] as Float32Array, rows.n * nEmbd);
      rows.n++;
    });
  context.decode();
}

function maxDifference(a: Float32Array, b: Float32Array): number {
  let worst = 0;
  for (let i = 0; i < a.length; i++) worst = Math.max(worst, Math.abs((a[i] as number) - (b[i] as number)));
  return worst;
}

describe("rollback and saved states, bit for bit", () => {
  // Own cells for each sequence, one thread, weights not repacked: the same kernels whatever the batch is.
  let backend: LlamaBackend;
  let target: DecodeContext;
  beforeAll(async () => {
    backend = createBackend({ ...shared, nSlots: 4, ctxSize: 1024, modelPath: await tinyTrunk("F32"), kvUnified: false, useExtraBuffers: false });
    ({ target } = backend);
  });
  afterAll(() => backend.close());

  /** Logits after the text, one token a decode. */
  function plain(n: number): Float32Array {
    target.clear(0);
    for (let i = 0; i < n; i++) decode(target, { from: i, tokens: [text[i] as number] });
    return target.logits(0).slice();
  }

  test.each([1, 2, 3])("removing %i of 4 drafted rows leaves the state of never having decoded them", (nRemoved) => {
    const kept = 4 - nRemoved;
    const expected = plain(10 + kept + 1);
    target.clear(0);
    for (let i = 0; i < 10; i++) decode(target, { from: i, tokens: [text[i] as number] });
    const draft = Array.from({ length: 4 }, (_, i) => (i < kept ? (text[10 + i] as number) : 77));
    decode(target, { from: 10, tokens: draft, outputs: "all" });
    expect(target.removeFrom(0, 10 + kept)).toBe(true);
    decode(target, { from: 10 + kept, tokens: [text[10 + kept] as number] });
    const actual = target.logits(0);
    // F32 sums in another order: the wrong state is off by 0.5 and more.
    expect(maxDifference(actual, expected)).toBeLessThan(2e-3);
  });

  test("states out of order: each forward rolled back before the next leaves what was never decoded", () => {
    const expected = plain(12);
    for (const seq of [0, 1, 2, 3]) target.clear(seq);
    // Cells are taken in the order of first decodes. That of sequence 0 now lies among those that the forward of 2 and 3 gathers.
    for (const seq of [2, 0, 3]) decode(target, { seq, from: 0, tokens: text.slice(0, 10) });
    const draft = (seq: number): Fill => ({ seq, from: 10, tokens: [text[10] as number, 77, 78, 79], outputs: "all" });
    decode(target, draft(0));
    expect(target.removeFrom(0, 11)).toBe(true);
    decode(target, draft(2), draft(3));
    for (const seq of [2, 3]) expect(target.removeFrom(seq, 11)).toBe(true);
    for (const seq of [0, 2, 3]) {
      decode(target, { seq, from: 11, tokens: [text[11] as number] });
      // Rolled back after the other forward, sequence 0 is off by 8.
      expect(maxDifference(target.logits(0), expected)).toBeLessThan(2e-3);
    }
  });

  test("a state saved after a rollback is the rolled back state", () => {
    target.clear(0);
    decode(target, { from: 0, tokens: text.slice(0, 8) });
    decode(target, { from: 8, tokens: [text[8] as number, 77, 77], outputs: "all" });
    expect(target.removeFrom(0, 9)).toBe(true);
    const state = target.saveSequence(0);
    decode(target, { from: 9, tokens: [text[9] as number] });
    const expected = target.logits(0).slice();
    expect(target.restoreSequence(1, state)).toBe(true);
    expect(target.lastPosition(1)).toBe(8);
    decode(target, { seq: 1, from: 9, tokens: [text[9] as number] });
    expect(target.logits(0)).toEqual(expected);
    expect(target.removeFrom(1, 9)).toBe(false);
  });
});

describe("chains on the device", () => {
  test("give the host's greedy token and its 64 best candidates", async () => {
    const modelPath = await tinyTrunk();
    using host = createBackend({ ...shared, modelPath });
    using topK = createBackend({ ...shared, modelPath, targetSampling: "device-top-k", nHostSlots: 1 });
    using greedy = createBackend({ ...shared, modelPath, targetSampling: "device-greedy" });
    for (const { target } of [host, topK, greedy]) decode(target, { from: 0, tokens: text.slice(0, 12), outputs: "last" }, { seq: 1, from: 0, tokens: text.slice(4, 8), outputs: "all" });
    for (const row of [11, 12, 13, 14, 15]) {
      const logits = host.target.logits(row);
      const best = [...logits.keys()].toSorted((a, b) => (logits[b] as number) - (logits[a] as number)).slice(0, 64);
      const { n, tokens, logits: values } = topK.target.candidates(row);
      expect(n).toBe(64);
      expect([...tokens].toSorted((a, b) => a - b)).toEqual(best.toSorted((a, b) => a - b));
      tokens.forEach((token, i) => expect(values[i]).toBeCloseTo(logits[token] as number, 3));
      expect(topK.target.greedyToken(row)).toBe(best[0]);
      expect(greedy.target.greedyToken(row)).toBe(best[0]);
    }
    expect(() => topK.target.logits(11)).toThrow("sampled on the device");
    expect(topK.target.samplingOf(2)).toBe("host");
    decode(topK.target, { seq: 2, from: 0, tokens: text.slice(0, 12) }, { seq: 0, from: 12, tokens: [text[12] as number] });
    expect(topK.target.logits(11).length).toBe(4096);
    expect(topK.target.candidates(12).n).toBe(64);
  });
});

describe("heads", () => {
  test("in the target's file and in a file of its own draft alike; several heads give hidden rows to the next", async () => {
    using inFile = createBackend({ ...shared, modelPath: await tinyWithHead(), useHead: true });
    const head = await tinyHead();
    using apart = createBackend({ ...shared, modelPath: await tinyTrunk(), headPaths: [head, head] });
    expect([inFile.heads.length, apart.heads.length]).toEqual([1, 2]);
    const drafts = [inFile, apart].map(({ target, heads: [first] }) => {
      decode(target, { from: 0, tokens: text.slice(0, 6) });
      const zero = new Float32Array(target.nEmbd);
      const hidden = Array.from({ length: 6 }, (_, i) => (i === 0 ? zero : target.hidden(i - 1).slice()));
      decode(first as DecodeContext, { from: 0, tokens: text.slice(0, 6), outputs: "last", hidden });
      return [(first as DecodeContext).greedyToken(5), ...(first as DecodeContext).hidden(5).slice(0, 4)];
    });
    expect(drafts[1]).toEqual(drafts[0]);
    const [first, second] = apart.heads;
    if (first === undefined || second === undefined) throw new Error("two heads were asked for");
    expect(first.hiddenAll().length).toBe(6 * first.nEmbd);
    decode(second, { from: 0, tokens: text.slice(1, 6), hidden: [0, 1, 2, 3, 4].map((i) => first.hidden(i).slice()) });
    expect(second.hidden(4).length).toBe(256);
    expect(() => second.hidden(5)).toThrow("had 5 rows");
    expect(second.limits.nSeq).toBe(apart.target.limits.nSeq + 1);
  });

  test("hidden output can be switched off and on; a draft context may leave positions out", async () => {
    using backend = createBackend({ ...shared, modelPath: await tinyWithHead(), useHead: true });
    const { target } = backend;
    target.setHiddenOutput(false);
    decode(target, { from: 0, tokens: text.slice(0, 3) });
    expect(() => target.hidden(0)).toThrow("hidden output was off");
    target.setHiddenOutput(true);
    decode(target, { from: 3, tokens: text.slice(3, 5) });
    expect(target.hiddenAll().length).toBe(2 * target.nEmbd);
    const [head] = backend.heads;
    if (head === undefined) throw new Error("a head was asked for");
    const zero = [new Float32Array(head.nEmbd)];
    decode(head, { from: 0, tokens: [5], hidden: zero });
    decode(head, { from: 7, tokens: [6], hidden: zero });
    expect(head.lastPosition(0)).toBe(7);
    expect(() => head.setHiddenOutput(false)).toThrow("fixed");
    expect(() => decode(target, { from: 9, tokens: [5] })).toThrow("does not continue it");
  });
});

test("graphs are reused while the shape repeats, and never when reuse is off", async () => {
  const modelPath = await tinyTrunk();
  const reused = [true, false].map((graphReuse) => {
    using backend = createBackend({ ...shared, modelPath, graphReuse });
    for (let i = 0; i < 12; i++) decode(backend.target, { from: i, tokens: [text[i] as number] });
    return backend.target.counters();
  });
  expect(reused.map(({ nDecodes }) => nDecodes)).toEqual([12, 12]);
  expect(reused[0]?.nReusedGraphs).toBeGreaterThan(0);
  expect(reused[1]?.nReusedGraphs).toBe(0);
});
