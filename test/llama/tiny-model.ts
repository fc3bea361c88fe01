/**
 * The embedded model as GGUF files for native tests, made once and kept in the system's temporary folder under a hash
 * of what they are made from. The head is the last attention layer again (a bootstrap): random words drafted, real shapes.
 */
import { createHash } from "node:crypto";
import * as fs from "node:fs";
import * as os from "node:os";
import * as path from "node:path";
import type { GgufTensor } from "../../src/gguf/header.ts";
import { arrayEntry, u32Entry, type EntryInput } from "../../src/gguf/kv.ts";
import { readGgufHeader } from "../../src/gguf/reader.ts";
import { knownType } from "../../src/gguf/types.ts";
import { copiedTensor, newTensor, writeGguf, type TensorInput } from "../../src/gguf/writer.ts";
import { convertCheckpoint } from "../../src/hf/convert.ts";
import { embeddedCheckpoint, packageRoot } from "../../src/util/paths.ts";

const VERSION = 2;

function cacheFolder(): string {
  const hash = createHash("sha256").update(String(VERSION));
  for (const folder of [embeddedCheckpoint, path.join(packageRoot, "src", "hf"), path.join(packageRoot, "src", "gguf")]) {
    for (const name of fs.readdirSync(folder).sort()) {
      const file = path.join(folder, name);
      const stats = fs.statSync(file);
      if (!stats.isFile()) continue;
      const { size } = stats;
      hash.update(`${name} ${size}`);
      if (size < 1 << 20) hash.update(fs.readFileSync(file));
    }
  }
  return path.join(os.tmpdir(), `foretoken-test-models-${hash.digest("hex").slice(0, 16)}`);
}

async function cached(name: string, make: (file: string) => Promise<unknown>): Promise<string> {
  const file = path.join(cacheFolder(), name);
  if (!fs.existsSync(file)) await make(file);
  return file;
}

/** The trunk alone: 8 layers, no head. */
export function tinyTrunk(outType: "BF16" | "F16" | "F32" = "BF16"): Promise<string> {
  return cached(`trunk-${outType}.gguf`, (output) => convertCheckpoint({ checkpoint: embeddedCheckpoint, output, outType, mtp: "trunk" }));
}

const nBlocks = 8;
const attentionBlock = nBlocks - 1;

function headTensors(trunk: readonly GgufTensor[]): TensorInput[] {
  const copies = trunk.filter((t) => t.name.startsWith(`blk.${attentionBlock}.`)).map((t) => copiedTensor(t, t.name.replace(`blk.${attentionBlock}.`, `blk.${nBlocks}.`)));
  const d = trunk.find((t) => t.name === "output_norm.weight")?.shape[0] as number;
  // [2d, d]: half the embedding plus half the hidden row.
  const projection = new Float32Array(2 * d * d);
  for (let i = 0; i < d; i++) projection[2 * d * i + i] = projection[2 * d * i + d + i] = 0.5;
  const ones = new Float32Array(d).fill(1);
  const f32 = (name: string, shape: number[], data: Float32Array): TensorInput => newTensor(`blk.${nBlocks}.nextn.${name}.weight`, shape, knownType("F32"), () => [new Uint8Array(data.buffer)]);
  return [...copies, f32("eh_proj", [2 * d, d], projection), f32("enorm", [d], ones), f32("hnorm", [d], ones)];
}

function headEntries(entries: Iterable<EntryInput>): EntryInput[] {
  const changed = new Map<string, EntryInput>([
    ["qwen35moe.block_count", u32Entry("qwen35moe.block_count", nBlocks + 1)],
    ["qwen35moe.attention.recurrent_layers", arrayEntry("qwen35moe.attention.recurrent_layers", "bool", Array.from({ length: nBlocks + 1 }, (_, i) => i < nBlocks && i % 4 !== 3))],
  ]);
  return [...Array.from(entries, (entry) => changed.get(entry.key) ?? entry), u32Entry("qwen35moe.nextn_predict_layers", 1)];
}

/** The head alone, in a file of its own: embeddings, output, one MTP block. */
export async function tinyHead(): Promise<string> {
  const trunk = readGgufHeader(await tinyTrunk());
  const outer = trunk.tensors.filter((t) => !t.name.startsWith("blk.")).map((t) => copiedTensor(t));
  return cached("head.gguf", (file) => writeGguf(file, { entries: headEntries(trunk.entries.values()), tensors: [...outer, ...headTensors(trunk.tensors)] }));
}

/** Trunk and head in one file. */
export async function tinyWithHead(): Promise<string> {
  const trunk = readGgufHeader(await tinyTrunk());
  return cached("with-head.gguf", (file) => writeGguf(file, { entries: headEntries(trunk.entries.values()), tensors: [...trunk.tensors.map((t) => copiedTensor(t)), ...headTensors(trunk.tensors)] }));
}

/** Trunk and head in one file, most tensors left out: enough for what reads headers and rewrites tensors, and quick. */
export async function smallWithHead(): Promise<string> {
  const whole = readGgufHeader(await tinyWithHead());
  const kept = whole.tensors.filter((t) => !t.name.startsWith("blk.") || /^blk\.(0\.attn|3\.attn|8\.)/.test(t.name));
  return cached("small-with-head.gguf", (file) => writeGguf(file, { entries: [...whole.entries.values()], tensors: kept.map((t) => copiedTensor(t)) }));
}

/** The trunk's header with some metadata replaced or added, and its vectors alone: files that do not fit, refused by their header. */
export async function trunkWith(name: string, entries: readonly EntryInput[]): Promise<string> {
  const trunk = readGgufHeader(await tinyTrunk());
  const changed = new Map(entries.map((entry) => [entry.key, entry]));
  const merged = [...[...trunk.entries.values()].map((entry) => changed.get(entry.key) ?? entry), ...entries.filter((entry) => !trunk.entries.has(entry.key))];
  const vectors = trunk.tensors.filter((t) => t.shape.length === 1);
  return cached(name, (file) => writeGguf(file, { entries: merged, tensors: vectors.map((t) => copiedTensor(t)) }));
}
