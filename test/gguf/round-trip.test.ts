import * as fs from "node:fs";
import * as os from "node:os";
import * as path from "node:path";
import { afterAll, expect, test } from "vitest";
import { arrayKey, countKey, stringKey } from "../../src/gguf/keys.ts";
import { arrayEntry, boolEntry, f32Entry, scalarEntry, stringEntry, u32Entry } from "../../src/gguf/kv.ts";
import { readArray } from "../../src/gguf/entry.ts";
import { readGgufHeader } from "../../src/gguf/reader.ts";
import { ggmlTypes, knownType, tensorBytes } from "../../src/gguf/types.ts";
import { copiedTensor, newTensor, readPieces, writeGguf } from "../../src/gguf/writer.ts";

const folder = fs.mkdtempSync(path.join(os.tmpdir(), "gguf-"));
afterAll(() => fs.rmSync(folder, { recursive: true }));

const bytes = (n: number, seed: number): Buffer => Buffer.from(Array.from({ length: n }, (_, i) => (i * 7 + seed * 13) & 255));

async function writeSample(file: string): Promise<void> {
  await writeGguf(file, {
    entries: [
      stringEntry("general.architecture", "qwen35moe"),
      u32Entry("qwen35moe.block_count", 3),
      f32Entry("x.f32", 0.1),
      boolEntry("x.bool", true),
      scalarEntry("x.u64", "u64", 2n ** 63n),
      scalarEntry("x.i64", "i64", -5),
      scalarEntry("x.i8", "i8", -128),
      scalarEntry("x.u16", "u16", 65535),
      scalarEntry("x.f64", "f64", Math.PI),
      arrayEntry("x.strings", "string", ["a", "", "Ġé", "日本"]),
      arrayEntry("x.long", "i32", Array.from({ length: 5000 }, (_, i) => i - 2500)),
      arrayEntry("x.flags", "bool", [true, false]),
    ],
    tensors: [
      newTensor("a.weight", [3], knownType("F32"), () => [bytes(12, 1)]),
      newTensor("b.weight", [256, 2], knownType("IQ4_XS"), () => [bytes(100, 2), bytes(172, 3)]),
      newTensor("c.weight", [2, 3, 4, 5], knownType("BF16"), () => [bytes(240, 4)]),
    ],
  });
}

test("a written file reads back with every value, shape and place", async () => {
  const file = path.join(folder, "sample.gguf");
  await writeSample(file);
  const header = readGgufHeader(file);
  expect(header.remarks).toEqual([]);
  expect(header.version).toBe(3);
  expect(stringKey(header, "general.architecture")).toBe("qwen35moe");
  expect(countKey(header, "qwen35moe.block_count")).toBe(3);
  const value = (key: string): unknown => {
    const entry = header.entries.get(key);
    return entry?.kind === "scalar" ? entry.value : entry?.values;
  };
  expect(value("x.f32")).toBe(Math.fround(0.1));
  expect([value("x.bool"), value("x.u64"), value("x.i64"), value("x.i8"), value("x.u16"), value("x.f64")]).toEqual([true, 2n ** 63n, -5, -128, 65535, Math.PI]);
  expect(value("x.strings")).toEqual(["a", "", "Ġé", "日本"]);
  expect(value("x.flags")).toEqual([true, false]);
  expect(value("x.long")).toBeUndefined();
  const long = arrayKey(header, "x.long");
  expect(long?.length).toBe(5000);
  expect(readArray(long ?? expect.fail())).toEqual(Array.from({ length: 5000 }, (_, i) => i - 2500));
  expect(header.tensors.map((t) => [t.name, t.shape, t.type?.name, t.sizeBytes])).toEqual([
    ["a.weight", [3], "F32", 12],
    ["b.weight", [256, 2], "IQ4_XS", 272],
    ["c.weight", [2, 3, 4, 5], "BF16", 240],
  ]);
  const b = header.tensors[1] ?? expect.fail();
  const pieces: Buffer[] = [];
  for await (const piece of readPieces(file, b.offset, b.sizeBytes)) pieces.push(Buffer.from(piece));
  expect(Buffer.concat(pieces)).toEqual(Buffer.concat([bytes(100, 2), bytes(172, 3)]));
});

test("reading and writing a file again gives the same bytes", async () => {
  const file = path.join(folder, "first.gguf");
  const copy = path.join(folder, "second.gguf");
  await writeSample(file);
  const header = readGgufHeader(file);
  await writeGguf(copy, { entries: [...header.entries.values()], tensors: header.tensors.map((t) => copiedTensor(t)), alignment: header.alignment });
  expect(fs.readFileSync(copy)).toEqual(fs.readFileSync(file));
});

test("a source that gives the wrong number of bytes leaves no file", async () => {
  const file = path.join(folder, "short.gguf");
  await expect(writeGguf(file, { entries: [], tensors: [newTensor("a", [4], knownType("F32"), () => [bytes(12, 1)])] })).rejects.toThrow("gave 12 bytes, 16 were announced");
  expect(fs.readdirSync(folder).filter((name) => name.includes("short"))).toEqual([]);
});

test("an aborted write leaves no file", async () => {
  const file = path.join(folder, "aborted.gguf");
  const controller = new AbortController();
  const data = function* (): Generator<Buffer> {
    yield bytes(8, 1);
    controller.abort(new Error("stopped"));
    yield bytes(8, 2);
  };
  await expect(writeGguf(file, { entries: [], tensors: [newTensor("a", [4], knownType("F32"), data)], signal: controller.signal })).rejects.toThrow("stopped");
  expect(fs.readdirSync(folder).filter((name) => name.includes("aborted"))).toEqual([]);
});

test("tensor sizes follow block size and block bytes", () => {
  for (const type of ggmlTypes) expect(tensorBytes(type, [type.blockSize * 3, 5])).toBe(15 * type.blockBytes);
});

test("a disk that is too small is said before anything is written", async () => {
  const file = path.join(folder, "vast.gguf");
  const vast = newTensor("a", [2 ** 46], knownType("F32"), () => expect.fail("data was asked for"));
  await expect(writeGguf(file, { entries: [], tensors: [vast] })).rejects.toThrow(/writing .*vast\.gguf needs 262144\.00 GiB in .* is free; free some space or choose another folder/);
  expect(fs.readdirSync(folder).filter((name) => name.includes("vast"))).toEqual([]);
});
