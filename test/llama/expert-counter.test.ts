import * as fc from "fast-check";
import koffi from "koffi";
import { afterAll, describe, expect, test } from "vitest";
import { u32Entry } from "../../src/gguf/kv.ts";
import { createBackend, planContexts, type LlamaBackend } from "../../src/llama/backend.ts";
import { countDistinct, createExpertCounter, layerOfNode, readExpertCount, type RoutedForward } from "../../src/llama/expert-counter.ts";
import { loadLlama } from "../../src/llama/library.ts";
import type { Memory, Pointer } from "../../src/llama/structs.ts";
import { tinyTrunk, tinyWithHead, trunkWith } from "./tiny-model.ts";

describe("countDistinct", () => {
  test("is the size of the set of the first ids of each row, whatever lies between rows", () => {
    const matrices = fc.record({ nRows: fc.integer({ min: 1, max: 9 }), nUsed: fc.integer({ min: 1, max: 6 }), gap: fc.integer({ min: 0, max: 5 }), nExperts: fc.integer({ min: 1, max: 40 }), seed: fc.integer({ min: 0, max: 1 << 20 }) });
    fc.assert(
      fc.property(matrices, ({ nRows, nUsed, gap, nExperts, seed }) => {
        const stride = nUsed + gap;
        const ids = Int32Array.from({ length: nRows * stride }, (_, i) => (i % stride < nUsed ? (seed * (i + 1) + i * i) % nExperts : -1));
        const marks = new Uint8Array(nExperts);
        const set = new Set([...ids].filter((id) => id >= 0));
        expect(countDistinct(ids, { nRows, nUsed, stride }, marks)).toBe(set.size);
        expect(marks.every((mark) => mark === 0)).toBe(true);
      }),
      { numRuns: 200, seed: 3 },
    );
  });

  test("an id that is no expert's is refused, and leaves no marks", () => {
    const marks = new Uint8Array(4);
    for (const bad of [4, -1]) expect(() => countDistinct(Int32Array.of(1, bad), { nRows: 1, nUsed: 2, stride: 2 }, marks)).toThrow(`expert ${bad} of 4`);
    expect([...marks]).toEqual([0, 0, 0, 0]);
  });
});

test.each([
  ["ffn_moe_topk-0", 0],
  ["ffn_moe_topk-39", 39],
  ["ffn_moe_topk-3 (view)", undefined],
  ["ffn_moe_topk-", undefined],
  ["ffn_moe_argsort-3", undefined],
  ["ffn_moe_group_topk-3", undefined],
])("%s is the choice of layer %s", (name, layer) => {
  expect(layerOfNode(name)).toBe(layer);
});

test("the number of experts is the file's; a model without any is refused", async () => {
  expect(readExpertCount(await tinyTrunk())).toBe(8);
  const dense = await trunkWith("no-experts.gguf", [u32Entry("qwen35moe.expert_count", 0)]);
  expect(() => readExpertCount(dense)).toThrow("has no experts to count");
});

test("a callback for the target is not a head's", () => {
  const plan = planContexts({ modelPath: "model.gguf", nSlots: 2, nMax: 2, plainTarget: true, threads: 1, targetEvalCallback: 7n }, { nCtxTrain: 512, isRecurrent: true }, 1);
  expect([plan.target.evalCallback, plan.plainTarget?.evalCallback, plan.heads[0]?.evalCallback]).toEqual([7n, 7n, undefined]);
  const without = planContexts({ modelPath: "model.gguf", nSlots: 2, nMax: 2, threads: 1 }, { nCtxTrain: 512, isRecurrent: true }, 1);
  expect(without.target).not.toHaveProperty("evalCallback");
});

const nSlots = 4;
const nUsed = 2;

/** Decodes; every row an output, so that the last layer keeps them all. Tokens differ between sequences unless `isAlike`. */
function decode(backend: LlamaBackend, lengths: readonly number[], isAlike = false): void {
  const { rows } = backend.target;
  rows.n = 0;
  lengths.forEach((length, seq) => {
    const from = backend.target.lastPosition(seq) + 1;
    for (let i = 0; i < length; i++) {
      rows.tokens[rows.n] = 300 + ((isAlike ? 0 : seq * 971) + (from + i) * 131) % 3000;
      rows.positions[rows.n] = from + i;
      rows.seqs[rows.n] = seq;
      rows.outputs[rows.n] = 1;
      rows.n++;
    }
  });
  backend.target.decode();
}

const open = async (targetEvalCallback: Pointer): Promise<LlamaBackend> =>
  createBackend({ modelPath: await tinyTrunk(), nSlots, ctxSize: 1024, batchSize: 64, ubatchSize: 64, nMax: 2, nOutputsPerSeq: 16, threads: 1, device: "cpu", targetEvalCallback });

