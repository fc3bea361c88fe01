/**
 * The bootstrap head: a copy of one full-attention trunk layer behind a projection that passes the hidden row, the
 * embedding, or their mean. It loads and drafts badly; it is where training begins.
 */
import type { ModelShape } from "../gguf/model-shape.ts";
import { UserError, usageError } from "../util/errors.ts";
import { readCheckpoint, type Checkpoint } from "./checkpoint.ts";
import { readModelConfig } from "./config.ts";
import { wholeTensor } from "./element-stream.ts";
import type { FloatType } from "./elements.ts";
import { findPlain, writeMtpCheckpoint, type HeadTensor, type MtpCheckpointResult } from "./mtp-checkpoint.ts";
import { plainName } from "./tensor-names.ts";

export type EhProjInit = "hidden" | "embedding" | "mean";

export interface BootstrapOptions {
  readonly checkpoint: string;
  readonly output: string;
  /** The last full-attention layer when not given. */
  readonly sourceLayer?: number | undefined;
  readonly ehProjInit: EhProjInit;
  readonly dtype: FloatType;
  readonly force?: boolean;
  readonly signal?: AbortSignal | undefined;
  readonly onBytes?: ((nBytes: number, totalBytes: number) => void) | undefined;
}

export interface BootstrapResult extends MtpCheckpointResult {
  readonly sourceLayer: number;
}

/**
 * @throws {UserError} when the source layer is no full-attention layer (the valid ones are named), or tensors are missing.
 */
export async function bootstrapHead(options: BootstrapOptions): Promise<BootstrapResult> {
  const trunk = readCheckpoint(options.checkpoint);
  const { shape } = readModelConfig(trunk);
  const sourceLayer = chooseSourceLayer(shape, options.sourceLayer);
  const head = bootstrapTensors(trunk, shape, sourceLayer, options.ehProjInit);
  const result = await writeMtpCheckpoint({ ...options, trunk, head, provenance: { builder: "bootstrap", source_layer: String(sourceLayer), eh_proj_init: options.ehProjInit } });
  return { ...result, sourceLayer };
}

function chooseSourceLayer({ isRecurrent }: ModelShape, wanted: number | undefined): number {
  const valid = isRecurrent.flatMap((recurrent, layer) => (recurrent ? [] : [layer]));
  const layer = wanted ?? valid.at(-1);
  if (layer === undefined) throw new UserError("the model has no full-attention layer to copy a head from");
  if (valid.includes(layer)) return layer;
  const is = layer < 0 || layer >= isRecurrent.length ? `does not exist (the model has layers 0 to ${isRecurrent.length - 1})` : "is a linear-attention layer, an MTP head is a full-attention layer";
  throw usageError(`--source-layer ${layer} ${is}; valid: ${valid.join(", ")}`);
}

function bootstrapTensors(trunk: Checkpoint, shape: ModelShape, sourceLayer: number, init: EhProjInit): HeadTensor[] {
  const d = shape.embeddingLength;
  const prefix = `model.layers.${sourceLayer}.`;
  const layer = [...trunk.tensors.values()].flatMap((tensor): HeadTensor[] => {
    const { name, isMtp } = plainName(tensor.name, shape.nLayers);
    if (isMtp || !name.startsWith(prefix)) return [];
    return [{ name: `mtp.layers.0.${name.slice(prefix.length)}`, shape: tensor.shape, data: { spans: [wholeTensor(tensor)] } }];
  });
  if (layer.length === 0) throw new UserError(`${trunk.folder}: no tensor of layer ${sourceLayer}; is a shard missing?`);
  const norm = findPlain(trunk, "model.norm.weight");
  if (norm === undefined) throw new UserError(`${trunk.folder}: model.norm.weight is missing`);
  return [
    { name: "mtp.fc.weight", shape: [d, 2 * d], data: projection(d, init) },
    ...layer,
    { name: "mtp.norm.weight", shape: norm.shape, data: { spans: [wholeTensor(norm)] } },
    // These norms apply 1 + weight, so zeros leave the normalized row as it is.
    { name: "mtp.pre_fc_norm_embedding.weight", shape: [d], data: new Float32Array(d) },
    { name: "mtp.pre_fc_norm_hidden.weight", shape: [d], data: new Float32Array(d) },
  ];
}

/** [d, 2d] over concat([embedding, hidden]). */
function projection(d: number, init: EhProjInit): Float32Array {
  const weights = new Float32Array(2 * d * d);
  const [ofEmbedding, ofHidden] = { hidden: [0, 1], embedding: [1, 0], mean: [0.5, 0.5] }[init] as [number, number];
  for (let i = 0; i < d; i++) {
    weights[i * 2 * d + i] = ofEmbedding;
    weights[i * 2 * d + d + i] = ofHidden;
  }
  return weights;
}
