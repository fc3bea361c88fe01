/** Writing a head: an MTP-only GGUF that llama.cpp loads beside its target, or `mtp.*` tensors of an HF checkpoint. */
import * as path from "node:path";
import { u32Entry, type EntryInput } from "../gguf/kv.ts";
import { modelKey } from "../gguf/keys.ts";
import { recurrentLayersEntry } from "../gguf/shape-entries.ts";
import { fileTypeId, knownType, tensorBytes } from "../gguf/types.ts";
import { copiedTensor, newTensor, writeGguf, type TensorInput } from "../gguf/writer.ts";
import { readCheckpoint, type Checkpoint } from "../hf/checkpoint.ts";
import { encodeFloats, type FloatType } from "../hf/elements.ts";
import { writeMtpCheckpoint, type HeadTensor, type MtpCheckpointResult } from "../hf/mtp-checkpoint.ts";
import { mtpName } from "../hf/tensor-names.ts";
import { UserError } from "../util/errors.ts";
import { nElements, parameterSpecs, type HeadShape, type HeadWeights } from "./head-shape.ts";
import type { FrozenWeights } from "./frozen.ts";
import { openGgmlDevice } from "../llama/ggml.ts";
import { readHeadWeights, readTarget, type Target } from "./target.ts";

/** Norms and routers stay F32, as the converter writes them. */
const isKeptF32 = (name: string, ne: readonly number[]): boolean => ne.length === 1 || name.startsWith("ffn_gate_inp");

/**
 * The head as a GGUF of its own: the target's metadata with one MTP layer, its embedding, final norm and LM head as
 * they are, and the block at `blk.nLayers`.
 */
export async function writeHeadGguf(file: string, target: Target, weights: HeadWeights, type: FloatType, outer: readonly TensorInput[] = outerTensors(target)): Promise<void> {
  const { gguf, model, head } = target;
  const key = (name: string): string => modelKey(gguf, name);
  const shape = { ...model, nNextnLayers: 1 };
  const replaced = new Map<string, EntryInput>([
    [key("block_count"), u32Entry(key("block_count"), model.nLayers + 1)],
    [key("attention.recurrent_layers"), recurrentLayersEntry(shape)],
    ["general.file_type", u32Entry("general.file_type", fileTypeId(type) ?? 0)],
  ]);
  const kept = [...gguf.entries.values()].filter((entry) => entry.key !== key("nextn_predict_layers") && !entry.key.startsWith("split."));
  const entries: EntryInput[] = kept.map((entry) => replaced.get(entry.key) ?? entry);
  if (!gguf.entries.has(key("attention.recurrent_layers"))) entries.push(recurrentLayersEntry(shape));
  entries.push(u32Entry(key("nextn_predict_layers"), 1));
  await writeGguf(file, { entries, tensors: [...outer, ...blockTensors(head, weights, model.nLayers, type)] });
}

/** What the head shares with its target, byte for byte. */
function outerTensors({ gguf }: Target): TensorInput[] {
  return ["token_embd.weight", "output_norm.weight", "output.weight"].flatMap((name) => gguf.tensors.filter((t) => t.name === name).map((t) => copiedTensor(t)));
}

/** The same in F32, so that the runtime computes in F32 throughout. */
export function outerTensorsF32(target: Target, frozen: FrozenWeights): TensorInput[] {
  const f32 = (name: string, values: Float32Array): TensorInput => newTensor(name, [target.head.nEmbd, target.head.nVocab], knownType("F32"), () => [new Uint8Array(values.buffer, values.byteOffset, values.byteLength)]);
  const norm = outerTensors(target).filter((t) => t.name === "output_norm.weight");
  return [f32("token_embd.weight", frozen.embedding), ...norm, ...(target.model.isTied ? [] : [f32("output.weight", frozen.lmHead)])];
}

function blockTensors(shape: HeadShape, weights: HeadWeights, layer: number, type: FloatType): TensorInput[] {
  return parameterSpecs(shape).map(({ name, ne }) => {
    const stored = isKeptF32(name, ne) ? "F32" : type;
    const sizes = name === "ffn_gate_inp_shexp.weight" ? [...ne, 1] : ne;
    return newTensor(`blk.${layer}.${name}`, sizes, knownType(stored), () => [encoded(weights.get(name) as Float32Array, stored, tensorBytes(knownType(stored), ne))]);
  });
}

