/**
 * What a qwen35moe or qwen35 model consists of: its sizes, and from them the tensors that llama.cpp's loader asks
 * for (src/models/qwen35moe.cpp, qwen35.cpp of v0.5.0). The converter, the audit, graft and synth all read the one
 * list here.
 */
import { UserError } from "../util/errors.ts";
import type { GgufTensor } from "./header.ts";
import { arrayKey, architecture, countKey, numberKey, type HasEntries } from "./keys.ts";

export type Architecture = "qwen35moe" | "qwen35";

export interface ModelShape {
  readonly architecture: Architecture;
  /** Trunk layers; the NextN layers come after them. */
  readonly nLayers: number;
  readonly nNextnLayers: number;
  readonly embeddingLength: number;
  readonly vocabSize: number;
  readonly contextLength: number;
  readonly nHeads: number;
  readonly nKvHeads: number;
  readonly headDim: number;
  readonly rmsEpsilon: number;
  readonly ropeDimension: number;
  readonly ropeFreqBase: number;
  readonly ropeSections: readonly number[];
  readonly fullAttentionInterval: number;
  /** One per trunk layer: true for a gated-delta-net layer. */
  readonly isRecurrent: readonly boolean[];
  readonly ssm: {
    readonly convKernel: number;
    /** Head dimension of keys and values alike. */
    readonly stateSize: number;
    /** Key heads. */
    readonly groupCount: number;
    /** Value heads. */
    readonly timeStepRank: number;
  };
  /** Of qwen35moe. */
  readonly experts?: { readonly count: number; readonly usedCount: number; readonly feedForward: number; readonly sharedFeedForward: number } | undefined;
  /** Of qwen35. */
  readonly feedForward?: number | undefined;
  /** No output.weight: the token embeddings serve as such. */
  readonly isTied: boolean;
}

export interface ExpectedTensor {
  readonly name: string;
  readonly shape: readonly number[];
  /** llama.cpp loads the model without it. */
  readonly isOptional?: boolean;
}

export const innerSize = (shape: ModelShape): number => shape.ssm.stateSize * shape.ssm.timeStepRank;

/** LLAMA_MAX_LAYERS. */
export const maxLayers = 512;

const tensor = (name: string, ...shape: number[]): ExpectedTensor => ({ name, shape });

/** token_embd, output_norm and, unless tied, output. */
export function outerTensors(s: ModelShape): ExpectedTensor[] {
  const outer = [tensor("token_embd.weight", s.embeddingLength, s.vocabSize), tensor("output_norm.weight", s.embeddingLength)];
  return s.isTied ? outer : [...outer, tensor("output.weight", s.embeddingLength, s.vocabSize)];
}

export function trunkLayerTensors(s: ModelShape, layer: number): ExpectedTensor[] {
  return [...normTensors(s, layer), ...(s.isRecurrent[layer] === true ? deltaNetTensors(s, layer) : attentionTensors(s, layer)), ...feedForwardTensors(s, layer)];
}

/** The MTP head: a full-attention layer and what joins embedding and hidden row. `layer` counts from the first trunk layer. */
export function nextnLayerTensors(s: ModelShape, layer: number): ExpectedTensor[] {
  const d = s.embeddingLength;
  const at = (name: string): string => `blk.${layer}.nextn.${name}.weight`;
  return [
    ...normTensors(s, layer),
    ...attentionTensors(s, layer),
    ...feedForwardTensors(s, layer),
    tensor(at("eh_proj"), 2 * d, d),
    tensor(at("enorm"), d),
    tensor(at("hnorm"), d),
    { ...tensor(at("shared_head_norm"), d), isOptional: true },
    { ...tensor(at("embed_tokens"), d, s.vocabSize), isOptional: true },
    { ...tensor(at("shared_head_head"), d, s.vocabSize), isOptional: true },
  ];
}

function normTensors(s: ModelShape, layer: number): ExpectedTensor[] {
  return [tensor(`blk.${layer}.attn_norm.weight`, s.embeddingLength), tensor(`blk.${layer}.post_attention_norm.weight`, s.embeddingLength)];
}

function attentionTensors(s: ModelShape, layer: number): ExpectedTensor[] {
  const [d, at] = [s.embeddingLength, `blk.${layer}.`];
  return [
    tensor(`${at}attn_q.weight`, d, s.headDim * s.nHeads * 2),
    tensor(`${at}attn_k.weight`, d, s.headDim * s.nKvHeads),
    tensor(`${at}attn_v.weight`, d, s.headDim * s.nKvHeads),
    tensor(`${at}attn_output.weight`, s.headDim * s.nHeads, d),
    tensor(`${at}attn_q_norm.weight`, s.headDim),
    tensor(`${at}attn_k_norm.weight`, s.headDim),
  ];
}

function deltaNetTensors(s: ModelShape, layer: number): ExpectedTensor[] {
  const [d, at] = [s.embeddingLength, `blk.${layer}.`];
  const keySize = s.ssm.stateSize * s.ssm.groupCount;
  const valueSize = innerSize(s);
  return [
    tensor(`${at}attn_qkv.weight`, d, 2 * keySize + valueSize),
    tensor(`${at}attn_gate.weight`, d, valueSize),
    tensor(`${at}ssm_conv1d.weight`, s.ssm.convKernel, 2 * keySize + valueSize),
    tensor(`${at}ssm_dt.bias`, s.ssm.timeStepRank),
    tensor(`${at}ssm_a`, s.ssm.timeStepRank),
    tensor(`${at}ssm_beta.weight`, d, s.ssm.timeStepRank),
    tensor(`${at}ssm_alpha.weight`, d, s.ssm.timeStepRank),
    tensor(`${at}ssm_norm.weight`, s.ssm.stateSize),
    tensor(`${at}ssm_out.weight`, valueSize, d),
  ];
}

