import * as fc from "fast-check";
import { describe, expect, test } from "vitest";
import { PromptCache, type SavedPrompt } from "../../src/engine/prompt-cache.ts";
import { hashNext } from "../fake-backend.ts";
import { request } from "../request.ts";
import { harness, plainText, type Harness } from "./run.ts";

const nVocab = 97;
const next = (history: readonly number[]): number => hashNext(history, nVocab);
const text = (length: number, seed: number): number[] => Array.from({ length }, (_, i) => (i * 31 + seed * 17 + ((i * i) % 13)) % (nVocab - 1));

const entry = (tokens: readonly number[], sizeBytes = 100): SavedPrompt => ({ tokens: Int32Array.from(tokens), target: new Uint8Array(), heads: [], rows: undefined, sizeBytes });

describe("which entry helps", () => {
  test("the longest that the prompt extends, never the whole prompt", () => {
    const cache = new PromptCache(1000);
    for (const n of [70, 90, 120]) cache.add(entry(text(n, 1)));
    cache.add(entry(text(110, 2)));
    expect(cache.find(Int32Array.from(text(120, 1)), 0)?.tokens.length).toBe(90);
    expect(cache.find(Int32Array.from(text(121, 1)), 0)?.tokens.length).toBe(120);
    expect(cache.find(Int32Array.from(text(300, 3)), 0)).toBeUndefined();
  });

  test("none that saves little over what is at hand", () => {
    const cache = new PromptCache(1000);
    cache.add(entry(text(100, 1)));
    expect(cache.find(Int32Array.from(text(200, 1)), 36)?.tokens.length).toBe(100);
    expect(cache.find(Int32Array.from(text(200, 1)), 37)).toBeUndefined();
  });

  test("memory stays bounded; the least recently used goes first; an entry is kept once", () => {
    const cache = new PromptCache(300);
    for (const seed of [1, 2, 3]) cache.add(entry(text(80, seed)));
    cache.add(entry(text(80, 1)));
    expect([cache.nEntries, cache.sizeBytes]).toEqual([3, 300]);
    cache.add(entry(text(80, 4)));
    expect(cache.find(Int32Array.from(text(90, 2)), 0)).toBeUndefined();
    expect(cache.find(Int32Array.from(text(90, 1)), 0)).toBeDefined();
    cache.add(entry(text(80, 5), 301));
    expect(cache.find(Int32Array.from(text(90, 5)), 0)).toBeUndefined();
    expect(cache.sizeBytes).toBe(300);
  });

  test("a prompt parts from an earlier one where they differ, and leaves a token to read", () => {
    const cache = new PromptCache(1000);
    const shared = text(100, 1);
    expect(cache.branchPoint(Int32Array.from([...shared, 1, 2]), 0)).toBeUndefined();
    expect(cache.branchPoint(Int32Array.from([...shared, 3, 4, 5]), 0)).toBe(100);
    expect(cache.branchPoint(Int32Array.from([...shared, 3, 4, 5]), 0)).toBe(102);
    expect(cache.branchPoint(Int32Array.from([...shared, 9]), 100)).toBeUndefined();
    expect(cache.branchPoint(Int32Array.from(text(63, 1)), 0)).toBeUndefined();
  });
});

const nMax = 3;
const fake = { nSeq: 2, nCtxSeq: 512, nHeads: 1, isDraftRight: (p: number) => p % 5 !== 0 };

function run(h: Harness, id: number, prompt: readonly number[], maxTokens = 24): number[] {
  h.engine.submit(request(id, prompt, { maxTokens, cachePrompt: true }));
  h.runAll();
  h.engine.checkIntegrity();
  const output = h.tokensOf(id);
  expect(output).toEqual(plainText(next, prompt, maxTokens));
  return output;
}

