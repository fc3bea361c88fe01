/** Parity with llama.cpp v0.5.0's converter on the embedded model: test/fixtures/reference-gguf.json. */
import { createHash } from "node:crypto";
import * as fs from "node:fs";
import * as os from "node:os";
import * as path from "node:path";
import { afterAll, beforeAll, expect, test } from "vitest";
import { readArray } from "../../src/gguf/entry.ts";
import type { GgufEntry, GgufHeader, GgufTensor } from "../../src/gguf/header.ts";
import { readRange } from "../../src/gguf/kv.ts";
import { readGgufHeader } from "../../src/gguf/reader.ts";
import { convertCheckpoint } from "../../src/hf/convert.ts";
import { embeddedCheckpoint } from "../../src/util/paths.ts";

interface Reference {
  kv: Record<string, unknown>;
  tensors: { name: string; shape: number[]; type: string; sha256: string }[];
}

const reference = JSON.parse(fs.readFileSync(new URL("../fixtures/reference-gguf.json", import.meta.url), "utf8")) as Reference;
const folder = fs.mkdtempSync(path.join(os.tmpdir(), "convert-"));
const output = path.join(folder, "tiny.gguf");
let header: GgufHeader;

beforeAll(async () => {
  await convertCheckpoint({ checkpoint: embeddedCheckpoint, output, outType: "BF16", mtp: "trunk" });
  header = readGgufHeader(output);
});
afterAll(() => fs.rmSync(folder, { recursive: true }));

const sha256 = (bytes: string | Uint8Array): string => createHash("sha256").update(bytes).digest("hex");

/** The reference holds long arrays as the hash of Python's json.dumps: ", " between items, everything beyond ASCII escaped. */
function pythonJson(values: readonly unknown[]): string {
  const escape = (text: string): string => text.replace(/[\u007f-\uffff]/g, (c) => (c === "\u007f" ? c : `\\u${c.charCodeAt(0).toString(16).padStart(4, "0")}`));
  return `[${values.map((v) => escape(JSON.stringify(v))).join(", ")}]`;
}

function comparable(entry: GgufEntry): unknown {
  if (entry.kind === "scalar") return entry.value;
  const values = readArray(entry);
  return values.length <= 64 ? values : { len: values.length, sha256: sha256(pythonJson(values)) };
}

const data = (tensor: GgufTensor): Buffer => readRange({ file: tensor.file, offset: tensor.offset, sizeBytes: tensor.sizeBytes });

test("tensors have the reference's names, order, shapes and types", () => {
  const facts = header.tensors.map((t) => ({ name: t.name, shape: [...t.shape], type: t.type?.name }));
  expect(facts).toEqual(reference.tensors.map(({ name, shape, type }) => ({ name, shape, type })));
});

test("tensor data equals the reference bit for bit; ssm_a to one unit in the last place", () => {
  const differing = header.tensors.filter((t, i) => sha256(data(t)) !== reference.tensors[i]?.sha256).map((t) => t.name);
  expect(differing.filter((name) => !name.endsWith(".ssm_a"))).toEqual([]);
  for (const name of differing) expect(hasNeighbourWithHash(data(header.tensors.find((t) => t.name === name) ?? expect.fail()), reference.tensors.find((t) => t.name === name)?.sha256 ?? "")).toBe(true);
});

/** Whether moving each float by at most one unit in the last place gives the bytes with this hash. */
function hasNeighbourWithHash(bytes: Buffer, hash: string): boolean {
  const n = bytes.length / 4;
  for (let code = 0; code < 3 ** n; code++) {
    const moved = Buffer.from(bytes);
    for (let i = 0, rest = code; i < n; i++, rest = Math.floor(rest / 3)) moved.writeUInt32LE(bytes.readUInt32LE(i * 4) + (rest % 3) - 1, i * 4);
    if (sha256(moved) === hash) return true;
  }
  return false;
}

test("keys have the reference's values in its order; naming keys differ in nothing either", () => {
  const mine = Object.fromEntries([...header.entries.values()].map((entry) => [entry.key, comparable(entry)]));
  const { "GGUF.version": version, "GGUF.tensor_count": nTensors, "GGUF.kv_count": nEntries, ...theirs } = reference.kv;
  expect(mine).toEqual(theirs);
  expect(Object.keys(mine)).toEqual(Object.keys(theirs));
  expect([header.version, header.tensors.length, header.entries.size]).toEqual([version, nTensors, nEntries]);
});

test("a head that is promised but absent is said, with the way out", async () => {
  const convert = (mtp: "mtp" | "both"): Promise<unknown> => convertCheckpoint({ checkpoint: embeddedCheckpoint, output: path.join(folder, "none.gguf"), outType: "BF16", mtp });
  await expect(convert("both")).rejects.toThrow(/promises 1 MTP layer .* no mtp\.\* tensor; convert the trunk with --no-mtp, or build a head first/);
  await expect(convert("mtp")).rejects.toThrow(/no mtp\.\* tensor/);
  expect(fs.existsSync(path.join(folder, "none.gguf"))).toBe(false);
});