function encoded(values: Float32Array, type: FloatType, nBytes: number): Uint8Array {
  const out = new Uint8Array(nBytes);
  encodeFloats(values, type, out);
  return out;
}

export interface ExportOptions {
  /** A GGUF file with one MTP layer. */
  readonly head: string;
  readonly checkpoint: string;
  readonly output: string;
  readonly dtype: FloatType;
  readonly force: boolean;
  readonly llamaDir: string | undefined;
}

/** A trained GGUF head as a checkpoint. Runs native code when the head is quantized. */
export async function exportHead({ head, llamaDir, ...options }: ExportOptions): Promise<MtpCheckpointResult> {
  const shape = readTarget(head).head;
  using device = openGgmlDevice({ device: "cpu", llamaDir });
  return await writeHeadCheckpoint({ ...options, shape, weights: readHeadWeights(head, shape, device), provenance: { builder: "train", head: path.basename(head) } });
}

/** The head beside the embeddings, config and tokenizer of its checkpoint, named as vLLM and SGLang load it. */
export async function writeHeadCheckpoint(options: { checkpoint: string; output: string; weights: HeadWeights; shape: HeadShape; dtype: FloatType; force: boolean; provenance: Readonly<Record<string, string>> }): Promise<MtpCheckpointResult> {
  const trunk = readCheckpoint(options.checkpoint);
  return await writeMtpCheckpoint({ ...options, trunk, head: checkpointTensors(trunk, options.shape, options.weights) });
}

/** Names and layouts of PyTorch: sizes reversed, norms as weight - 1, experts fused when the trunk's are. */
export function checkpointTensors(trunk: Checkpoint, shape: HeadShape, weights: HeadWeights): HeadTensor[] {
  const isFused = [...trunk.tensors.keys()].some((name) => name.endsWith("mlp.experts.gate_up_proj"));
  return parameterSpecs(shape).flatMap(({ name, ne }): HeadTensor[] => {
    const values = weights.get(name) as Float32Array;
    const hf = mtpName(`blk.0.${name}`, 0);
    if (hf === undefined) throw new UserError(`no mtp name for ${name}`);
    const sizes = name === "ffn_gate_inp_shexp.weight" ? [1, ...ne] : ne.toReversed();
    if (hf.endsWith("norm.weight") || /pre_fc_norm_\w+\.weight$/.test(hf)) return [{ name: hf, shape: sizes, data: values.map((x) => x - 1) }];
    if (!name.includes("_exps.")) return [{ name: hf, shape: sizes, data: values }];
    if (!isFused) return perExpert(hf, sizes, values);
    if (name === "ffn_up_exps.weight") return [];
    const base = hf.replace(/\.weight$/, "");
    if (name === "ffn_down_exps.weight") return [{ name: base, shape: sizes, data: values }];
    return [{ name: base.replace("gate_proj", "gate_up_proj"), shape: [shape.nExpert, 2 * shape.nFfExpert, shape.nEmbd], data: fuseGateUp(values, weights.get("ffn_up_exps.weight") as Float32Array, shape) }];
  });
}

function perExpert(name: string, sizes: readonly number[], values: Float32Array): HeadTensor[] {
  const [nExpert = 0, ...rest] = sizes;
  const n = nElements(rest);
  return Array.from({ length: nExpert }, (_, e) => ({ name: name.replace("mlp.experts.", `mlp.experts.${e}.`), shape: rest, data: values.subarray(e * n, (e + 1) * n) }));
}

/** [E, ff, d] twice -> [E, 2 ff, d]. */
function fuseGateUp(gate: Float32Array, up: Float32Array, { nExpert, nFfExpert, nEmbd }: HeadShape): Float32Array {
  const n = nFfExpert * nEmbd;
  const out = new Float32Array(2 * gate.length);
  for (let e = 0; e < nExpert; e++) {
    out.set(gate.subarray(e * n, (e + 1) * n), 2 * e * n);
    out.set(up.subarray(e * n, (e + 1) * n), (2 * e + 1) * n);
  }
  return out;
}
