import * as fs from "node:fs";
import { defineCommand, type Io } from "../config/command.ts";
import { plainFlag, type PlainOptions } from "../config/flags.ts";
import { auditModel, type Audit } from "../gguf/audit.ts";
import { describeEntry, diffModels, type Change, type ModelDiff } from "../gguf/diff.ts";
import { printable } from "../gguf/error.ts";
import { sha256Range } from "../gguf/hash.ts";
import type { GgufTensor } from "../gguf/header.ts";
import { readGguf, type GgufModel } from "../gguf/split.ts";
import { typeName } from "../gguf/types.ts";
import { errorMessage, usageError } from "../util/errors.ts";
import { formatBytes, formatFixed, formatInteger, formatMiB } from "../util/format.ts";
import { renderText } from "../util/table.ts";

interface InspectOptions {
  readonly files: readonly [string, string?];
  readonly tensors: string | undefined;
  readonly hash: boolean;
  readonly keys: boolean;
}

/** Listed by hand: what reads a header in a tenth of a second should not load a schema library first. */
const inspectOptions: PlainOptions<InspectOptions> = {
  flags: [
    plainFlag("files", { isArray: true, isRequired: true }),
    plainFlag("tensors", { description: "list the tensors whose names match this regular expression; . lists all", placeholder: "PATTERN" }),
    plainFlag("hash", { kind: "boolean", defaultValue: false, description: "SHA-256 of the data of listed tensors; with two files, compare data" }),
    plainFlag("keys", { kind: "boolean", defaultValue: true, description: "list the metadata" }),
  ],
  check({ files, tensors, hash, keys }) {
    const [first, second, ...more] = (files ?? []) as string[];
    if (first === undefined) throw usageError("<files> is needed; --help shows the usage");
    if (more.length > 0) throw usageError(`<files>: one file, or two to compare, not ${more.length + 2}`);
    return { files: second === undefined ? [first] : [first, second], tensors: tensors as string | undefined, hash: hash === true, keys: keys !== false };
  },
};

export const command = defineCommand({
  name: "inspect",
  summary: "what is in a GGUF file or checkpoint, and whether its MTP head is promised, present, complete",
  details: "Reads headers only. Two files are compared. --tensors lists tensors, --hash reads their data.",
  options: inspectOptions,
  positionals: ["files..."],
  async run({ files, tensors: pattern, hash, keys }, io) {
    const matches = pattern === undefined ? undefined : compile(pattern);
    const [first, second] = files;
    if (second !== undefined) {
      const diff = await diffModels(readGguf(first), readGguf(second), { hash: hash ? (matches ?? (() => true)) : undefined, signal: io.signal });
      printDiff(diff, matches, [first, second], io);
      return;
    }
    if (isFolder(first)) {
      // A GGUF file is shown without loading what reads checkpoints.
      (await import("./inspect-checkpoint.ts")).inspectCheckpoint(first, io);
      return;
    }
    const model = readGguf(first);
    const listed = matches === undefined ? undefined : await listTensors(model, matches, hash, io.signal);
    if (io.json) io.out(JSON.stringify({ ...auditModel(model), ...(keys ? { keys: keysOf(model) } : {}), ...(listed === undefined ? {} : { tensors: listed }) }));
    else printAudit(model, auditModel(model), listed, keys, io);
  },
});

const isFolder = (file: string): boolean => fs.statSync(file, { throwIfNoEntry: false })?.isDirectory() ?? false;

function compile(pattern: string): (name: string) => boolean {
  try {
    const regex = new RegExp(pattern);
    return (name) => regex.test(name);
  } catch (error) {
    throw usageError(`--tensors ${pattern}: ${errorMessage(error)}`);
  }
}

interface ListedTensor {
  readonly name: string;
  readonly type: string;
  readonly shape: readonly number[];
  readonly offset: number;
  readonly sizeBytes: number;
  readonly sha256?: string;
}

async function listTensors(model: GgufModel, matches: (name: string) => boolean, hash: boolean, signal: AbortSignal): Promise<ListedTensor[]> {
  const listed: ListedTensor[] = [];
  for (const t of model.tensors.filter(({ name }) => matches(name))) {
    const { name, shape, offset, sizeBytes }: GgufTensor = t;
    listed.push({ name, type: typeName(t.typeId), shape, offset, sizeBytes, ...(hash ? { sha256: await sha256Range(t, signal) } : {}) });
  }
  return listed;
}