describe.each([1, 2, 3])("%i heads", (nHeads) => {
  const start = (cacheRamBytes = 1e9): Harness => harness({ nMax, cachePrompt: true, cacheRamBytes }, { ...fake, nHeads });

  test("the next turns of three chats on two slots go on from where they were; drafts are as good as cold", () => {
    const warm = start();
    const cold = harness({ nMax }, { ...fake, nHeads });
    const chats = [1, 2, 3].map((seed) => text(80, seed));
    for (let turn = 0; turn < 3; turn++) {
      for (const [i, chat] of chats.entries()) {
        const id = turn * 3 + i;
        const output = run(warm, id, chat);
        run(cold, id, chat);
        // The last token may have been emitted without being decoded; the state ends before it then.
        const { nCached } = warm.finishOf(id).usage;
        expect(nCached >= (turn === 0 ? 0 : chat.length - 6) && nCached <= (turn === 0 ? 0 : chat.length - 5)).toBe(true);
        expect(warm.finishOf(id).draft.nAccepted).toBe(cold.finishOf(id).draft.nAccepted);
        chats[i] = [...chat, ...output, ...text(5, turn)];
      }
    }
  });

  test("the second prompt with a shared beginning saves it, the third reads only its own end", () => {
    const h = start();
    const shared = text(150, 4);
    for (const [id, nCached] of [0, 0, 150, 150].entries()) {
      run(h, id, [...shared, ...text(10 + id, 5 + id)]);
      expect(h.finishOf(id).usage.nCached).toBe(nCached);
    }
    const nPromptRows = h.backend.log.filter((d) => d.role === "target" && d.rows.every((r) => r.position >= 150)).length;
    expect(nPromptRows).toBeGreaterThan(0);
  });

  test("requests at the same time share it too", () => {
    const h = start();
    const shared = text(100, 4);
    for (let id = 0; id < 6; id++) h.engine.submit(request(id, [...shared, ...text(7, 5 + id)], { maxTokens: 9, cachePrompt: true }));
    h.runAll();
    for (let id = 0; id < 6; id++) expect(h.tokensOf(id)).toEqual(plainText(next, [...shared, ...text(7, 5 + id)], 9));
    expect(h.finishOf(5).usage.nCached).toBe(100);
  });

  test("a beginning that several share at once is copied once", () => {
    const h = harness({ nMax, cachePrompt: true, cacheRamBytes: 1e9 }, { ...fake, nHeads, nSeq: 6 });
    const save = h.backend.target.saveSequence.bind(h.backend.target);
    let nSaved = 0;
    h.backend.target.saveSequence = (seq) => {
      nSaved++;
      return save(seq);
    };
    const shared = text(100, 4);
    for (let id = 0; id < 6; id++) h.engine.submit(request(id, [...shared, ...text(7, 5 + id)], { maxTokens: 9, cachePrompt: true }));
    h.runAll();
    expect(nSaved).toBe(1);
  });

  test("without room nothing is saved and nothing breaks", () => {
    const h = start(16);
    const shared = text(100, 4);
    for (let id = 0; id < 3; id++) run(h, id, [...shared, ...text(7, 5 + id)]);
    expect(h.finishOf(2).usage.nCached).toBe(0);
  });
});

test("a request that asks for no cache neither restores nor saves", () => {
  const h = harness({ nMax, cachePrompt: true, cacheRamBytes: 1e9 }, fake);
  const shared = text(100, 4);
  for (let id = 0; id < 3; id++) {
    h.engine.submit(request(id, [...shared, ...text(7, 5 + id)], { maxTokens: 9 }));
    h.runAll();
    expect(h.finishOf(id).usage.nCached).toBe(0);
  }
});

test("random chats on few slots with cancellations: text exact, slots and contexts agree", () => {
  const oneRun = fc.array(fc.record({ chat: fc.nat(4), isNew: fc.boolean(), nTokens: fc.integer({ min: 1, max: 30 }), cancelAfter: fc.option(fc.nat(4)) }), { minLength: 1, maxLength: 30 });
  fc.assert(
    fc.property(oneRun, fc.integer({ min: 200, max: 20_000 }), (turns, cacheRamBytes) => {
      const h = harness({ nMax, cachePrompt: true, cacheRamBytes, nRingRows: 48 }, fake);
      const chats = [0, 1, 2, 3, 4].map((seed) => text(70 + seed, seed % 3));
      for (const [id, { chat, isNew, nTokens, cancelAfter }] of turns.entries()) {
        const prompt = isNew ? text(70 + chat, chat % 3) : (chats[chat] as number[]);
        if (prompt.length + nTokens + 6 > fake.nCtxSeq) continue;
        h.engine.submit(request(id, prompt, { maxTokens: nTokens, cachePrompt: true }));
        if (cancelAfter !== null) {
          for (let i = 0; i < cancelAfter; i++) h.engine.step();
          h.engine.cancel(id);
        }
        h.runAll();
        h.engine.checkIntegrity();
        if (cancelAfter !== null) continue;
        expect(h.tokensOf(id)).toEqual(plainText(next, prompt, nTokens));
        chats[chat] = [...prompt, ...h.tokensOf(id), id % nVocab];
      }
    }),
    { numRuns: 60 },
  );
});
