import { afterAll, beforeAll, describe, expect, test } from "vitest";
import type { Rows } from "../../src/engine/backend.ts";
import { createBackend, type LlamaBackend } from "../../src/llama/backend.ts";
import { UserError } from "../../src/util/errors.ts";
import { checkEngineOptions, engineOptions } from "../../src/config/engine-options.ts";
import { Rng } from "../../src/util/rng.ts";
import { tinyTrunk, tinyWithHead } from "./tiny-model.ts";

/** Rows `at` to `at + nRows - 1` of each sequence; which are outputs says `isOutput`, by the place within a sequence. */
function fillRows(rows: Rows, seqs: readonly number[], nRows: number, at: number, isOutput: (i: number) => boolean): void {
  rows.n = 0;
  for (const seq of seqs) {
    for (let i = 0; i < nRows; i++) {
      const row = rows.n++;
      rows.tokens[row] = 300 + ((seq * 131 + (at + i) * 17) % 3000);
      rows.positions[row] = at + i;
      rows.seqs[row] = seq;
      rows.outputs[row] = isOutput(i) ? 1 : 0;
    }
  }
}

/** One argmax over all rows must say what libllama's own, one a row, says, with idle slots and several rows a sequence. */
describe("the batched argmax", () => {
  let batched: LlamaBackend;
  let byRow: LlamaBackend;
  beforeAll(async () => {
    const modelPath = await tinyTrunk();
    const options = { modelPath, nSlots: 4, ctxSize: 1024, threads: 1, nMax: 2, targetSampling: "device-greedy", device: "cpu" } as const;
    batched = createBackend({ ...options, batchedArgmax: true });
    byRow = createBackend({ ...options, batchedArgmax: false });
  });
  afterAll(() => {
    batched.close();
    byRow.close();
  });

  const decode = ({ target }: LlamaBackend, seqs: readonly number[], nRows: number, at: number): number[] => {
    const { rows } = target;
    fillRows(rows, seqs, nRows, at, () => true);
    target.decode();
    return Array.from({ length: rows.n }, (_, row) => target.greedyToken(row));
  };

  test("agrees row by row over changing shapes", () => {
    let at = 0;
    for (const nRows of [1, 3, 3, 1, 2]) {
      const tokens = decode(batched, [0, 1, 2, 3], nRows, at);
      expect(tokens).toEqual(decode(byRow, [0, 1, 2, 3], nRows, at));
      expect(new Set(tokens).size).toBeGreaterThan(1);
      at += nRows;
    }
    // Two slots idle: their chains still stand in the graph.
    expect(decode(batched, [1, 3], 2, at)).toEqual(decode(byRow, [1, 3], 2, at));
  });
});

