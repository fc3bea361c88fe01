/**
 * Captured documents on disk: safetensors shards and a manifest.
 *
 * A shard holds `tokens` I32 [n], `hidden` F16 [n, d], `documents` I32 [nDocuments, 6] and, when asked for,
 * `layer_input` F16 [n, d]. Row t of a document is the state after token t; its last token was never decoded and has a
 * zero row. The manifest is rewritten after each shard, so what it lists is whole.
 */
import * as fs from "node:fs";
import * as path from "node:path";
import * as z from "zod";
import { readSafetensors, writeSafetensors, type HfTensor } from "../hf/safetensors.ts";
import { UserError, errorMessage } from "../util/errors.ts";
import { readFully, writeTextAtomic } from "../util/files.ts";
import type { Half } from "./prompts.ts";

const manifestSchema = z.strictObject({
  format: z.literal("foretoken-capture-1"),
  model: z.strictObject({ file: z.string(), sha256: z.string(), sizeBytes: z.number() }),
  library: z.string(),
  normStage: z.literal("post-final-norm"),
  nEmbd: z.int(),
  nVocab: z.int(),
  /** Trunk layer whose input rows were kept, and of how many rows. */
  layerInput: z.strictObject({ layer: z.int(), nRows: z.int() }).nullable(),
  /** What decides which documents there are; another value is another capture. */
  plan: z.record(z.string(), z.unknown()),
  shards: z.array(z.strictObject({ file: z.string(), nDocuments: z.int(), nTokens: z.int() })),
  nDocuments: z.int(),
  nTokens: z.int(),
  /** Tokens that the model wrote. */
  nGenerated: z.int(),
  /** Documents dropped because they touched held-out prompts. */
  nExcluded: z.int(),
  wallMs: z.number(),
});
export type Manifest = z.infer<typeof manifestSchema>;

export interface CapturedDocument {
  readonly index: number;
  readonly half: Half;
  readonly tokens: Int32Array;
  readonly nPrompt: number;
  readonly isSampled: boolean;
  readonly isHeldOut: boolean;
  /** F16 [tokens.length, d] */
  readonly hidden: Uint16Array;
  readonly layerInput: Uint16Array | undefined;
}

const nFields = 6;
const manifestFile = "manifest.json";

export const shardName = (i: number): string => `shard-${String(i).padStart(5, "0")}.safetensors`;

export function readManifest(folder: string): Manifest | undefined {
  const file = path.join(folder, manifestFile);
  if (!fs.existsSync(file)) return undefined;
  let json: unknown;
  try {
    json = JSON.parse(fs.readFileSync(file, "utf8"));
  } catch (error) {
    throw new UserError(`${file}: not JSON (${errorMessage(error)}); delete the folder and capture again`);
  }
  const parsed = manifestSchema.safeParse(json);
  if (parsed.success) return parsed.data;
  throw new UserError(`${file}: ${parsed.error.issues[0]?.path.join(".")}: ${parsed.error.issues[0]?.message}; it is not a capture of this version`);
}

export async function writeManifest(folder: string, manifest: Manifest): Promise<void> {
  await writeTextAtomic(path.join(folder, manifestFile), `${JSON.stringify(manifest, null, 1)}\n`);
}

/** Removes the shards and the manifest of a capture, and nothing else. */
export function removeCapture(folder: string): void {
  for (const { file } of readManifest(folder)?.shards ?? []) fs.rmSync(path.join(folder, file), { force: true });
  fs.rmSync(path.join(folder, manifestFile), { force: true });
}

/** @throws {UserError} when the folder's shards come from another model. */
export function requireSameModel(folder: string, manifest: Manifest, sha256: string): void {
  if (manifest.model.sha256 !== sha256)
    throw new UserError(`${folder} was captured from another model (sha256 ${manifest.model.sha256.slice(0, 12)}, this one is ${sha256.slice(0, 12)}); hidden rows of one model do not train a head for another: capture again into another folder`);
}

const bytesOf = (array: Int32Array | Uint16Array): Uint8Array => new Uint8Array(array.buffer, array.byteOffset, array.byteLength);

export async function writeShard(file: string, documents: readonly CapturedDocument[], nEmbd: number): Promise<void> {
  const nTokens = documents.reduce((sum, d) => sum + d.tokens.length, 0);
  const table = new Int32Array(documents.length * nFields);
  let start = 0;
  documents.forEach((d, i) => {
    const flags = (d.isSampled ? 1 : 0) | (d.isHeldOut ? 2 : 0) | (d.layerInput === undefined ? 0 : 4);
    table.set([d.index, start, d.tokens.length, d.nPrompt, d.half === "chat" ? 0 : 1, flags], i * nFields);
    start += d.tokens.length;
  });
  const rows = (name: string, of: (d: CapturedDocument) => Uint16Array) => ({
    name,
    dtype: "F16",
    shape: [nTokens, nEmbd],
    data: () => documents.map((d) => bytesOf(of(d))),
  });
  const withInput = documents.some((d) => d.layerInput !== undefined);
  await writeSafetensors(file, [
    { name: "documents", dtype: "I32", shape: [documents.length, nFields], data: () => [bytesOf(table)] },
    { name: "tokens", dtype: "I32", shape: [nTokens], data: () => documents.map((d) => bytesOf(d.tokens)) },
    rows("hidden", (d) => d.hidden),
    ...(withInput ? [rows("layer_input", (d) => d.layerInput ?? new Uint16Array(d.tokens.length * nEmbd))] : []),
  ]);
}

/** A document as it lies in its shard. */
export interface StoredDocument {
  readonly index: number;
  readonly shard: string;
  readonly half: Half;
  readonly tokens: Int32Array;
  readonly nPrompt: number;
  readonly isSampled: boolean;
  readonly isHeldOut: boolean;
  readonly hasLayerInput: boolean;
  /** Absolute position of its first hidden row, and of its first layer input row. */
  readonly hiddenOffset: number;
  readonly layerInputOffset: number;
}

/** Tokens and places of all documents of a shard; hidden rows stay on disk. */
export function readShardTable(file: string): StoredDocument[] {
  const tensors = new Map(readSafetensors(file).map((t) => [t.name, t]));
  const tensor = (name: string): HfTensor => tensors.get(name) ?? fail(file, name);
  const hidden = tensor("hidden");
  const rowBytes = 2 * (hidden.shape[1] as number);
  const tokens = readInts(tensor("tokens"));
  const table = readInts(tensor("documents"));
  return Array.from({ length: table.length / nFields }, (_, i) => {
    const [index, start, length, nPrompt, half, flags] = table.subarray(i * nFields) as unknown as [number, number, number, number, number, number];
    return {
      index,
      shard: file,
      half: half === 0 ? "chat" : "code",
      tokens: tokens.subarray(start, start + length),
      nPrompt,
      isSampled: (flags & 1) !== 0,
      isHeldOut: (flags & 2) !== 0,
      hasLayerInput: (flags & 4) !== 0,
      hiddenOffset: hidden.offset + start * rowBytes,
      layerInputOffset: (flags & 4) === 0 ? -1 : tensor("layer_input").offset + start * rowBytes,
    };
  });
}

function fail(file: string, name: string): never {
  throw new UserError(`${file}: no tensor ${name}; it is no shard of a capture`);
}

function readInts(tensor: HfTensor): Int32Array {
  const bytes = new Uint8Array(tensor.sizeBytes);
  const fd = fs.openSync(tensor.file, "r");
  try {
    readFully(fd, bytes, tensor.offset);
  } finally {
    fs.closeSync(fd);
  }
  return new Int32Array(bytes.buffer);
}
