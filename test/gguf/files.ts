/** Small GGUF files for tests: synthesized, then changed as a test needs it. */
import { createHash } from "node:crypto";
import * as fs from "node:fs";
import * as os from "node:os";
import * as path from "node:path";
import { afterAll } from "vitest";
import type { GgufTensor } from "../../src/gguf/header.ts";
import { entryBytes, readRange, scalarEntry, type EntryInput, type NewEntry } from "../../src/gguf/kv.ts";
import type { ModelShape } from "../../src/gguf/model-shape.ts";
import { readGgufHeader } from "../../src/gguf/reader.ts";
import { readGguf, shardName } from "../../src/gguf/split.ts";
import { synthesize } from "../../src/gguf/synth/synthesize.ts";
import { copiedTensor, writeGguf, type TensorInput } from "../../src/gguf/writer.ts";
import { smallShape } from "./small-shape.ts";

/** A folder that goes away when the file's tests are done. */
export function temporaryFolder(prefix: string): string {
  const folder = fs.mkdtempSync(path.join(os.tmpdir(), `${prefix}-`));
  afterAll(() => fs.rmSync(folder, { recursive: true, force: true }));
  return folder;
}

export async function synthSmall(output: string, shape: Partial<ModelShape> = {}, seed = 1, type = "Q8_0"): Promise<string> {
  await synthesize({ shape: { ...smallShape, ...shape }, type, headType: "Q8_0", output, seed });
  return output;
}

export interface Rewrite {
  /** Replaces an entry, or drops it (undefined). */
  readonly entries?: Readonly<Record<string, NewEntry | undefined>>;
  readonly added?: readonly NewEntry[];
  /** Another name, or undefined to drop the tensor. */
  readonly rename?: (name: string) => string | undefined;
}

/** One file, also one of a set, with changes. */
export async function rewriteFile(input: string, output: string, { entries = {}, added = [], rename = (name) => name }: Rewrite): Promise<string> {
  const model = readGgufHeader(input);
  const kept = [...model.entries.values()].flatMap((entry): EntryInput[] => {
    if (!Object.hasOwn(entries, entry.key)) return [entry];
    const change = entries[entry.key];
    return change === undefined ? [] : [change];
  });
  const tensors = model.tensors.flatMap((t): TensorInput[] => {
    const name = rename(t.name);
    return name === undefined ? [] : [copiedTensor(t, name)];
  });
  await writeGguf(output, { entries: [...kept, ...added], tensors });
  return output;
}

/** The file as a split set; returns the names of its files. */
export async function splitFile(input: string, prefix: string, count: number): Promise<string[]> {
  const model = readGguf(input);
  const perFile = Math.ceil(model.tensors.length / count);
  const names = Array.from({ length: count }, (_, no) => shardName(prefix, no, count));
  for (const [no, name] of names.entries()) {
    const own = [scalarEntry("split.no", "u16", no), scalarEntry("split.count", "u16", count), scalarEntry("split.tensors.count", "i32", model.tensors.length)];
    await writeGguf(name, { entries: no === 0 ? [...model.entries.values(), ...own] : own, tensors: model.tensors.slice(no * perFile, (no + 1) * perFile).map((t) => copiedTensor(t)) });
  }
  return names;
}

export const sha256 = (bytes: Uint8Array): string => createHash("sha256").update(bytes).digest("hex");

export const tensorHash = (t: GgufTensor): string => sha256(readRange(t));

/** Names, types, shapes and hashes: two files with the same facts hold the same tensors. */
export function tensorFacts(file: string): string[] {
  return readGguf(file).tensors.map((t) => `${t.name} ${t.typeId} ${t.shape.join("x")} ${tensorHash(t)}`);
}

export const entryHash = (entry: EntryInput): string => sha256(entryBytes(entry));
