/** Hugging Face checkpoint -> GGUF, for qwen3_5 and qwen3_5_moe. Memory holds one block of elements. */
import { u32Entry, type NewEntry } from "../gguf/kv.ts";
import { nextnLayerTensors, outerTensors, sameShape, trunkLayerTensors, type ExpectedTensor, type ModelShape } from "../gguf/model-shape.ts";
import { shapeEntries } from "../gguf/shape-entries.ts";
import { fileTypeId, knownType, quantizationVersion } from "../gguf/types.ts";
import { newTensor, writeGguf } from "../gguf/writer.ts";
import { UserError } from "../util/errors.ts";
import { readCheckpoint } from "./checkpoint.ts";
import { readModelConfig } from "./config.ts";
import { streamElements } from "./element-stream.ts";
import type { FloatType } from "./elements.ts";
import { generalEntries } from "./general-entries.ts";
import { planTensors, type MtpMode, type TensorPlan } from "./tensor-plan.ts";
import { tokenizerEntries } from "./tokenizer.ts";

export interface ConvertOptions {
  readonly checkpoint: string;
  readonly output: string;
  readonly outType: FloatType;
  /** `trunk` leaves the MTP head out, `mtp` writes the head with embeddings and output alone. */
  readonly mtp: MtpMode;
  /** `general.name`; from the folder when not given. */
  readonly name?: string | undefined;
  readonly signal?: AbortSignal | undefined;
  readonly onBytes?: ((nBytes: number, totalBytes: number) => void) | undefined;
}

export interface ConvertResult {
  readonly output: string;
  readonly sizeBytes: number;
  readonly architecture: string;
  readonly nTensors: number;
  readonly nNextnLayers: number;
  /** Remarks for the user, one sentence each. */
  readonly notes: readonly string[];
}

/**
 * Writes what llama.cpp's convert_hf_to_gguf.py writes, tensor by tensor.
 * @throws {UserError} for missing keys, missing or misshapen tensors, an MTP head that is promised but absent.
 */
export async function convertCheckpoint(options: ConvertOptions): Promise<ConvertResult> {
  const checkpoint = readCheckpoint(options.checkpoint);
  const config = readModelConfig(checkpoint);
  const plan = planTensors(checkpoint.tensors.values(), config.shape, options.mtp, options.outType);
  checkHead(options, plan, config.nMtpLayers);
  const shape: ModelShape = { ...config.shape, nNextnLayers: plan.nNextnLayers };
  checkTensors(options.checkpoint, plan, shape, options.mtp);
  const entries: NewEntry[] = [
    ...generalEntries(options.checkpoint, shape.architecture, options.name, plan.tensors),
    ...shapeEntries(shape, fileTypeId(options.outType) ?? 0),
    u32Entry("general.quantization_version", quantizationVersion),
    ...tokenizerEntries(options.checkpoint, config.json, shape.vocabSize),
  ];
  const tensors = plan.tensors.map((t) => newTensor(t.name, t.shape, knownType(t.type), () => streamElements(t.stream, t.type)));
  const { sizeBytes } = await writeGguf(options.output, { entries, tensors, signal: options.signal, onBytes: options.onBytes });
  const notes = plan.nBeside === 0 ? [] : [`${plan.nBeside} vision and audio tensors are left out; the file holds the text model`];
  return { output: options.output, sizeBytes, architecture: shape.architecture, nTensors: tensors.length, nNextnLayers: plan.nNextnLayers, notes };
}

function checkHead({ checkpoint, mtp }: ConvertOptions, plan: TensorPlan, nPromised: number): void {
  if (mtp === "trunk") return;
  if (plan.nNextnLayers === 0) {
    const promise = nPromised > 0 ? `config.json promises ${nPromised} MTP layer${nPromised === 1 ? "" : "s"} (mtp_num_hidden_layers), but the` : "the";
    if (mtp === "mtp" || nPromised > 0) throw new UserError(`${checkpoint}: ${promise} checkpoint holds no mtp.* tensor; convert the trunk with --no-mtp, or build a head first: foretoken bootstrap ${checkpoint}`);
  }
  if (plan.nNextnLayers > 1) throw new UserError(`${checkpoint}: ${plan.nNextnLayers} MTP layers; llama.cpp runs one for this architecture`);
}

/** Names every tensor that is missing or of another shape, before anything is written. */
function checkTensors(folder: string, plan: TensorPlan, shape: ModelShape, mtp: MtpMode): void {
  const byName = new Map(plan.tensors.map((t) => [t.name, t]));
  if (byName.size !== plan.tensors.length) throw new UserError(`${folder}: two tensors of the checkpoint become one GGUF tensor (${plan.tensors.find((t) => byName.get(t.name) !== t)?.name})`);
  const expected: ExpectedTensor[] = outerTensors(shape);
  if (mtp !== "mtp") for (let layer = 0; layer < shape.nLayers; layer++) expected.push(...trunkLayerTensors(shape, layer));
  for (let i = 0; i < shape.nNextnLayers; i++) expected.push(...nextnLayerTensors(shape, shape.nLayers + i));
  const missing = expected.filter((t) => t.isOptional !== true && !byName.has(t.name));
  if (missing.length > 0) throw new UserError(`${folder}: ${missing.length} tensors are missing (by their GGUF names): ${someNames(missing)}`);
  for (const { name, shape: wanted } of expected) {
    const found = byName.get(name);
    if (found !== undefined && !sameShape(found.shape, wanted)) throw new UserError(`${folder}: ${name} has shape [${found.shape.join(", ")}], config.json asks for [${wanted.join(", ")}]`);
  }
}

function someNames(tensors: readonly { name: string }[]): string {
  const names = tensors.slice(0, 8).map((t) => t.name);
  return names.join(", ") + (tensors.length > names.length ? `, and ${tensors.length - names.length} more` : "");
}
