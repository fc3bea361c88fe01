import * as fc from "fast-check";
import { afterAll, beforeAll, describe, expect, test } from "vitest";
import type { DecodeContext } from "../../src/engine/backend.ts";
import { predictForwards } from "../../src/engine/split.ts";
import { createBackend, type LlamaBackend } from "../../src/llama/backend.ts";
import { createForwardCounter } from "../../src/llama/forward-counter.ts";
import { loadLlama } from "../../src/llama/library.ts";
import { tinyWithHead } from "./tiny-model.ts";

const counter = createForwardCounter(loadLlama());
const nUbatch = 64;
const nMax = 2;

function decode(context: DecodeContext, lengths: readonly number[], outputs: "all" | "last" = "last"): readonly number[] {
  const { rows } = context;
  rows.n = 0;
  lengths.forEach((length, seq) => {
    const from = context.lastPosition(seq) + 1;
    for (let i = 0; i < length; i++) {
      rows.tokens[rows.n] = 5 + ((seq * 7 + i) % 90);
      rows.positions[rows.n] = from + i;
      rows.seqs[rows.n] = seq;
      rows.outputs[rows.n] = Number(outputs === "all" || i === length - 1);
      rows.n++;
    }
  });
  counter.reset();
  context.decode();
  return counter.rowsOfForwards();
}

describe.each([true, false])("forwards of a decode, unified KV %s", (kvUnified) => {
  let backend: LlamaBackend;
  beforeAll(async () => {
    backend = createBackend({ modelPath: await tinyWithHead(), useHead: true, nSlots: 4, ctxSize: 2048, batchSize: 256, ubatchSize: nUbatch, nMax, threads: 1, device: "cpu", kvUnified, evalCallback: counter.callback });
  });
  afterAll(() => backend.close());

  const predict = (lengths: readonly number[]): number[] =>
    predictForwards(
      lengths.map((n, seq): [number, number] => [seq, n]),
      { nUbatch, isUnified: kvUnified, nKeepTail: nMax + 1 },
    ).map(({ seqs, nRowsEach }) => seqs.length * nRowsEach);

  test("any lengths: as the engine's planner predicts", () => {
    const length = fc.oneof(fc.integer({ min: 1, max: 6 }), fc.integer({ min: 1, max: 64 }));
    fc.assert(
      fc.property(fc.array(length, { minLength: 1, maxLength: 4 }), (lengths) => {
        for (let seq = 0; seq < 4; seq++) backend.target.clear(seq);
        expect(decode(backend.target, lengths)).toEqual(predict(lengths));
      }),
      { numRuns: Number(process.env["FORETOKEN_PROPERTY_RUNS"] ?? 60), seed: 7 },
    );
  });

  test.each([[[1]], [[1, 1, 1, 1]], [[3, 3, 3, 3]], [[3, 1, 3, 2]], [[16, 16, 16, 16]], [[40, 40, 40, 40]], [[40, 33, 40, 21]], [[21, 40, 33, 40]], [[100]], [[65, 1]], [[7, 64, 2, 70]]])("rows %j: as many as the engine's planner predicts, with as many rows", (lengths) => {
    for (let seq = 0; seq < 4; seq++) backend.target.clear(seq);
    const counted = decode(backend.target, lengths);
    expect(counted).toEqual(predict(lengths));
    expect(counted.reduce((a, b) => a + b, 0)).toBe(lengths.reduce((a, b) => a + b, 0));
  });

  test("ragged rows of the draft context are one forward", () => {
    const [head] = backend.heads;
    if (head === undefined) throw new Error("no head");
    for (let seq = 0; seq < 4; seq++) head.clear(seq);
    expect(decode(head, [3, 1, 2, 4])).toEqual([10]);
  });
});

afterAll(() => counter.close());