describe("on the embedded model", () => {
  const llama = loadLlama();
  const counter = createExpertCounter(llama, 8);
  afterAll(() => counter.close());

  /** What the routers' logits say, read and sorted here: [forward][layer] as the counter gives them. */
  async function countFromLogits(lengths: readonly (readonly number[])[]): Promise<RoutedForward[][]> {
    const nameOf = llama.base.func("ggml_get_name", "str", ["void *"]) as (tensor: Pointer) => string;
    const nRowsOf = llama.base.func("ggml_nrows", "int64_t", ["void *"]) as (tensor: Pointer) => number | bigint;
    const get = llama.base.func("ggml_backend_tensor_get", "void", ["void *", "void *", "size_t", "size_t"]) as (tensor: Pointer, into: Memory, offset: number, size: number) => void;
    let layers: RoutedForward[number][] = [];
    const type = koffi.pointer(koffi.proto("bool", ["void *", "bool", "void *"]));
    const callback = koffi.register((tensor: Pointer, isQuestion: boolean): boolean => {
      const layer = /^ffn_moe_logits-(\d+)$/.exec(nameOf(tensor))?.[1];
      if (isQuestion || layer === undefined) return layer !== undefined;
      const nRows = Number(nRowsOf(tensor));
      const logits = new Float32Array(8 * nRows);
      get(tensor, logits, 0, logits.byteLength);
      const chosen = Array.from({ length: nRows }, (_, row) => [...logits.subarray(8 * row, 8 * row + 8).entries()].toSorted((a, b) => b[1] - a[1]).slice(0, nUsed).map(([id]) => id));
      layers.push({ layer: Number(layer), nRows, nUsed, nDistinct: new Set(chosen.flat()).size });
      return true;
    }, type);
    const backend = await open(callback);
    const counted = lengths.map((each) => {
      layers = [];
      decode(backend, each);
      return [layers];
    });
    backend.close();
    koffi.unregister(callback);
    return counted;
  }

  test("counts what the routers' logits choose: several sequences, several rows, layer by layer", async () => {
    const lengths = [[5, 5, 5, 5], [3, 3, 3, 3], [1, 1, 1, 1], [1, 1], [3]];
    const expected = await countFromLogits(lengths);
    const backend = await open(counter.callback);
    counter.isOn = true;
    const counted = lengths.map((each) => {
      decode(backend, each);
      return counter.take();
    });
    counter.isOn = false;
    backend.close();
    expect(counted).toEqual(expected);
    expect(counted.map(([forward]) => [forward?.length, forward?.[0]?.nRows])).toEqual([[8, 20], [8, 12], [8, 4], [8, 2], [8, 3]]);
    // Not a count that rows alone decide.
    expect(new Set(counted[1]?.[0]?.map((r) => r.nDistinct)).size).toBeGreaterThan(1);
  });

  test("one row selects as many as a row does; equal rows select the same; nothing is kept while off", async () => {
    const backend = await open(counter.callback);
    decode(backend, [1]);
    expect(counter.take()).toEqual([]);
    backend.target.clear(0);
    counter.isOn = true;
    decode(backend, [1]);
    backend.target.clear(0);
    decode(backend, [1, 1, 1, 1], true);
    counter.isOn = false;
    const [single, alike] = counter.take();
    backend.close();
    expect(single?.map((r) => [r.nRows, r.nDistinct])).toEqual(Array.from({ length: 8 }, () => [1, nUsed]));
    expect(alike?.map((r) => [r.nRows, r.nDistinct])).toEqual(Array.from({ length: 8 }, () => [4, nUsed]));
  });

  test("a decode in several forwards is counted forward by forward", async () => {
    const backend = await open(counter.callback);
    counter.isOn = true;
    decode(backend, [5, 9]);
    counter.isOn = false;
    const forwards = counter.take();
    backend.close();
    expect(forwards.map((forward) => [forward.length, forward[0]?.nRows])).toEqual([[8, 10], [8, 4]]);
  });

  test("more experts in a choice than the model is said to have is an error, after the decode", async () => {
    const wrong = createExpertCounter(llama, 1);
    const backend = await open(wrong.callback);
    wrong.isOn = true;
    decode(backend, [2]);
    expect(() => wrong.take()).toThrow(/expert [1-7] of 1/);
    backend.close();
    wrong.close();
  });

  test("a head in the same file is not counted", async () => {
    const backend = createBackend({ modelPath: await tinyWithHead(), useHead: true, nSlots: 1, ctxSize: 256, batchSize: 64, nMax: 1, threads: 1, device: "cpu", targetEvalCallback: counter.callback });
    counter.isOn = true;
    decode(backend, [1]);
    expect(counter.take()[0]?.map((r) => r.layer)).toEqual([0, 1, 2, 3, 4, 5, 6, 7]);
    const head = backend.heads[0] as NonNullable<(typeof backend.heads)[0]>;
    Object.assign(head.rows, { n: 1 });
    head.rows.tokens[0] = 300;
    head.rows.positions[0] = 0;
    head.rows.seqs[0] = 0;
    head.rows.outputs[0] = 1;
    head.decode();
    counter.isOn = false;
    expect(counter.take()).toEqual([]);
    backend.close();
  });
});
