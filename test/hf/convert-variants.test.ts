/** Other layouts of the same checkpoint become the same GGUF tensors. */
import * as fs from "node:fs";
import * as path from "node:path";
import { beforeAll, describe, expect, test } from "vitest";
import { graftHead } from "../../src/gguf/edit.ts";
import { readRange } from "../../src/gguf/kv.ts";
import { readGguf } from "../../src/gguf/split.ts";
import { readPieces } from "../../src/gguf/writer.ts";
import { bootstrapHead } from "../../src/hf/bootstrap.ts";
import { readCheckpoint } from "../../src/hf/checkpoint.ts";
import { convertCheckpoint } from "../../src/hf/convert.ts";
import { headOfCheckpoint } from "../../src/hf/head-source.ts";
import type { HfTensorInput } from "../../src/hf/safetensors.ts";
import { embeddedCheckpoint } from "../../src/util/paths.ts";
import { temporaryFolder, tensorFacts } from "../gguf/files.ts";
import { deriveCheckpoint, type Variant } from "./checkpoints.ts";

const folder = temporaryFolder("variants");
const at = (name: string): string => path.join(folder, name);
let reference: string[];

type Convert = Parameters<typeof convertCheckpoint>[0];

async function convert(checkpoint: string, options: Partial<Convert> = {}): Promise<string> {
  const output = options.output ?? `${checkpoint}.gguf`;
  await convertCheckpoint({ outType: "BF16", mtp: "trunk", ...options, checkpoint, output });
  return output;
}

const facts = (file: string): string[] => tensorFacts(file).toSorted();

beforeAll(async () => {
  reference = facts(await convert(embeddedCheckpoint, { output: at("reference.gguf") }));
});

const zeros = (n: number): Uint8Array[] => [new Uint8Array(n)];
const wrapped = (config: object): object => ({ model_type: "qwen3_5_moe", architectures: ["Qwen3_5MoeForConditionalGeneration"], text_config: config, vision_config: { depth: 1 } });

const same: [string, Variant][] = [
  ["sharded", { nShards: 4 }],
  ["F32", { dtype: "F32" }],
  ["fused experts", { fuseExperts: true }],
  [
    "the multimodal wrapper",
    {
      rename: (name) => name.replace(/^model\.(?!visual)/, "model.language_model."),
      config: (config) => wrapped(config) as Record<string, unknown>,
      added: [{ name: "model.visual.blocks.0.norm.weight", dtype: "BF16", shape: [8], data: () => zeros(16) }],
    },
  ],
];

test.each(same)("%s", async (name, variant) => {
  const checkpoint = await deriveCheckpoint(at(name), variant);
  expect(facts(await convert(checkpoint))).toEqual(reference);
});

test("vision tensors that are left out are counted", async () => {
  const added = [0, 1].map((i) => ({ name: `model.visual.${i}.weight`, dtype: "BF16", shape: [8], data: () => zeros(16) }));
  const checkpoint = await deriveCheckpoint(at("vision"), { added });
  const result = await convertCheckpoint({ checkpoint, output: at("vision.gguf"), outType: "BF16", mtp: "trunk" });
  expect(result.notes).toEqual(["2 vision and audio tensors are left out; the file holds the text model"]);
});

test("tied embeddings: no output tensor, whether lm_head is there or not", async () => {
  const tie: Variant["config"] = (config) => ({ ...config, tie_word_embeddings: true });
  const untied = reference.filter((fact) => !fact.startsWith("output.weight"));
  expect(facts(await convert(await deriveCheckpoint(at("tied"), { config: tie })))).toEqual(untied);
  expect(facts(await convert(await deriveCheckpoint(at("tied-absent"), { config: tie, rename: (name) => (name === "lm_head.weight" ? undefined : name) })))).toEqual(untied);
});

