/** What a head takes from its target file: dimensions, embedding and LM head, and the layer a new head copies. */
import { countKey, modelKey, numberKey } from "../gguf/keys.ts";
import { shapeOf, type ModelShape } from "../gguf/model-shape.ts";
import { readGguf, type GgufModel } from "../gguf/split.ts";
import type { GgufTensor } from "../gguf/header.ts";
import type { GgmlDevice } from "../llama/ggml.ts";
import { UserError } from "../util/errors.ts";
import type { FrozenWeights } from "./frozen.ts";
import { parameterSpecs, type HeadShape, type HeadWeights } from "./head-shape.ts";
import { readTensorValues } from "./tensor-values.ts";

export interface Target {
  readonly file: string;
  readonly gguf: GgufModel;
  readonly model: ModelShape;
  readonly head: HeadShape;
}

/** @throws {UserError} for an architecture whose MTP block is not the one trained here. */
export function readTarget(file: string): Target {
  const gguf = readGguf(file);
  const model = shapeOf(gguf);
  if (model.experts === undefined) throw new UserError(`${file} is ${model.architecture}; training knows the MTP block of qwen35moe`);
  const scaling = gguf.entries.get(modelKey(gguf, "rope.scaling.type"));
  if (scaling !== undefined && scaling.kind === "scalar" && scaling.value !== "none" && scaling.value !== "linear") throw new UserError(`${file} uses ${String(scaling.value)} rope scaling; training knows none and linear`);
  const scalingFactor = numberKey(gguf, modelKey(gguf, "rope.scaling.factor")) ?? 1;
  const head: HeadShape = {
    nEmbd: model.embeddingLength,
    nVocab: model.vocabSize,
    nHead: model.nHeads,
    nHeadKv: model.nKvHeads,
    nEmbdHead: model.headDim,
    nRot: model.ropeDimension,
    ropeFreqBase: model.ropeFreqBase,
    ropeFreqScale: 1 / (scalingFactor === 0 ? 1 : scalingFactor),
    normEps: model.rmsEpsilon,
    nExpert: model.experts.count,
    nExpertUsed: model.experts.usedCount,
    nFfExpert: model.experts.feedForward,
    nFfShared: model.experts.sharedFeedForward,
    expertWeightsScale: numberKey(gguf, modelKey(gguf, "expert_weights_scale")) || 1,
  };
  return { file, gguf, model, head };
}

function tensorOf(gguf: GgufModel, name: string): GgufTensor {
  const tensor = gguf.tensors.find((t) => t.name === name);
  if (tensor === undefined) throw new UserError(`${gguf.file} has no tensor ${name}`);
  return tensor;
}

/** Embedding and LM head, dequantized. `device` is a CPU device. */
export function readFrozen({ gguf, model }: Target, device: GgmlDevice): FrozenWeights {
  const embedding = readTensorValues(device, tensorOf(gguf, "token_embd.weight"));
  return { embedding, lmHead: model.isTied ? embedding : readTensorValues(device, tensorOf(gguf, "output.weight")) };
}

/** The last full-attention layer, the one that a bootstrap head copies. */
export function copiedLayer({ model, file }: Target): number {
  const layer = model.isRecurrent.lastIndexOf(false);
  if (layer < 0) throw new UserError(`${file} has no full-attention layer to copy a head from`);
  return layer;
}

/** The bootstrap head: that layer behind a projection that passes the hidden row. */
export function bootstrapWeights(target: Target, device: GgmlDevice): Map<string, Float32Array> {
  const d = target.head.nEmbd;
  const layer = copiedLayer(target);
  return new Map(
    parameterSpecs(target.head).map(({ name }) => {
      if (name === "nextn.enorm.weight" || name === "nextn.hnorm.weight") return [name, new Float32Array(d).fill(1)];
      if (name === "nextn.eh_proj.weight") return [name, passHidden(d)];
      const source = name === "nextn.shared_head_norm.weight" ? "output_norm.weight" : `blk.${layer}.${name}`;
      return [name, readTensorValues(device, tensorOf(target.gguf, source))];
    }),
  );
}

function passHidden(d: number): Float32Array {
  const weights = new Float32Array(2 * d * d);
  for (let i = 0; i < d; i++) weights[i * 2 * d + d + i] = 1;
  return weights;
}

/** The head in a file: an MTP-only GGUF, or a model with one. */
export function readHeadWeights(file: string, shape: HeadShape, device: GgmlDevice): HeadWeights {
  const gguf = readGguf(file);
  const nBlocks = countKey(gguf, modelKey(gguf, "block_count")) ?? 0;
  const nNextn = countKey(gguf, modelKey(gguf, "nextn_predict_layers")) ?? 0;
  if (nNextn !== 1) throw new UserError(`${file} has ${nNextn} MTP layers; a head to start from has one`);
  const weights = parameterSpecs(shape).map(({ name }): [string, Float32Array] => {
    const tensor = gguf.tensors.find((t) => t.name === `blk.${nBlocks - 1}.${name}`);
    if (tensor === undefined && name === "nextn.shared_head_norm.weight") return [name, readTensorValues(device, tensorOf(gguf, "output_norm.weight"))];
    return [name, readTensorValues(device, tensor ?? tensorOf(gguf, `blk.${nBlocks - 1}.${name}`))];
  });
  return new Map(weights);
}
