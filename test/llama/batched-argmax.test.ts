import { afterAll, beforeAll, describe, expect, test } from "vitest";
import { createBackend, type LlamaBackend } from "../../src/llama/backend.ts";
import { tinyTrunk } from "./tiny-model.ts";

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
    rows.n = 0;
    for (const seq of seqs) {
      for (let i = 0; i < nRows; i++) {
        const row = rows.n++;
        rows.tokens[row] = 300 + ((seq * 131 + (at + i) * 17) % 3000);
        rows.positions[row] = at + i;
        rows.seqs[row] = seq;
        rows.outputs[row] = 1;
      }
    }
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