test.each(["F32", "F16"] as const)("--outtype %s holds the values of the checkpoint", async (outType) => {
  const file = readGguf(await convert(embeddedCheckpoint, { outType, output: at(`out-${outType}.gguf`) }));
  const bf16 = readGguf(at("reference.gguf"));
  const [a, b] = [bf16, file].map((model) => model.tensors.find((t) => t.name === "blk.3.attn_q.weight") ?? expect.fail());
  expect([file.entries.get("general.file_type"), b?.type?.name]).toMatchObject([{ value: outType === "F32" ? 0 : 1 }, outType]);
  const [left, right] = [readRange(a ?? expect.fail()), readRange(b ?? expect.fail())];
  for (let i = 0; i < 2000; i++) {
    const value = Buffer.from([0, 0, left[2 * i] ?? 0, left[2 * i + 1] ?? 0]).readFloatLE(0);
    if (outType === "F32") expect(right.readFloatLE(4 * i)).toBe(value);
    else expect(right.readUInt16LE(2 * i)).toBe(float16(value));
  }
});

/** The nearest F16, by search: independent of the converter's arithmetic. */
function float16(value: number): number {
  const decode = (bits: number): number => (((bits >> 10) & 31) === 0 ? (bits & 1023) * 2 ** -24 : (1 + (bits & 1023) / 1024) * 2 ** (((bits >> 10) & 31) - 15));
  let [low, high] = [0, 0x7bff];
  while (low < high) {
    const middle = (low + high + 1) >> 1;
    if (decode(middle) <= Math.abs(value)) low = middle;
    else high = middle - 1;
  }
  const [below, above] = [Math.abs(value) - decode(low), decode(low + 1) - Math.abs(value)];
  const nearest = below < above || (below === above && low % 2 === 0) ? low : low + 1;
  return (value < 0 || Object.is(value, -0) ? 0x8000 : 0) | nearest;
}

describe("with a head", () => {
  beforeAll(async () => {
    await bootstrapHead({ checkpoint: embeddedCheckpoint, output: at("head"), ehProjInit: "hidden", dtype: "BF16" });
  });

  test("trunk and head in one file equal the graft of the head into the trunk", async () => {
    const checkpoint = await deriveCheckpoint(at("both"), { added: headTensors() });
    const both = await convert(checkpoint, { mtp: "both" });
    await graftHead({ input: at("reference.gguf"), output: at("grafted.gguf") }, headOfCheckpoint(at("head"), "BF16"));
    expect(facts(both)).toEqual(facts(at("grafted.gguf")));
    const value = (file: string, key: string): unknown => readGguf(file).entries.get(key);
    for (const key of ["qwen35moe.block_count", "qwen35moe.nextn_predict_layers"]) expect(value(both, key)).toMatchObject({ value: (value(at("grafted.gguf"), key) as { value: unknown }).value });
  });

  test.each([
    ["model.mtp.*", { rename: (name: string) => name.replace(/^mtp\./, "model.mtp.") }],
    ["fused experts", { fuseExperts: true }],
  ])("--mtp takes %s", async (name, variant: Variant) => {
    const plain = await convert(at("head"), { mtp: "mtp", output: at("head-plain.gguf") });
    const other = await deriveCheckpoint(at(`head ${name}`), { source: at("head"), ...variant });
    expect(facts(await convert(other, { mtp: "mtp" }))).toEqual(facts(plain));
  });

  test("a head that lacks a tensor is refused with its name", async () => {
    const checkpoint = await deriveCheckpoint(at("head-lacking"), { source: at("head"), rename: (name) => (name === "mtp.fc.weight" ? undefined : name) });
    await expect(convert(checkpoint, { mtp: "mtp" })).rejects.toThrow("1 tensors are missing (by their GGUF names): blk.8.nextn.eh_proj.weight");
  });

  function headTensors(): HfTensorInput[] {
    return [...readCheckpoint(at("head")).tensors.values()].filter((t) => t.name.startsWith("mtp.")).map((t) => ({ ...t, data: () => readPieces(t.file, t.offset, t.sizeBytes) }));
  }
});

