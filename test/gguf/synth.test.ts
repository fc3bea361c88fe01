import { createHash } from "node:crypto";
import * as fs from "node:fs";
import * as os from "node:os";
import * as path from "node:path";
import { afterAll, describe, expect, test } from "vitest";
import { arrayKey, countKey, stringKey } from "../../src/gguf/keys.ts";
import { readArray } from "../../src/gguf/entry.ts";
import { shapeOf } from "../../src/gguf/model-shape.ts";
import { readGgufHeader } from "../../src/gguf/reader.ts";
import { RandomBlocks } from "../../src/gguf/synth/random-blocks.ts";
import { chooseType, synthFileTypes } from "../../src/gguf/synth/quantize-choice.ts";
import { namedShapes, ShapeFile, shapeFromFile } from "../../src/gguf/synth/shapes.ts";
import { synthesize } from "../../src/gguf/synth/synthesize.ts";
import { nextnLayerTensors, outerTensors, trunkLayerTensors, type ModelShape } from "../../src/gguf/model-shape.ts";
import { knownType, tensorBytes } from "../../src/gguf/types.ts";

const folder = fs.mkdtempSync(path.join(os.tmpdir(), "synth-"));
afterAll(() => fs.rmSync(folder, { recursive: true }));

const shapeNamed = (name: string): ModelShape => namedShapes.get(name) ?? expect.fail();
const sha256 = (file: string): string => createHash("sha256").update(fs.readFileSync(file)).digest("hex");

async function synth(name: string, options: Partial<Parameters<typeof synthesize>[0]> = {}): Promise<string> {
  const output = path.join(folder, `${name}.gguf`);
  await synthesize({ shape: shapeNamed("tiny"), type: "IQ4_XS", headType: "Q6_K", output, seed: 1, ...options });
  return output;
}

test("equal seeds give equal files, other seeds other files", async () => {
  const [first, again, other] = [await synth("a"), await synth("b"), await synth("c", { seed: 2 })];
  expect(sha256(again)).toBe(sha256(first));
  expect(sha256(other)).not.toBe(sha256(first));
});

test.each(synthFileTypes)("a file of type %s tells its shape, and the head has its own type", async (type) => {
  const header = readGgufHeader(await synth(`type-${type}`, { type }));
  expect(header.remarks).toEqual([]);
  expect(shapeOf(header)).toEqual({ ...shapeNamed("tiny"), rmsEpsilon: Math.fround(1e-6) });
  const head = header.tensors.filter((t) => t.name.startsWith("blk.4."));
  expect(new Set(head.map((t) => t.type?.name))).toEqual(new Set(["Q6_K", "F32"]));
  expect(head.find((t) => t.name === "blk.4.nextn.eh_proj.weight")?.type?.name).toBe("Q6_K");
});

test("the vocabulary has every byte, its merges make tokens, and specials end it", async () => {
  const header = readGgufHeader(await synth("vocabulary"));
  const strings = (key: string): string[] => readArray(arrayKey(header, key) ?? expect.fail(key)).map(String);
  const tokens = strings("tokenizer.ggml.tokens");
  const known = new Set(tokens);
  expect(tokens.length).toBe(1024);
  expect(known.size).toBe(1024);
  for (const merge of strings("tokenizer.ggml.merges")) {
    const parts = merge.split(" ");
    expect(parts.length).toBe(2);
    expect([...parts, parts.join("")].filter((token) => !known.has(token))).toEqual([]);
  }
  expect(tokens[countKey(header, "tokenizer.ggml.eos_token_id") ?? -1]).toBe("<|im_end|>");
  expect(stringKey(header, "tokenizer.chat_template")).toContain("<|im_start|>");
});

test("a vocabulary without room for bytes is refused", async () => {
  await expect(synth("small", { shape: { ...shapeNamed("tiny"), vocabSize: 200 } })).rejects.toThrow("a vocabulary of 200 is too small; 259 tokens are the least");
});

/** Size of the tensors that llama-quantize would write for Ornith-1.0-35B: what the bootstrap report measured, metadata aside. */
test("Ornith-35B in IQ4_XS has the size of the report's file", () => {
  const shape = { ...shapeNamed("ornith-35b"), nNextnLayers: 0 };
  const tensors = [...outerTensors(shape), ...shape.isRecurrent.flatMap((_, layer) => trunkLayerTensors(shape, layer))];
  const bytes = tensors.reduce((n, t) => n + tensorBytes(chooseType(t, "IQ4_XS", shape), t.shape), 0);
  const reported = 18_939_311_680;
  expect(Math.abs(bytes - reported) / reported).toBeLessThan(0.001);
});

test("a shape file replaces sizes, and knows its fields", () => {
  const shape = shapeFromFile(ShapeFile.parse({ nLayers: 2, fullAttentionInterval: 2, experts: { count: 16 } }));
  expect(shape.isRecurrent).toEqual([true, false]);
  expect(shape.experts).toEqual({ count: 16, usedCount: 8, feedForward: 512, sharedFeedForward: 512 });
  const dense = shapeFromFile(ShapeFile.parse({ architecture: "qwen35", feedForward: 3072 }));
  expect(nextnLayerTensors(dense, 40).map((t) => t.name)).toContain("blk.40.ffn_up.weight");
  expect(ShapeFile.safeParse({ layers: 3 }).success).toBe(false);
});

