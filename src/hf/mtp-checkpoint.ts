/**
 * An MTP-only checkpoint: the head as `mtp.*`, with the trunk's embeddings, final norm, output, config and tokenizer,
 * named as the Qwen3.5 releases name them, so that convert, llama.cpp's converter, vLLM and SGLang load it.
 */
import * as fs from "node:fs";
import * as path from "node:path";
import { UserError, usageError } from "../util/errors.ts";
import { temporaryName, writeTextAtomic } from "../util/files.ts";
import { readCheckpoint, type Checkpoint, type JsonObject } from "./checkpoint.ts";
import { streamElements, wholeTensor, type ElementStream } from "./element-stream.ts";
import { encodeFloats, floatBytes, type FloatType } from "./elements.ts";
import { writeSafetensors, type HfTensor, type HfTensorInput } from "./safetensors.ts";
import { plainName } from "./tensor-names.ts";

/** One tensor of the head: `name` begins with `mtp.`, `shape` is in PyTorch order. */
export interface HeadTensor {
  readonly name: string;
  readonly shape: readonly number[];
  /** Values in memory, or a stream from a checkpoint. */
  readonly data: Float32Array | ElementStream;
}

export interface MtpCheckpointOptions {
  /** Checkpoint whose embeddings, norm, output, config and tokenizer go with the head. */
  readonly trunk: string | Checkpoint;
  readonly output: string;
  readonly dtype: FloatType;
  readonly head: readonly HeadTensor[];
  /** Goes into the safetensors metadata, for example what the head was built from. */
  readonly provenance?: Readonly<Record<string, string>>;
  /** Replace an output folder that holds a checkpoint. */
  readonly force?: boolean;
  readonly signal?: AbortSignal | undefined;
  readonly onBytes?: ((nBytes: number, totalBytes: number) => void) | undefined;
}

export interface MtpCheckpointResult {
  readonly output: string;
  readonly nTensors: number;
  readonly sizeBytes: number;
}

const copiedFiles = ["tokenizer.json", "tokenizer_config.json", "generation_config.json", "chat_template.jinja", "chat_template.json", "special_tokens_map.json", "added_tokens.json", "vocab.json", "merges.txt"];
const weightsFile = "model.safetensors";

/**
 * Writes the folder beside its place and moves it there when it is whole.
 * @throws {UserError} when the output exists (without `force`), or holds something that is no checkpoint.
 */
export async function writeMtpCheckpoint(options: MtpCheckpointOptions): Promise<MtpCheckpointResult> {
  const { output, dtype, head } = options;
  const trunk = typeof options.trunk === "string" ? readCheckpoint(options.trunk) : options.trunk;
  checkOutput(output, options.force ?? false, trunk.folder);
  const tensors = [...outerTensors(trunk, dtype), ...head.map((tensor) => headInput(tensor, dtype))];
  const temporary = temporaryName(output);
  try {
    fs.mkdirSync(temporary, { recursive: true });
    await writeSafetensors(path.join(temporary, weightsFile), tensors, { metadata: prefixed(options.provenance ?? {}), signal: options.signal, onBytes: options.onBytes });
    await writeTextAtomic(path.join(temporary, "config.json"), `${JSON.stringify(withHead(trunk.config), null, 2)}\n`);
    for (const name of copiedFiles) if (fs.existsSync(path.join(trunk.folder, name))) fs.copyFileSync(path.join(trunk.folder, name), path.join(temporary, name));
    const { size } = fs.statSync(path.join(temporary, weightsFile));
    replaceFolder(temporary, output);
    return { output, nTensors: tensors.length, sizeBytes: size };
  } finally {
    fs.rmSync(temporary, { recursive: true, force: true });
  }
}

function checkOutput(output: string, force: boolean, trunk: string): void {
  if (path.resolve(output) === path.resolve(trunk)) throw usageError(`--output ${output} is the checkpoint itself; choose another folder`);
  if (!fs.existsSync(output)) return;
  const names = fs.statSync(output).isDirectory() ? fs.readdirSync(output) : undefined;
  if (names?.length === 0) return;
  if (!force) throw usageError(`${output} exists; give --force to replace it, or another --output`);
  if (names === undefined || !names.includes("config.json") || !names.includes(weightsFile)) throw new UserError(`${output} exists and is no checkpoint (no config.json and ${weightsFile} in it), so it is not replaced; choose another --output`);
}

function replaceFolder(temporary: string, output: string): void {
  if (!fs.existsSync(output)) {
    fs.renameSync(temporary, output);
    return;
  }
  const old = temporaryName(output);
  fs.renameSync(output, old);
  fs.renameSync(temporary, output);
  fs.rmSync(old, { recursive: true, force: true });
}

const prefixed = (provenance: Readonly<Record<string, string>>): Record<string, string> => Object.fromEntries(Object.entries(provenance).map(([key, value]) => [`foretoken.${key}`, value]));

/** The config with one MTP layer promised, in the text model's part when there is a wrapper. */
function withHead(config: JsonObject): JsonObject {
  const text = config["text_config"];
  const promise = { mtp_num_hidden_layers: 1, mtp_use_dedicated_embeddings: false };
  if (typeof text === "object" && text !== null) return { ...config, text_config: { ...text, ...promise } };
  return { ...config, ...promise };
}

function outerTensors(trunk: Checkpoint, dtype: FloatType): HfTensorInput[] {
  const wanted = ["model.embed_tokens.weight", "model.norm.weight", "lm_head.weight"];
  const found = wanted.flatMap((name) => findPlain(trunk, name) ?? []);
  return found.map((tensor) => ({ name: tensor.name, dtype, shape: tensor.shape, data: () => streamElements({ spans: [wholeTensor(tensor)] }, dtype) }));
}

/** The tensor whose name without the wrapper's prefix is this. */
export function findPlain(checkpoint: Checkpoint, name: string): HfTensor | undefined {
  const direct = checkpoint.tensors.get(name);
  if (direct !== undefined) return direct;
  for (const tensor of checkpoint.tensors.values()) if (plainName(tensor.name, 0).name === name) return tensor;
  return undefined;
}

function headInput({ name, shape, data }: HeadTensor, dtype: FloatType): HfTensorInput {
  return { name, dtype, shape, data: () => (data instanceof Float32Array ? encodedPieces(data, dtype) : streamElements(data, dtype)) };
}

const blockElements = 1 << 20;

function* encodedPieces(values: Float32Array, dtype: FloatType): Generator<Uint8Array> {
  const out = new Uint8Array(Math.min(blockElements, values.length) * floatBytes[dtype]);
  for (let at = 0; at < values.length; at += blockElements) {
    const block = values.subarray(at, at + blockElements);
    encodeFloats(block, dtype, out);
    yield out.subarray(0, block.length * floatBytes[dtype]);
  }
}