describe("refused", () => {
  const refusals: [string, Variant, string][] = [
    ["a missing key, all named", { config: ({ num_hidden_layers: _a, linear_num_key_heads: _b, ...rest }) => rest }, "missing num_hidden_layers, linear_num_key_heads"],
    ["a key of the wrong type", { config: (config) => ({ ...config, hidden_size: "wide" }) }, 'hidden_size: must be a number, is "wide"'],
    ["another architecture", { config: (config) => ({ ...config, model_type: "llama" }) }, "model_type llama; qwen3_5, qwen3_5_text, qwen3_5_moe, qwen3_5_moe_text are supported"],
    ["a quantized checkpoint", { config: (config) => ({ ...config, quantization_config: { quant_method: "fp8" } }) }, "the checkpoint is quantized (fp8)"],
    ["a missing tensor", { rename: (name) => (name === "model.layers.2.linear_attn.A_log" ? undefined : name) }, "1 tensors are missing (by their GGUF names): blk.2.ssm_a"],
    ["a missing expert", { rename: (name) => (name.includes("layers.1.mlp.experts.7.up") ? undefined : name) }, "layer 1 has 23 expert tensors, num_experts 8 asks for 24"],
    ["a tensor without a place", { added: [{ name: "model.layers.0.extra.weight", dtype: "BF16", shape: [8], data: () => zeros(16) }] }, 'tensor "model.layers.0.extra.weight" has no place'],
    ["sizes that disagree with the config", { config: (config) => ({ ...config, num_key_value_heads: 1 }) }, "blk.3.attn_k.weight has shape [256, 128], config.json asks for [256, 64]"],
    ["integer weights", { rename: (name) => (name === "lm_head.weight" ? undefined : name), added: [{ name: "lm_head.weight", dtype: "I8", shape: [4096, 256], data: () => zeros(4096 * 256) }] }, "tensor lm_head.weight is I8"],
  ];

  test.each(refusals)("%s", async (name, variant, message) => {
    const checkpoint = await deriveCheckpoint(at(name), variant);
    await expect(convert(checkpoint, { output: at(`${name}.gguf`) })).rejects.toThrow(message);
    expect(fs.existsSync(at(`${name}.gguf`))).toBe(false);
  });

  test("a missing shard, by name", async () => {
    const checkpoint = await deriveCheckpoint(at("shard"), { nShards: 3 });
    fs.rmSync(path.join(checkpoint, "model-00002-of-00003.safetensors"));
    await expect(convert(checkpoint)).rejects.toThrow("missing model-00002-of-00003.safetensors (named in model.safetensors.index.json)");
  });

  test("a folder that is no checkpoint", async () => {
    await expect(convert(at("nowhere"))).rejects.toThrow("does not exist");
    await expect(convert(folder)).rejects.toThrow("has no config.json");
  });
});

test("dense qwen3_5 becomes qwen35", async () => {
  const checkpoint = await deriveCheckpoint(at("dense"), {
    config: (config) => ({ ...config, model_type: "qwen3_5_text", intermediate_size: 256 }),
    rename: (name) => (/\.mlp\.(experts\.[1-7]|gate\.|shared)/.test(name) ? undefined : name.replace(".mlp.experts.0.", ".mlp.")),
  });
  const result = await convertCheckpoint({ checkpoint, output: at("dense.gguf"), outType: "BF16", mtp: "trunk" });
  expect(result.architecture).toBe("qwen35");
  const model = readGguf(at("dense.gguf"));
  expect(model.entries.get("qwen35.feed_forward_length")).toMatchObject({ value: 256 });
  expect([...model.entries.keys()].filter((key) => key.includes("expert"))).toEqual([]);
  expect(model.tensors.filter((t) => t.name.startsWith("blk.3.ffn")).map((t) => [t.name, t.shape])).toEqual([
    ["blk.3.ffn_down.weight", [256, 256]],
    ["blk.3.ffn_gate.weight", [256, 256]],
    ["blk.3.ffn_up.weight", [256, 256]],
  ]);
});