/** Scalars as they are, arrays in short; integers beyond 2^53 as text. */
function keysOf(model: GgufModel): Record<string, unknown> {
  const value = (v: unknown): unknown => (typeof v === "bigint" ? v.toString() : v);
  return Object.fromEntries([...model.entries.values()].map((e) => [e.key, e.kind === "scalar" ? value(e.value) : e.values !== undefined && e.values.length <= 64 ? e.values.map(value) : { elementType: e.elementType, length: e.length }]));
}

/** Names come from the file; lines stay lines. */
const safe = (text: string): string => text.split("\n").map(printable).join("\n");

function printAudit(model: GgufModel, audit: Audit, listed: readonly ListedTensor[] | undefined, keys: boolean, io: Io): void {
  const print = (text: string): void => io.out(safe(text));
  const shards = audit.nShards > 1 ? `, ${audit.nShards} files` : "";
  print(`${audit.file}: ${audit.architecture ?? "no model"}${audit.fileType === undefined ? "" : `, ${audit.fileType}`}, ${formatFixed(audit.nParameters / 1e6, 1)} M parameters, ${formatBytes(audit.fileBytes)}${shards}`);
  print(`GGUF version ${audit.version}${audit.littleEndian ? "" : ", big-endian"}, ${audit.nKeys} keys, ${audit.nTensors} tensors, ${formatMiB(audit.tensorBytes)} MiB of data, ${audit.bitsPerWeight.toFixed(2)} bits per weight`);
  print(`MTP: ${audit.mtp.advice}`);
  for (const remark of audit.remarks) print(`remark: ${remark}`);
  for (const problem of audit.problems) print(`llama.cpp will not load it: ${problem}`);
  const types = audit.types.map((t) => [t.type, String(t.nTensors), formatInteger(t.nElements), formatMiB(t.sizeBytes)]);
  print(`\n${renderText({ columns: [{ title: "type" }, { title: "tensors", align: "right" }, { title: "elements", align: "right" }, { title: "MiB", align: "right" }], rows: types })}`);
  if (keys) print(`\n${renderText({ columns: [{ title: "key" }, { title: "value" }], rows: [...model.entries.values()].map((e) => [printable(e.key), describeEntry(e)]) })}`);
  if (listed === undefined) return;
  const rows = listed.map((t) => [printable(t.name), t.type, t.shape.join(" x "), formatMiB(t.sizeBytes), ...(t.sha256 === undefined ? [] : [t.sha256])]);
  const hashColumn = listed.some((t) => t.sha256 !== undefined) ? [{ title: "sha256" }] : [];
  print(`\n${renderText({ columns: [{ title: `${listed.length} tensors` }, { title: "type" }, { title: "shape" }, { title: "MiB", align: "right" }, ...hashColumn], rows })}`);
}

function printDiff(diff: ModelDiff, matches: ((name: string) => boolean) | undefined, files: readonly [string, string], io: Io): void {
  const tensors = diff.tensors.filter((change) => matches?.(change.name) ?? true);
  const isSame = diff.keys.length + tensors.length + (diff.data?.length ?? 0) === 0;
  if (io.json) {
    io.out(JSON.stringify({ a: files[0], b: files[1], same: isSame, ...diff, tensors }));
    return;
  }
  const table = (title: string, changes: readonly Change[]): void => {
    if (changes.length > 0) io.out(`\n${renderText({ columns: [{ title }, { title: files[0] }, { title: files[1] }], rows: changes.map((c) => [printable(c.name), printable(c.a ?? "-"), printable(c.b ?? "-")]) })}`);
  };
  const compared = diff.data === undefined ? "data not compared (--hash does)" : `${diff.data.length} differ in data`;
  io.out(`${diff.keys.length} keys differ, ${tensors.length} tensors differ in type, shape or presence, ${diff.nEqualTensors} agree, ${compared}`);
  table("key", diff.keys);
  table("tensor", tensors);
  for (const name of diff.data ?? []) io.out(`other data: ${printable(name)}`);
}
