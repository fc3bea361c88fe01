/**
 * config.json of a Qwen3.5 checkpoint as a ModelShape. The multimodal wrapper keeps the text model's keys under
 * `text_config`. Defaults are those of transformers' Qwen3_5Config where llama.cpp's converter relies on them; every
 * other missing key is named.
 */
import * as path from "node:path";
import { FormatError } from "../gguf/error.ts";
import { maxLayers, type Architecture, type ModelShape } from "../gguf/model-shape.ts";
import { UserError } from "../util/errors.ts";
import type { Checkpoint, JsonObject } from "./checkpoint.ts";

export interface ModelConfig {
  readonly shape: ModelShape;
  /** What the config promises; whether the tensors are there is another question. */
  readonly nMtpLayers: number;
  /** The text model's keys at the top level. */
  readonly json: JsonObject;
}

const architectures: Readonly<Record<string, Architecture>> = {
  qwen3_5: "qwen35",
  qwen3_5_text: "qwen35",
  qwen3_5_moe: "qwen35moe",
  qwen3_5_moe_text: "qwen35moe",
};

const isObject = (value: unknown): value is JsonObject => typeof value === "object" && value !== null && !Array.isArray(value);

/**
 * @throws {UserError} for another architecture, a quantized checkpoint, or missing keys (all of them named).
 * @throws {FormatError} for a key of the wrong type.
 */
export function readModelConfig(checkpoint: Checkpoint): ModelConfig {
  const file = path.join(checkpoint.folder, "config.json");
  const text = checkpoint.config["text_config"];
  const json: JsonObject = isObject(text) ? { ...checkpoint.config, ...text } : checkpoint.config;
  const modelType = String(json["model_type"] ?? checkpoint.config["model_type"]);
  const architecture = Object.hasOwn(architectures, modelType) ? architectures[modelType] : undefined;
  if (architecture === undefined) throw new UserError(`${file}: model_type ${modelType}; ${Object.keys(architectures).join(", ")} are supported`);
  if (isObject(json["quantization_config"])) throw new UserError(`${file}: the checkpoint is quantized (${String(json["quantization_config"]["quant_method"])}); convert the BF16, F16 or F32 original`);
  return { shape: readShape(new Keys(file, json), architecture), nMtpLayers: typeof json["mtp_num_hidden_layers"] === "number" ? json["mtp_num_hidden_layers"] : 0, json };
}

/** Reads typed keys and collects the missing ones, so that one error names them all. */
class Keys {
  readonly #file: string;
  readonly json: JsonObject;
  readonly missing: string[] = [];

  constructor(file: string, json: JsonObject) {
    this.#file = file;
    this.json = json;
  }

  number(key: string, fallback?: number): number {
    const value = this.json[key] ?? fallback;
    if (value === undefined) this.missing.push(key);
    else if (typeof value !== "number" || !Number.isFinite(value)) throw new FormatError(this.#file, 0, key, `must be a number, is ${JSON.stringify(value)}`);
    return typeof value === "number" ? value : 0;
  }

  count(key: string, fallback?: number): number {
    const value = this.number(key, fallback);
    if (!Number.isSafeInteger(value) || value < 0) throw new FormatError(this.#file, 0, key, `must be a count, is ${value}`);
    return value;
  }

  refuseIfMissing(): void {
    if (this.missing.length > 0) throw new UserError(`${this.#file}: missing ${this.missing.join(", ")}`);
  }
}

function readShape(keys: Keys, architecture: Architecture): ModelShape {
  const { json } = keys;
  const rope = isObject(json["rope_parameters"]) ? json["rope_parameters"] : isObject(json["rope_scaling"]) ? json["rope_scaling"] : {};
  const ropeType = rope["rope_type"] ?? rope["type"] ?? "default";
  if (ropeType !== "default") throw new UserError(`rope_type ${JSON.stringify(ropeType)} is not converted; only the default rotary embedding is`);
  const nLayers = keys.count("num_hidden_layers");
  if (nLayers > maxLayers) throw new UserError(`num_hidden_layers is ${nLayers}, the limit of llama.cpp is ${maxLayers}`);
  const nHeads = keys.count("num_attention_heads");
  const embeddingLength = keys.count("hidden_size");
  const headDim = keys.count("head_dim", nHeads === 0 ? 0 : embeddingLength / nHeads);
  const interval = keys.count("full_attention_interval", 4);
  const keyDim = keys.count("linear_key_head_dim");
  const valueDim = keys.count("linear_value_head_dim");
  const shape: ModelShape = {
    architecture,
    nLayers,
    nNextnLayers: 0,
    embeddingLength,
    vocabSize: keys.count("vocab_size"),
    contextLength: keys.count("max_position_embeddings"),
    nHeads,
    nKvHeads: keys.count("num_key_value_heads"),
    headDim,
    rmsEpsilon: keys.number("rms_norm_eps"),
    ropeDimension: Math.trunc(headDim * asNumber(rope["partial_rotary_factor"] ?? json["partial_rotary_factor"], 0.25)),
    ropeFreqBase: asNumber(rope["rope_theta"] ?? json["rope_theta"], 0) || keys.number("rope_theta"),
    ropeSections: ropeSections(rope["mrope_section"]),
    fullAttentionInterval: interval,
    isRecurrent: [],
    ssm: { convKernel: keys.count("linear_conv_kernel_dim"), stateSize: keyDim, groupCount: keys.count("linear_num_key_heads"), timeStepRank: keys.count("linear_num_value_heads") },
    ...feedForwardSizes(keys, architecture),
    isTied: json["tie_word_embeddings"] === true,
  };
  keys.refuseIfMissing();
  if (keyDim !== valueDim) throw new UserError(`linear_key_head_dim ${keyDim} and linear_value_head_dim ${valueDim} differ; llama.cpp has one size (ssm.state_size) for both`);
  return { ...shape, isRecurrent: recurrentLayers(json["layer_types"], nLayers, interval) };
}

function feedForwardSizes(keys: Keys, architecture: Architecture): Pick<ModelShape, "experts" | "feedForward"> {
  if (architecture === "qwen35") return { feedForward: keys.count("intermediate_size") };
  return {
    experts: {
      count: keys.count("num_experts"),
      usedCount: keys.count("num_experts_per_tok"),
      feedForward: keys.count("moe_intermediate_size"),
      sharedFeedForward: keys.count("shared_expert_intermediate_size"),
    },
  };
}

const asNumber = (value: unknown, fallback: number): number => (typeof value === "number" ? value : fallback);

/** Four sizes; the default is the one that llama.cpp's converter writes for Qwen3.5. */
function ropeSections(value: unknown): readonly number[] {
  if (!Array.isArray(value)) return [11, 11, 10, 0];
  return [0, 1, 2, 3].map((i) => asNumber(value[i], 0));
}

function recurrentLayers(types: unknown, nLayers: number, interval: number): readonly boolean[] {
  if (!Array.isArray(types)) return Array.from({ length: nLayers }, (_, i) => interval === 0 || (i + 1) % interval !== 0);
  if (types.length !== nLayers) throw new UserError(`layer_types has ${types.length} entries, num_hidden_layers is ${nLayers}`);
  return types.map((type) => type === "linear_attention");
}
