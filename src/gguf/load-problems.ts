/**
 * Why llama.cpp would refuse a file, or abort on it, although its header is sound: found by giving damaged files to
 * both (docs/formats.md, What llama.cpp refuses). Empty means that nothing was found, not that the file loads.
 */
import { UserError } from "../util/errors.ts";
import { printable } from "./error.ts";
import { arrayKey, architecture, modelKey, numberKey, stringKey } from "./keys.ts";
import { duplicateString } from "./duplicate-string.ts";
import { isKnownArchitecture, nextnLayerTensors, outerTensors, sameShape, shapeOf, trunkLayerTensors, type ExpectedTensor, type ModelShape } from "./model-shape.ts";
import { mtpStatus } from "./mtp-status.ts";
import type { GgufModel } from "./split.ts";

const maxExperts = 1024;
const maxNames = 4;

export function loadProblems(model: GgufModel): string[] {
  if (!isKnownArchitecture(architecture(model))) return [];
  let shape: ModelShape;
  try {
    shape = shapeOf(model);
  } catch (error) {
    if (error instanceof UserError) return [error.message];
    throw error;
  }
  return [...keyProblems(model, shape), ...sizeProblems(shape), ...tensorProblems(model, shape), ...tokenizerProblems(model)];
}

/** Keys that the loader reads as u32 or f32 and no other type. */
const u32Keys = ["block_count", "context_length", "embedding_length", "nextn_predict_layers", "expert_count", "expert_shared_feed_forward_length", "ssm.conv_kernel", "ssm.inner_size", "ssm.state_size", "ssm.time_step_rank", "ssm.group_count", "attention.key_length", "attention.value_length", "rope.dimension_count", "full_attention_interval"];
const u32OrListKeys = ["attention.head_count", "attention.head_count_kv", "feed_forward_length", "expert_feed_forward_length", "expert_used_count"];
const f32Keys = ["attention.layer_norm_rms_epsilon", "rope.freq_base"];

function keyProblems(model: GgufModel, shape: ModelShape): string[] {
  const problems: string[] = [];
  const demand = (name: string, type: string): void => {
    const entry = model.entries.get(modelKey(model, name));
    if (entry?.kind === "scalar" && entry.type !== type) problems.push(`the key ${entry.key} is ${entry.type}, llama.cpp reads ${type} alone`);
  };
  for (const name of [...u32Keys, ...u32OrListKeys]) demand(name, "u32");
  for (const name of f32Keys) demand(name, "f32");
  const innerKey = modelKey(model, "ssm.inner_size");
  if (!model.entries.has(innerKey)) problems.push(`the key ${innerKey} is missing`);
  const valueLength = numberKey(model, modelKey(model, "attention.value_length")) ?? Math.floor(shape.embeddingLength / shape.nHeads);
  if (valueLength !== shape.headDim) problems.push(`attention.value_length ${valueLength} differs from attention.key_length ${shape.headDim}`);
  return problems;
}

function sizeProblems({ experts, nHeads, nKvHeads }: ModelShape): string[] {
  const problems: string[] = [];
  if (experts !== undefined && (experts.usedCount > experts.count || experts.usedCount === 0)) problems.push(`expert_used_count is ${experts.usedCount} of ${experts.count} experts: llama.cpp aborts`);
  if (experts !== undefined && experts.count > maxExperts) problems.push(`expert_count is ${experts.count}, the limit is ${maxExperts}: llama.cpp aborts`);
  if (nKvHeads === 0 || nHeads % nKvHeads !== 0) problems.push(`attention.head_count ${nHeads} is no multiple of attention.head_count_kv ${nKvHeads}`);
  return problems;
}

/** Tensors that are missing or have another shape; those of an absent head are the business of the MTP status. */
function tensorProblems(model: GgufModel, shape: ModelShape): string[] {
  const { isHeadOnly, blocks, verdict } = mtpStatus(model);
  const expected: ExpectedTensor[] = outerTensors(shape);
  if (!isHeadOnly) for (let layer = 0; layer < shape.nLayers; layer++) expected.push(...trunkLayerTensors(shape, layer));
  for (const block of blocks) expected.push(...nextnLayerTensors(shape, block));
  const found = new Map(model.tensors.map((t) => [t.name, t]));
  const isFused = (name: string): boolean => (/\.ffn_(gate|up)_exps\./.test(name) && found.has(name.replace(/ffn_\w+_exps/, "ffn_gate_up_exps"))) || (/\.attn_[qkv]\./.test(name) && found.has(name.replace(/attn_[qkv]\./, "attn_qkv.")));
  const missing = expected.filter((t) => t.isOptional !== true && !found.has(t.name) && !isFused(t.name)).map((t) => t.name);
  const misshapen = expected.flatMap((t) => {
    const tensor = found.get(t.name);
    return tensor === undefined || sameShape(tensor.shape, t.shape) ? [] : [`${t.name} [${tensor.shape.join(", ")}] instead of [${t.shape.join(", ")}]`];
  });
  const asked = new Set(expected.map((t) => t.name));
  const isSound = verdict === "none" || verdict === "complete";
  const unasked = isSound ? model.tensors.filter((t) => !asked.has(t.name) && !mayAppear.test(t.name)).map((t) => t.name) : [];
  return [...listed("missing tensors", missing), ...listed("tensors of another shape", misshapen), ...listed("tensors that it does not ask for", unasked)];
}

/** Parts that the loader takes when they are there. */
const mayAppear = /^rope_freqs\.weight$|\.(bias|scale|input_scale)$|\.(ffn_gate_up_exps|attn_qkv)\.weight$|^output\.weight$/;

function listed(title: string, names: readonly string[]): string[] {
  if (names.length === 0) return [];
  return [`${title}: ${printable(names.slice(0, maxNames).join(", "))}${names.length > maxNames ? `, and ${names.length - maxNames} more` : ""}`];
}

function tokenizerProblems(model: GgufModel): string[] {
  const kind = stringKey(model, "tokenizer.ggml.model");
  if (kind === undefined) return ["the key tokenizer.ggml.model is missing"];
  const problems: string[] = [];
  if (kind === "gpt2" && arrayKey(model, "tokenizer.ggml.merges") === undefined) problems.push("the key tokenizer.ggml.merges is missing");
  const tokens = arrayKey(model, "tokenizer.ggml.tokens");
  if (tokens === undefined) problems.push("the key tokenizer.ggml.tokens is missing");
  const duplicate = tokens === undefined || !model.littleEndian ? undefined : duplicateString(tokens);
  if (duplicate !== undefined) problems.push(`tokenizer.ggml.tokens: tokens ${duplicate.join(" and ")} are the same text: llama.cpp aborts`);
  return problems;
}
