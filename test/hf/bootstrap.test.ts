import { createHash } from "node:crypto";
import * as fs from "node:fs";
import * as os from "node:os";
import * as path from "node:path";
import { afterAll, beforeAll, expect, test } from "vitest";
import { readRange } from "../../src/gguf/kv.ts";
import { countKey } from "../../src/gguf/keys.ts";
import { readGgufHeader } from "../../src/gguf/reader.ts";
import type { GgufHeader } from "../../src/gguf/header.ts";
import { bootstrapHead } from "../../src/hf/bootstrap.ts";
import { readCheckpoint } from "../../src/hf/checkpoint.ts";
import { convertCheckpoint } from "../../src/hf/convert.ts";
import { embeddedCheckpoint } from "../../src/util/paths.ts";

const folder = fs.mkdtempSync(path.join(os.tmpdir(), "bootstrap-"));
afterAll(() => fs.rmSync(folder, { recursive: true }));

const built = path.join(folder, "head");
const headFile = path.join(folder, "head.gguf");
const trunkFile = path.join(folder, "trunk.gguf");
let head: GgufHeader;
let trunk: GgufHeader;

beforeAll(async () => {
  await bootstrapHead({ checkpoint: embeddedCheckpoint, output: built, ehProjInit: "hidden", dtype: "BF16" });
  await convertCheckpoint({ checkpoint: built, output: headFile, outType: "BF16", mtp: "mtp" });
  await convertCheckpoint({ checkpoint: embeddedCheckpoint, output: trunkFile, outType: "BF16", mtp: "trunk" });
  [head, trunk] = [readGgufHeader(headFile), readGgufHeader(trunkFile)];
});

function hashOf(header: GgufHeader, name: string): string {
  const tensor = header.tensors.find((t) => t.name === name) ?? expect.fail(`no tensor ${name}`);
  return sha256(readRange({ file: tensor.file, offset: tensor.offset, sizeBytes: tensor.sizeBytes }));
}

const sha256 = (bytes: Uint8Array): string => createHash("sha256").update(bytes).digest("hex");

test("the checkpoint has the names of the Qwen3.5 releases", () => {
  const names = [...readCheckpoint(built).tensors.keys()];
  expect(names.filter((name) => !name.startsWith("mtp."))).toEqual(["lm_head.weight", "model.embed_tokens.weight", "model.norm.weight"]);
  expect(names.filter((name) => name.startsWith("mtp.") && !name.startsWith("mtp.layers.0."))).toEqual(["mtp.fc.weight", "mtp.norm.weight", "mtp.pre_fc_norm_embedding.weight", "mtp.pre_fc_norm_hidden.weight"]);
  expect(names).toContain("mtp.layers.0.self_attn.q_proj.weight");
});

test("the MTP-only file has the tensors and keys that llama.cpp asks for, and the block keeps its index", () => {
  const block = ["attn_k", "attn_k_norm", "attn_norm", "attn_output", "attn_q", "attn_q_norm", "attn_v", "ffn_down_exps", "ffn_down_shexp", "ffn_gate_exps", "ffn_gate_inp", "ffn_gate_inp_shexp", "ffn_gate_shexp", "ffn_up_exps", "ffn_up_shexp", "nextn.eh_proj", "nextn.enorm", "nextn.hnorm", "nextn.shared_head_norm", "post_attention_norm"];
  expect(head.tensors.map((t) => t.name).toSorted()).toEqual([...block.map((name) => `blk.8.${name}.weight`), "output.weight", "output_norm.weight", "token_embd.weight"]);
  expect(countKey(head, "qwen35moe.block_count")).toBe(9);
  expect(countKey(head, "qwen35moe.nextn_predict_layers")).toBe(1);
  const keys = [...head.entries.keys()].toSorted();
  expect(keys.filter((key) => !trunk.entries.has(key))).toEqual(["qwen35moe.nextn_predict_layers"]);
  expect([...trunk.entries.keys()].filter((key) => !head.entries.has(key))).toEqual([]);
  const layers = head.entries.get("qwen35moe.attention.recurrent_layers");
  expect(layers?.kind === "array" && layers.values).toEqual([true, true, true, false, true, true, true, false, false]);
});

test("the layer is a copy of the last full-attention layer, the norms begin at one", () => {
  for (const name of ["attn_q", "ffn_down_exps", "attn_norm", "ffn_gate_inp"]) expect(hashOf(head, `blk.8.${name}.weight`)).toBe(hashOf(trunk, `blk.7.${name}.weight`));
  for (const name of ["token_embd.weight", "output.weight", "output_norm.weight"]) expect(hashOf(head, name)).toBe(hashOf(trunk, name));
  expect(hashOf(head, "blk.8.nextn.shared_head_norm.weight")).toBe(hashOf(trunk, "output_norm.weight"));
  const ones = sha256(new Uint8Array(new Float32Array(256).fill(1).buffer));
  for (const name of ["enorm", "hnorm"]) expect(hashOf(head, `blk.8.nextn.${name}.weight`)).toBe(ones);
});

test.each([
  ["hidden", 0, 1],
  ["embedding", 1, 0],
  ["mean", 0.5, 0.5],
] as const)("the projection passes %s", async (ehProjInit, ofEmbedding, ofHidden) => {
  const output = path.join(folder, ehProjInit);
  await bootstrapHead({ checkpoint: embeddedCheckpoint, output, ehProjInit, dtype: "F32", sourceLayer: 3 });
  const fc = readCheckpoint(output).tensors.get("mtp.fc.weight") ?? expect.fail();
  expect([fc.dtype, fc.shape]).toEqual(["F32", [256, 512]]);
  const bytes = readRange({ file: fc.file, offset: fc.offset, sizeBytes: fc.sizeBytes });
  const weights = new Float32Array(bytes.buffer.slice(bytes.byteOffset, bytes.byteOffset + bytes.length));
  expect([weights[5 * 512 + 5], weights[5 * 512 + 256 + 5], weights[5 * 512 + 6]]).toEqual([ofEmbedding, ofHidden, 0]);
  expect(weights.reduce((sum, w) => sum + w, 0)).toBe(256);
});

test("a linear-attention layer is refused with the list of valid ones", async () => {
  const build = (sourceLayer: number, output = path.join(folder, "x")): Promise<unknown> => bootstrapHead({ checkpoint: embeddedCheckpoint, output, sourceLayer, ehProjInit: "hidden", dtype: "BF16" });
  await expect(build(6)).rejects.toThrow("--source-layer 6 is a linear-attention layer, an MTP head is a full-attention layer; valid: 3, 7");
  await expect(build(8)).rejects.toThrow("does not exist (the model has layers 0 to 7); valid: 3, 7");
  expect(fs.existsSync(path.join(folder, "x"))).toBe(false);
});

test("an existing folder is replaced only with force, and only when it is a checkpoint", async () => {
  const build = (output: string, force: boolean): Promise<unknown> => bootstrapHead({ checkpoint: embeddedCheckpoint, output, ehProjInit: "hidden", dtype: "BF16", force });
  await expect(build(built, false)).rejects.toThrow("give --force to replace it");
  await build(built, true);
  const other = path.join(folder, "other");
  fs.mkdirSync(other);
  fs.writeFileSync(path.join(other, "thesis.txt"), "");
  await expect(build(other, true)).rejects.toThrow("is no checkpoint");
  expect(fs.readdirSync(other)).toEqual(["thesis.txt"]);
  expect(fs.readdirSync(folder).filter((name) => name.includes(".tmp"))).toEqual([]);
});
