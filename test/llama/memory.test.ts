import * as fs from "node:fs";
import * as os from "node:os";
import * as path from "node:path";
import { expect, test } from "vitest";
import { readGgufHeader } from "../../src/gguf/reader.ts";
import { namedShapes } from "../../src/gguf/synth/shapes.ts";
import { synthesize } from "../../src/gguf/synth/synthesize.ts";
import type { GraphEditName } from "../../src/config/engine-options.ts";
import { besideBytes, estimateMemory, parseContextMemory } from "../../src/llama/memory.ts";
import { tinyHead, tinyTrunk } from "./tiny-model.ts";

const MIB = 2 ** 20;

test("reads what libllama logs while it makes contexts", () => {
  const lines = [
    "llama_context: constructing llama_context",
    "llama_context:        CPU  output buffer size =     0.50 MiB",
    "llama_kv_cache:        CPU KV buffer size =     0.00 MiB",
    "llama_kv_cache: size =    8.00 MiB (  8192 cells,   2 layers,  4/1 seqs), K (f16):    4.00 MiB, V (f16):    4.00 MiB",
    "llama_memory_recurrent: size =    6.50 MiB (     4 cells,   8 layers,  4 seqs  3 rs_seq), R (f32):    0.56 MiB, S (f32):    6.00 MiB",
    "sched_reserve:      CUDA0 compute buffer size =    14.00 MiB",
    "sched_reserve:  CUDA_Host compute buffer size =     2.00 MiB",
    "llama_context: constructing llama_context",
    "sched_reserve:        CPU compute buffer size =     1.00 MiB",
  ];
  expect(parseContextMemory(lines)).toEqual([
    { kvBytes: 8 * MIB, recurrentBytes: 6.5 * MIB, outputBytes: 0.5 * MIB, computeBytes: { CUDA0: 14 * MIB, CUDA_Host: 2 * MIB } },
    { kvBytes: 0, recurrentBytes: 0, outputBytes: 0, computeBytes: { CPU: MIB } },
  ]);
});

test("an estimate counts weights, KV cells, recurrent states with their snapshots, and scratch", async () => {
  const [modelPath, head] = [await tinyTrunk(), await tinyHead()];
  const estimate = await estimateMemory({ modelPath, headPaths: [head], nSlots: 4, ctxSize: 8192, nMax: 3, threads: 1, device: "cpu" });
  const bytes = (file: string): number => readGgufHeader(file).tensors.reduce((sum, tensor) => sum + tensor.sizeBytes, 0);
  expect(estimate.weightBytes).toBe(bytes(modelPath) + bytes(head));
  const [target, draft] = estimate.contexts;
  // 2 layers x 8192 cells x (K + V) x 2 heads of 64 in f16; the draft has one layer and a scratch sequence of 256 cells.
  expect(target?.kvBytes).toBe(2 * 8192 * 2 * 128 * 2);
  expect(draft?.kvBytes).toBeGreaterThanOrEqual(8192 * 2 * 128 * 2);
  // 6 delta-net layers x 4 sequences x (1 + 3 snapshots) x 4 heads of 64 x 64 in f32.
  expect(target?.recurrentBytes).toBeGreaterThan(6 * 4 * 4 * 4 * 64 * 64 * 4 - 1);
  expect(target?.computeBytes["CPU"]).toBeGreaterThan(0);
  expect(estimate.totalBytes).toBeGreaterThan(estimate.weightBytes);
});

test("a shorter LM head is counted by its rows, copies by the weights of the trunk's quantized matrices", async () => {
  const folder = fs.mkdtempSync(path.join(os.tmpdir(), "beside-"));
  try {
    const file = path.join(folder, "tiny.gguf");
    const shape = namedShapes.get("tiny") ?? expect.fail();
    await synthesize({ shape, type: "IQ4_XS", headType: "Q6_K", output: file, seed: 1 });
    const facts = { path: file, nTrunkLayers: shape.nLayers };
    // Rows of 256 in Q6_K.
    expect(besideBytes(facts, [file, file], 300, [])).toEqual({ shared: 0, each: 2 * 300 * 210 });
    for (const nTokens of [0, 1024, 5000]) expect(besideBytes(facts, [file], nTokens, [])).toEqual({ shared: 0, each: 0 });
    const weights = readGgufHeader(file).tensors.filter(({ name, shape: sizes, type }) => /^blk\.[0-3]\./.test(name) && sizes.length === 2 && type?.name !== "F32");
    expect(weights.length).toBeGreaterThan(20);
    const bf16 = weights.reduce((sum, { nElements }) => sum + 2 * nElements, 0);
    expect(besideBytes(facts, [], 300, ["bf16-copies"]).shared).toBe(bf16);
    // A router of 256 by 4 in each layer, and a convolution of 512 by 4 in three, which is never copied; then in IQ4_XS four matrices of linear attention and three of attention.
    const halves = (shape.nLayers * 256 * 4 + 3 * 512 * 4) * 2;
    expect(besideBytes(facts, [], 0, ["f16-copies"]).shared).toBe(halves);
    const joined = besideBytes(facts, [], 0, ["joined-products", "joined-norms"]).shared;
    expect(joined).toBe((3 * (512 + 256 + 4 + 4) + (512 + 128 + 128)) * 136);
    // The MTP layer's router, and its three matrices of attention in Q6_K.
    const ofHead = (edits: readonly GraphEditName[]): number => besideBytes(facts, [file], 0, edits).shared - besideBytes(facts, [], 0, edits).shared;
    expect([ofHead(["f16-copies"]), ofHead(["joined-products"]), ofHead(["bf16-copies", "bf16-head"])]).toEqual([256 * 4 * 2, (512 + 128 + 128) * 210, 0]);
    // The LM head of 1,024 by 256: a head in the same file takes the same copy, one in a file of its own another, and none where it is short.
    const [lmHead, other] = [1024 * 256 * 2, path.join(folder, "other.gguf")];
    fs.copyFileSync(file, other);
    const headBytes = [[file], [other]].map((heads) => [0, 300].map((nTokens) => besideBytes(facts, heads, nTokens, ["bf16-head"])));
    const [whole, short] = [{ shared: lmHead, each: 0 }, { shared: lmHead, each: 300 * 210 }];
    expect(headBytes).toEqual([[whole, short], [{ shared: 2 * lmHead, each: 0 }, short]]);
    expect(besideBytes(facts, [], 0, ["bf16-copies", "f16-copies", "joined-products"]).shared).toBe(bf16 + joined + halves);
  } finally {
    fs.rmSync(folder, { recursive: true });
  }
});
