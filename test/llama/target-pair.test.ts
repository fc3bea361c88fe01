/** Moving sequences between the two contexts of a target, on the real library: nothing but the context changes. */
import { afterAll, beforeAll, expect, test } from "vitest";
import type { DecodeContext } from "../../src/engine/backend.ts";
import { TargetPair } from "../../src/engine/target-pair.ts";
import { createBackend, type LlamaBackend } from "../../src/llama/backend.ts";
import { loadLlama } from "../../src/llama/library.ts";
import { Staging } from "../../src/llama/staging.ts";
import type { Pointer } from "../../src/llama/structs.ts";
import { tinyWithHead } from "./tiny-model.ts";

let backend: LlamaBackend;
let alone: LlamaBackend;
beforeAll(async () => {
  const shared = { modelPath: await tinyWithHead(), useHead: true, nSlots: 3, ctxSize: 768, batchSize: 128, nMax: 3, threads: 1, device: "cpu", kvUnified: false } as const;
  backend = createBackend({ ...shared, plainTarget: true });
  alone = createBackend(shared);
});
afterAll(() => {
  backend.close();
  alone.close();
});

const prompt = (seq: number): number[] => Array.from({ length: 30 + seq * 5 }, (_, i) => 5 + ((i * 37 + seq * 11 + ((i * i) % 11)) % 900));

/** Decodes `tokens` of a sequence; returns the greedy token and a copy of the hidden row of the last one. */
function decode(target: DecodeContext, seq: number, tokens: readonly number[]): { token: number; hidden: Float32Array } {
  const { rows } = target;
  const from = target.lastPosition(seq) + 1;
  rows.n = 0;
  for (const [i, token] of tokens.entries()) {
    rows.tokens[i] = token;
    rows.positions[i] = from + i;
    rows.seqs[i] = seq;
    rows.outputs[i] = Number(tokens.length <= 3 || i === tokens.length - 1);
    rows.n++;
  }
  target.decode();
  return { token: target.greedyToken(tokens.length - 1), hidden: target.hidden(tokens.length - 1).slice() };
}

test("a text written now in one context, now in the other is bit for bit the text of one context, rollbacks included", () => {
  expect(backend.plainTarget?.limits.nRollback).toBe(0);
  const llama = loadLlama();
  // A CPU has no page-locked memory: its own, made by the same calls.
  using staging = new Staging(llama, [], llama.base.func("ggml_backend_cpu_buffer_type", "void *", [])() as Pointer);
  const pair = new TargetPair(backend.target, backend.plainTarget as DecodeContext, (nBytes) => staging.atLeast(nBytes));
  const single = alone.target;
  pair.setHiddenOutput(true);
  single.setHiddenOutput(true);
  const both = (seq: number, tokens: readonly number[]): number => {
    const [a, b] = [decode(pair, seq, tokens), decode(single, seq, tokens)];
    expect(a.token).toBe(b.token);
    expect(a.hidden).toEqual(b.hidden);
    expect(pair.lastPosition(seq)).toBe(single.lastPosition(seq));
    return a.token;
  };
  const next = [0, 1, 2].map((seq) => both(seq, prompt(seq)));
  for (let round = 0; round < 12; round++) {
    pair.use(round % 3 !== 0);
    for (const seq of [0, 1, 2]) {
      // Sequence 2 is decoded in some rounds only, so it stays behind and is fetched later.
      if (seq === 2 && round % 4 === 1) continue;
      if (pair.isPlain) next[seq] = both(seq, [next[seq] as number]);
      else {
        both(seq, [next[seq] as number, 7, 8]);
        const from = pair.lastPosition(seq) - 1;
        expect(pair.removeFrom(seq, from)).toBe(true);
        expect(single.removeFrom(seq, from)).toBe(true);
      }
    }
  }
  expect(pair.nMoved).toBeGreaterThan(12);
  expect(pair.removeFrom(0, 5)).toBe(false);
  for (const seq of [0, 1, 2]) pair.clear(seq);
  expect([0, 1, 2].map((seq) => pair.lastPosition(seq))).toEqual([-1, -1, -1]);
  expect(pair.plain.lastPosition(0)).toBe(-1);
  expect(pair.rolling.lastPosition(0)).toBe(-1);
});

test("staging memory grows, holds what is written, and is the process's own where no device has any", () => {
  const llama = loadLlama();
  const type = llama.base.func("ggml_backend_cpu_buffer_type", "void *", [])() as Pointer;
  for (const given of [type, undefined]) {
    using staging = new Staging(llama, llama.devices.filter((d) => d.type === "cpu"), given);
    const few = staging.atLeast(100);
    few.fill(7);
    expect(staging.atLeast(50)).toBe(few);
    const many = staging.atLeast(1_000_000);
    expect(many.length).toBeGreaterThanOrEqual(1_000_000);
    many.fill(9);
    expect(many.every((x) => x === 9)).toBe(true);
    staging.close();
    staging.close();
    expect(staging.atLeast(10).length).toBeGreaterThanOrEqual(10);
  }
});