const half = (block: Uint8Array, at: number): number => {
  const bits = (block[at] as number) | ((block[at + 1] as number) << 8);
  const [exponent, fraction] = [(bits >> 10) & 31, bits & 1023];
  return (bits & 0x8000 ? -1 : 1) * (exponent === 0 ? fraction * 2 ** -24 : (1 + fraction / 1024) * 2 ** (exponent - 15));
};

/** The six-bit scale and minimum of group `j` of a Q4_K or Q5_K block (get_scale_min_k4 of ggml-quants.c). */
function scaleAndMin(block: Uint8Array, j: number): [number, number] {
  const s = (i: number): number => block[4 + i] as number;
  if (j < 4) return [s(j) & 63, s(j + 4) & 63];
  return [(s(j + 4) & 15) | ((s(j - 4) >> 6) << 4), (s(j + 4) >> 4) | ((s(j) >> 6) << 4)];
}

const decoders: Record<string, (b: Uint8Array) => number[]> = {
  Q8_0: (b) => Array.from({ length: 32 }, (_, i) => half(b, 0) * (((b[2 + i] as number) << 24) >> 24)),
  Q5_1: (b) => Array.from({ length: 32 }, (_, i) => half(b, 0) * ((i < 16 ? (b[8 + i] as number) & 15 : (b[8 + i - 16] as number) >> 4) | ((((b[4 + (i >> 3)] as number) >> (i & 7)) & 1) << 4)) + half(b, 2)),
  Q4_K: (b) =>
    Array.from({ length: 256 }, (_, i) => {
      const [scale, min] = scaleAndMin(b, i >> 5);
      const byte = b[16 + (i >> 6) * 32 + (i & 31)] as number;
      return half(b, 0) * scale * ((i >> 5) & 1 ? byte >> 4 : byte & 15) - half(b, 2) * min;
    }),
  Q6_K: (b) =>
    Array.from({ length: 256 }, (_, i) => {
      const [n, l, part] = [i >> 7, i & 31, (i >> 5) & 3];
      const low = b[n * 64 + l + (part & 1) * 32] as number;
      const code = (part < 2 ? low & 15 : low >> 4) | ((((b[128 + n * 32 + l] as number) >> (2 * part)) & 3) << 4);
      return half(b, 208) * (((b[192 + n * 8 + (l >> 4) + 2 * part] as number) << 24) >> 24) * (code - 32);
    }),
};

test.each(Object.keys(decoders))("random %s blocks spread as asked, around zero", (name) => {
  const type = knownType(name);
  const nBlocks = Math.ceil(40_000 / type.blockSize);
  const bytes = Buffer.concat([...new RandomBlocks(7).pieces(type, nBlocks * type.blockBytes, 0.02)]);
  const values = Array.from({ length: nBlocks }, (_, i) => (decoders[name] as (b: Uint8Array) => number[])(bytes.subarray(i * type.blockBytes))).flat();
  const mean = values.reduce((sum, x) => sum + x, 0) / values.length;
  const spread = Math.sqrt(values.reduce((sum, x) => sum + x * x, 0) / values.length);
  expect(Math.abs(mean)).toBeLessThan(0.002);
  expect(Math.abs(spread / 0.02 - 1)).toBeLessThan(0.05);
});

describe("types by rule", () => {
  const typesOf = async (name: string, rules: Parameters<typeof synthesize>[0]["rules"]): Promise<Map<string, string | undefined>> => new Map(readGgufHeader(await synth(name, { rules })).tensors.map((t) => [t.name, t.type?.name]));

  test("the first rule that matches gives a matrix its type, head included; vectors and routers stay", async () => {
    const types = await typesOf("ruled", [{ pattern: /shexp/, type: knownType("BF16") }, { pattern: /blk\.[34]\./, type: knownType("Q8_0") }]);
    expect(types.get("blk.3.ffn_up_shexp.weight")).toBe("BF16");
    expect(types.get("blk.3.ffn_gate_inp_shexp.weight")).toBe("F32");
    expect(types.get("blk.3.ffn_gate_inp.weight")).toBe("F32");
    expect(types.get("blk.3.ffn_up_exps.weight")).toBe("Q8_0");
    expect(types.get("blk.4.nextn.eh_proj.weight")).toBe("Q8_0");
    expect(types.get("blk.2.ffn_up_exps.weight")).toBe("IQ4_XS");
  });

  test("a rule that reaches nothing, and a type without random blocks, are refused before a file is begun", async () => {
    await expect(typesOf("unmatched", [{ pattern: /ffn_gate_inp\./, type: knownType("Q8_0") }])).rejects.toThrow("the rule ffn_gate_inp\\.=Q8_0 matches no matrix of this shape");
    await expect(typesOf("unknown", [{ pattern: /exps/, type: knownType("MXFP4") }])).rejects.toThrow("tensors of type MXFP4 cannot be synthesized; types are F32, F16, BF16, Q4_0");
    expect(fs.existsSync(path.join(folder, "unmatched.gguf"))).toBe(false);
  });
});
