import * as path from "node:path";
import { beforeAll, expect, test } from "vitest";
import { auditModel } from "../../src/gguf/audit.ts";
import { extractHead, stripHead } from "../../src/gguf/edit.ts";
import { diffModels } from "../../src/gguf/diff.ts";
import { arrayEntry, scalarEntry, u32Entry } from "../../src/gguf/kv.ts";
import { elementCount } from "../../src/gguf/types.ts";
import { outerTensors, nextnLayerTensors, trunkLayerTensors } from "../../src/gguf/model-shape.ts";
import { readGguf } from "../../src/gguf/split.ts";
import { rewriteFile, synthSmall, temporaryFolder, type Rewrite } from "./files.ts";
import { smallShape } from "./small-shape.ts";

const folder = temporaryFolder("audit");
const at = (name: string): string => path.join(folder, `${name}.gguf`);
let whole: string;

beforeAll(async () => {
  whole = await synthSmall(at("whole"));
});

test("parameters, bytes and bits per weight are those of the tensors", () => {
  const audit = auditModel(readGguf(whole));
  const expected = [...outerTensors(smallShape), ...trunkLayerTensors(smallShape, 0), ...trunkLayerTensors(smallShape, 1), ...nextnLayerTensors(smallShape, 2).filter((t) => !/embed_tokens|shared_head_head/.test(t.name))];
  expect(audit.nParameters).toBe(expected.reduce((n, t) => n + elementCount(t.shape), 0));
  expect(audit.types.map((t) => t.type).toSorted()).toEqual(["F32", "Q8_0"]);
  const [f32, q8] = ["F32", "Q8_0"].map((type) => audit.types.find((t) => t.type === type) ?? expect.fail());
  expect(q8?.sizeBytes).toBe(((q8?.nElements ?? 0) / 32) * 34);
  expect(f32?.sizeBytes).toBe((f32?.nElements ?? 0) * 4);
  expect(audit.bitsPerWeight).toBeCloseTo((8 * audit.tensorBytes) / audit.nParameters, 12);
  expect([audit.architecture, audit.fileType, audit.mtp.verdict]).toEqual(["qwen35moe", "Q8_0", "complete"]);
});

test("an unfinished promise is said plainly, with both ways out", async () => {
  await rewriteFile(whole, at("promise"), { rename: (name) => (name.startsWith("blk.2.") ? undefined : name) });
  const { mtp } = auditModel(readGguf(at("promise")));
  expect(mtp.verdict).toBe("advertised-but-absent");
  expect(mtp.advice).toMatch(/nextn_predict_layers says 1, but no tensor .* foretoken repair .* foretoken graft/);
});

test("a file differs from itself in nothing, data included", async () => {
  const diff = await diffModels(readGguf(whole), readGguf(whole), { hash: () => true });
  expect(diff).toMatchObject({ keys: [], tensors: [], data: [] });
  expect(diff.nEqualTensors).toBe(readGguf(whole).tensors.length);
});

test("a diff names keys, tensors, types and data that differ", async () => {
  await rewriteFile(whole, at("changed"), {
    entries: { "general.name": undefined, "qwen35moe.context_length": u32Entry("qwen35moe.context_length", 77) },
    rename: (name) => (name === "output_norm.weight" ? undefined : name),
  });
  const changed = await diffModels(readGguf(whole), readGguf(at("changed")), { hash: () => true });
  expect(changed.keys).toEqual([
    { name: "general.name", a: '"random weights"', b: undefined },
    { name: "qwen35moe.context_length", a: "4096", b: "77" },
  ]);
  expect(changed.tensors).toEqual([{ name: "output_norm.weight", a: "F32 [64]", b: undefined }]);
  expect(changed.data).toEqual([]);

  const other = await synthSmall(at("other"), {}, 2);
  const seeds = await diffModels(readGguf(whole), readGguf(other), { hash: (name) => name.startsWith("blk.0.") });
  expect(seeds.keys.map((c) => c.name)).toEqual(["general.description"]);
  expect(seeds.data).toEqual(trunkLayerTensors(smallShape, 0).map((t) => t.name));

  const types = await synthSmall(at("types"), {}, 1, "BF16");
  const retyped = await diffModels(readGguf(whole), readGguf(types));
  expect(retyped.tensors).toContainEqual({ name: "output.weight", a: "Q8_0 [64, 300]", b: "BF16 [64, 300]" });
  expect(retyped.data).toBeUndefined();

  const model = readGguf(whole);
  const padded = { ...model, tensors: model.tensors.map((t) => ({ ...t, shape: [...t.shape, 1] })) };
  expect((await diffModels(model, padded, { hash: () => true })).tensors).toEqual([]);
});

test.each([
  ["a missing tensor", { rename: (name: string) => (name === "blk.0.ssm_a" ? undefined : name) }, "missing tensors: blk.0.ssm_a"],
  ["a tensor under another's name", { rename: (name: string) => (name === "blk.1.attn_q_norm.weight" ? "blk.1.attn_k_norm.weight" : name === "blk.1.attn_k_norm.weight" ? "blk.1.attn_k.weight" : name === "blk.1.attn_k.weight" ? "blk.1.attn_q_norm.weight" : name) }, "tensors of another shape: blk.1.attn_k.weight [32] instead of [64, 32], blk.1.attn_q_norm.weight [64, 32] instead of [32]"],
  ["a missing size", { entries: { "qwen35moe.ssm.state_size": undefined } }, "the key qwen35moe.ssm.state_size is missing"],
  ["more experts used than there are", { entries: { "qwen35moe.expert_used_count": u32Entry("qwen35moe.expert_used_count", 3) } }, "expert_used_count is 3 of 2 experts: llama.cpp aborts"],
  ["a size of another type", { entries: { "qwen35moe.context_length": scalarEntry("qwen35moe.context_length", "i32", 4096) } }, "the key qwen35moe.context_length is i32, llama.cpp reads u32 alone"],
  ["no inner size", { entries: { "qwen35moe.ssm.inner_size": undefined } }, "the key qwen35moe.ssm.inner_size is missing"],
  ["a tensor that nobody asks for", { rename: (name: string) => (name === "blk.0.ssm_a" ? "blk.0.ssm_b" : name) }, "tensors that it does not ask for: blk.0.ssm_b"],
  ["no tokens", { entries: { "tokenizer.ggml.tokens": undefined } }, "the key tokenizer.ggml.tokens is missing"],
  ["no merges", { entries: { "tokenizer.ggml.merges": undefined } }, "the key tokenizer.ggml.merges is missing"],
  ["a token twice", { entries: { "tokenizer.ggml.tokens": arrayEntry("tokenizer.ggml.tokens", "string", Array.from({ length: 300 }, (_, i) => `t${i === 250 ? 17 : i}`)) } }, "tokens 17 and 250 are the same text: llama.cpp aborts"],
])("%s is said before llama.cpp says it", async (name, change: Rewrite, message) => {
  const file = await rewriteFile(whole, at(name), change);
  const { problems } = auditModel(readGguf(file));
  expect(problems.join("; ")).toContain(message);
});

test("a sound file has no problems, whole, trunk alone and head alone", async () => {
  expect(auditModel(readGguf(whole)).problems).toEqual([]);
  await extractHead({ input: whole, output: at("head") });
  expect(auditModel(readGguf(at("head"))).problems).toEqual([]);
  await stripHead({ input: whole, output: at("trunk") });
  expect(auditModel(readGguf(at("trunk"))).problems).toEqual([]);
});