function feedForwardTensors(s: ModelShape, layer: number): ExpectedTensor[] {
  const [d, at, experts] = [s.embeddingLength, `blk.${layer}.`, s.experts];
  if (experts === undefined) {
    const ff = s.feedForward ?? 0;
    return [tensor(`${at}ffn_gate.weight`, d, ff), tensor(`${at}ffn_up.weight`, d, ff), tensor(`${at}ffn_down.weight`, ff, d)];
  }
  return [
    tensor(`${at}ffn_gate_inp.weight`, d, experts.count),
    tensor(`${at}ffn_gate_exps.weight`, d, experts.feedForward, experts.count),
    tensor(`${at}ffn_up_exps.weight`, d, experts.feedForward, experts.count),
    tensor(`${at}ffn_down_exps.weight`, experts.feedForward, d, experts.count),
    tensor(`${at}ffn_gate_inp_shexp.weight`, d, 1),
    tensor(`${at}ffn_gate_shexp.weight`, d, experts.sharedFeedForward),
    tensor(`${at}ffn_up_shexp.weight`, d, experts.sharedFeedForward),
    tensor(`${at}ffn_down_shexp.weight`, experts.sharedFeedForward, d),
  ];
}

export const isKnownArchitecture = (name: string): name is Architecture => name === "qwen35moe" || name === "qwen35";

/** Equal shapes; sizes of 1 at the end do not count, as in ggml. */
export function sameShape(a: readonly number[], b: readonly number[]): boolean {
  const length = Math.max(a.length, b.length);
  for (let i = 0; i < length; i++) if ((a[i] ?? 1) !== (b[i] ?? 1)) return false;
  return true;
}

/**
 * The shape that a file's metadata tells.
 * @throws {UserError} when the architecture is another, or a key that the loader demands is missing.
 */
export function shapeOf(gguf: HasEntries & { readonly tensors: readonly GgufTensor[] }): ModelShape {
  const arch = architecture(gguf);
  if (!isKnownArchitecture(arch)) throw new UserError(`${gguf.file}: architecture ${arch}; qwen35moe and qwen35 are supported`);
  const optional = (name: string): number | undefined => countKey(gguf, `${arch}.${name}`);
  const count = (name: string): number => optional(name) ?? missingKey(gguf.file, `${arch}.${name}`);
  const [nBlocks, nNextnLayers] = [count("block_count"), optional("nextn_predict_layers") ?? 0];
  if (nNextnLayers > nBlocks) throw new UserError(`${gguf.file}: ${arch}.nextn_predict_layers is ${nNextnLayers}, more than block_count ${nBlocks}`);
  if (nBlocks > maxLayers) throw new UserError(`${gguf.file}: ${arch}.block_count is ${nBlocks}, the limit of llama.cpp is ${maxLayers}`);
  const nLayers = nBlocks - nNextnLayers;
  const [nHeads, embeddingLength, interval] = [count("attention.head_count"), count("embedding_length"), optional("full_attention_interval") ?? 4];
  const recurrent = arrayKey(gguf, `${arch}.attention.recurrent_layers`)?.values;
  const headDim = optional("attention.key_length") ?? embeddingLength / nHeads;
  const embedding = gguf.tensors.find((t) => t.name === "token_embd.weight");
  return {
    architecture: arch,
    nLayers,
    nNextnLayers,
    embeddingLength,
    vocabSize: arrayKey(gguf, "tokenizer.ggml.tokens")?.length ?? embedding?.shape[1] ?? 0,
    contextLength: count("context_length"),
    nHeads,
    nKvHeads: optional("attention.head_count_kv") ?? nHeads,
    headDim,
    rmsEpsilon: numberKey(gguf, `${arch}.attention.layer_norm_rms_epsilon`) ?? missingKey(gguf.file, `${arch}.attention.layer_norm_rms_epsilon`),
    ropeDimension: optional("rope.dimension_count") ?? headDim,
    ropeFreqBase: numberKey(gguf, `${arch}.rope.freq_base`) ?? 10_000,
    ropeSections: (arrayKey(gguf, `${arch}.rope.dimension_sections`)?.values ?? missingKey(gguf.file, `${arch}.rope.dimension_sections`)).map(Number),
    fullAttentionInterval: interval,
    isRecurrent: Array.from({ length: nLayers }, (_, i) => (recurrent === undefined ? interval === 0 || (i + 1) % interval !== 0 : Boolean(recurrent[i]))),
    ssm: { convKernel: count("ssm.conv_kernel"), stateSize: count("ssm.state_size"), groupCount: count("ssm.group_count"), timeStepRank: count("ssm.time_step_rank") },
    ...(arch === "qwen35"
      ? { feedForward: count("feed_forward_length") }
      : { experts: { count: count("expert_count"), usedCount: count("expert_used_count"), feedForward: count("expert_feed_forward_length"), sharedFeedForward: count("expert_shared_feed_forward_length") } }),
    isTied: !gguf.tensors.some((t) => t.name === "output.weight"),
  };
}

function missingKey(file: string, key: string): never {
  throw new UserError(`${file}: the key ${key} is missing, llama.cpp does not load the model without it`);
}