describe("drafts from the first tokens of the vocabulary", () => {
  const nTokens = 1024;
  /** MTP rows of some sequences, the last of each an output; the row of each output. */
  const draft = ({ heads: [head] }: LlamaBackend, seqs: readonly number[], nRows: number, at: number, isOutput = true): number[] => {
    const { rows, nEmbd } = head as NonNullable<typeof head>;
    const rng = new Rng(at + 1);
    fillRows(rows, seqs, nRows, at, (i) => isOutput && i === nRows - 1);
    for (let j = 0; j < rows.n * nEmbd; j++) rows.hidden[j] = rng.uniform() * 2 - 1;
    head?.decode();
    return seqs.map((_, i) => (i + 1) * nRows - 1);
  };

  test("are those that the whole head's logits put first among them, over changing shapes", async () => {
    const modelPath = await tinyWithHead();
    const options = { modelPath, useHead: true, nSlots: 3, ctxSize: 1024, threads: 1, nMax: 2, device: "cpu" } as const;
    using limited = createBackend({ ...options, draftSampling: "device-greedy", draftVocab: nTokens });
    using whole = createBackend(options);
    let at = 0;
    let nBeyond = 0;
    for (const [seqs, nRows, isOutput] of [[[0, 1, 2], 3, true], [[0, 1, 2], 1, true], [[0, 1, 2], 1, true], [[0, 2], 2, true], [[0, 1, 2], 2, false], [[1], 1, true]] as const) {
      const last = draft(limited, seqs, nRows, at, isOutput);
      draft(whole, seqs, nRows, at, isOutput);
      at += nRows;
      if (!isOutput) continue;
      for (const row of last) {
        const logits = whole.heads[0]?.logits(row) as Float32Array;
        const first = logits.subarray(0, nTokens);
        expect(limited.heads[0]?.greedyToken(row)).toBe(first.indexOf(Math.max(...first)));
        if (Math.max(...logits) > Math.max(...first)) nBeyond++;
      }
    }
    // The whole vocabulary would have said otherwise somewhere.
    expect(nBeyond).toBeGreaterThan(0);
  });

  test("as many as there are, or more, is no limit; none is one either", async () => {
    const modelPath = await tinyWithHead();
    for (const draftVocab of [0, 4096, 1 << 20]) {
      using backend = createBackend({ modelPath, useHead: true, nSlots: 1, ctxSize: 256, threads: 1, nMax: 1, draftSampling: "device-greedy", draftVocab, device: "cpu" });
      const [row] = draft(backend, [0], 2, 0);
      expect(backend.heads[0]?.greedyToken(row as number)).toBeLessThan(4096);
    }
  });

  test("of a list are what the whole head puts first among them", async () => {
    const modelPath = await tinyWithHead();
    const tokens = Int32Array.from({ length: 700 }, (_, i) => (i * 1237 + 11) % 4096);
    const options = { modelPath, useHead: true, nSlots: 3, ctxSize: 1024, threads: 1, nMax: 2, device: "cpu" } as const;
    using limited = createBackend({ ...options, draftSampling: "device-greedy", draftVocab: { file: "list", nVocab: 4096, tokens } });
    using whole = createBackend(options);
    for (const [i, seqs] of [[0, 1, 2], [0, 2], [1]].entries()) {
      const last = draft(limited, seqs, 2, 2 * i);
      draft(whole, seqs, 2, 2 * i);
      for (const row of last) {
        const logits = whole.heads[0]?.logits(row) as Float32Array;
        const best = tokens.reduce((a, b) => ((logits[b] as number) > (logits[a] as number) ? b : a));
        expect(limited.heads[0]?.greedyToken(row)).toBe(best);
      }
    }
    expect(() => createBackend({ ...options, draftSampling: "device-greedy", draftVocab: { file: "other.json", nVocab: 5000, tokens } })).toThrow("other.json is for a vocabulary of 5000");
  });

  test("need the one argmax for all rows: without it the context is refused", async () => {
    const modelPath = await tinyWithHead();
    const options = { modelPath, useHead: true, nSlots: 1, ctxSize: 256, threads: 1, nMax: 1, draftVocab: nTokens, device: "cpu" } as const;
    expect(() => createBackend({ ...options, draftSampling: "device-greedy", batchedArgmax: false })).toThrow(UserError);
    const parsed = (extra: object): (() => void) => () => checkEngineOptions(engineOptions.parse({ model: "m.gguf", specType: "draft-mtp", specDraftVocab: String(nTokens), ...extra }));
    expect(parsed({})).not.toThrow();
    expect(parsed({ specType: "none" })).toThrow("nothing is drafted");
    for (const extra of [{ specDraftPMin: 0.5 }, { specDraftTemp: 1 }, { specDraftSampling: "host" }, { specDraftSampling: "device" }, { batchedArgmax: false }]) expect(parsed(extra)).toThrow("--spec-draft-vocab");
  });
});

describe("a pinned KV view", () => {
  test("changes no token", async () => {
    const modelPath = await tinyTrunk();
    const texts = [0, 512].map((nPinnedCells) => {
      using backend = createBackend({ modelPath, nSlots: 2, ctxSize: 1024, threads: 1, nPinnedCells, device: "cpu" });
      const { target } = backend;
      const out: number[] = [];
      let token = 400;
      for (let p = 0; p < 40; p++) {
        target.rows.n = 1;
        target.rows.tokens[0] = token;
        target.rows.positions[0] = p;
        target.rows.seqs[0] = 0;
        target.rows.outputs[0] = 1;
        target.decode();
        token = target.greedyToken(0);
        out.push(token);
      }
      expect(target.lastPosition(0)).toBe(39);
      expect(target.lastPosition(1)).toBe(-1);
      return out;
    });
    expect(texts[0]).toEqual(texts[1]);
  });
});
