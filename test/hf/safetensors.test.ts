import * as fc from "fast-check";
import * as fs from "node:fs";
import * as path from "node:path";
import { describe, expect, test } from "vitest";
import { FormatError } from "../../src/gguf/error.ts";
import { readRange } from "../../src/gguf/kv.ts";
import { readCheckpoint, readJson } from "../../src/hf/checkpoint.ts";
import { readSafetensors, SafetensorsError, writeSafetensors } from "../../src/hf/safetensors.ts";
import { bfloat16Bits, decodeFloats, encodeFloats, float16Bits } from "../../src/hf/elements.ts";
import { embeddedCheckpoint } from "../../src/util/paths.ts";
import { sha256, temporaryFolder } from "../gguf/files.ts";

const folder = temporaryFolder("safetensors");
const file = path.join(folder, "model.safetensors");

function writeRaw(table: unknown, dataBytes: number, length?: bigint): void {
  const json = Buffer.from(typeof table === "string" ? table : JSON.stringify(table));
  const head = Buffer.alloc(8);
  head.writeBigUInt64LE(length ?? BigInt(json.length));
  fs.writeFileSync(file, Buffer.concat([head, json, Buffer.alloc(dataBytes)]));
}

const row = (dtype: string, shape: unknown, begin: number, end: number): unknown => ({ dtype, shape, data_offsets: [begin, end] });

const cases: [string, unknown, number, string, bigint?][] = [
  ["a length beyond the file", {}, 0, "18,446,744,073,709,551,615 bytes, at most 2 are possible", 2n ** 64n - 1n],
  ["a table that is not JSON", "{oops", 0, "reading the table: not JSON"],
  ["a table that is a list", "[]", 0, "must be a JSON object"],
  ["a row that is no object", { a: 5 }, 0, 'tensor "a": its row of the table is not an object'],
  ["an unknown dtype", { a: row("Q4", [1], 0, 1) }, 1, 'dtype "Q4" is not known'],
  ["a dtype out of an object's prototype", { a: row("constructor", [1], 0, 1) }, 1, 'dtype "constructor" is not known'],
  ["a negative size", { a: row("U8", [-1], 0, 1) }, 1, "shape is not a list of counts"],
  ["a shape that is no list", { a: row("U8", "4", 0, 4) }, 4, "shape is not a list of counts"],
  ["offsets that do not span the shape", { a: row("F32", [2], 0, 4) }, 4, "data_offsets span 4 bytes, F32 [2] takes 8"],
  ["sizes that overflow", { a: row("F32", [2 ** 40, 2 ** 40], 0, 4) }, 4, "data_offsets span 4 bytes"],
  ["data beyond the file", { a: row("U8", [100], 0, 100) }, 10, "truncated; fetch the file again"],
  ["overlapping tensors", { a: row("U8", [4], 0, 4), b: row("U8", [4], 2, 6) }, 6, 'tensor "b": overlaps the tensor before it'],
  ["a gap", { a: row("U8", [4], 0, 4), b: row("U8", [4], 6, 10) }, 10, "a gap of 2 bytes before it"],
  ["bytes of no tensor", { a: row("U8", [4], 0, 4) }, 9, "5 bytes belong to no tensor"],
];

test.each(cases)("%s", (_name, table, dataBytes, message, length) => {
  writeRaw(table, dataBytes, length);
  expect(() => readSafetensors(file)).toThrow(SafetensorsError);
  expect(() => readSafetensors(file)).toThrow(message);
});

test("a file of less than eight bytes", () => {
  fs.writeFileSync(file, "abc");
  expect(() => readSafetensors(file)).toThrow("the file has 3 bytes, 8 are needed");
});

test("damaged tables are read or refused, nothing else", () => {
  const good = Buffer.from(JSON.stringify({ a: row("U8", [4], 0, 4), b: row("F32", [2, 2], 4, 20) }));
  fc.assert(
    fc.property(fc.nat(good.length - 1), fc.nat(255), fc.nat(30), (at, byte, dataBytes) => {
      const damaged = Buffer.from(good);
      damaged[at] = byte;
      const head = Buffer.alloc(8);
      head.writeBigUInt64LE(BigInt(good.length));
      fs.writeFileSync(file, Buffer.concat([head, damaged, Buffer.alloc(dataBytes)]));
      try {
        for (const tensor of readSafetensors(file)) expect(tensor.offset + tensor.sizeBytes).toBeLessThanOrEqual(fs.statSync(file).size);
      } catch (error) {
        if (!(error instanceof SafetensorsError)) throw error;
      }
    }),
    { numRuns: 300 },
  );
});

test("reading and writing the embedded checkpoint gives the same tensors", async () => {
  const tensors = [...readCheckpoint(embeddedCheckpoint).tensors.values()];
  const copy = path.join(folder, "copy.safetensors");
  await writeSafetensors(copy, tensors.map((t) => ({ ...t, data: () => [readRange(t)] })));
  const again = readSafetensors(copy);
  expect(again.map(({ name, dtype, shape }) => ({ name, dtype, shape }))).toEqual(tensors.map(({ name, dtype, shape }) => ({ name, dtype, shape })));
  expect(sha256(Buffer.concat(again.map((t) => readRange(t))))).toBe(sha256(Buffer.concat(tensors.map((t) => readRange(t)))));
});

describe("checkpoint folders", () => {
  test("JSON that is none says where", () => {
    const json = path.join(folder, "config.json");
    fs.writeFileSync(json, "{");
    expect(() => readJson(json)).toThrow(FormatError);
    fs.writeFileSync(json, "[1]");
    expect(() => readJson(json)).toThrow("must be an object");
    expect(readJson(path.join(folder, "none.json"))).toBeUndefined();
  });

  test.each([
    ["a shard outside the folder", { weight_map: { a: "../../etc/passwd" } }, '"../../etc/passwd" is not a file name'],
    ["a map that is a list", { weight_map: [] }, "must be an object of file names"],
    ["a file that is no name", { weight_map: { a: 5 } }, "must be an object of file names"],
    ["a tensor in no shard", { weight_map: { a: "one.safetensors", b: "one.safetensors" } }, '1 tensors are in no shard, the first is "b"'],
    ["a tensor that is not listed", { weight_map: { c: "one.safetensors" } }, "in no shard"],
  ])("%s", async (name, index, message) => {
    const checkpoint = path.join(folder, name);
    fs.mkdirSync(checkpoint);
    fs.writeFileSync(path.join(checkpoint, "config.json"), "{}");
    await writeSafetensors(path.join(checkpoint, "one.safetensors"), [{ name: "a", dtype: "U8", shape: [1], data: () => [new Uint8Array(1)] }]);
    fs.writeFileSync(path.join(checkpoint, "model.safetensors.index.json"), JSON.stringify(index));
    expect(() => readCheckpoint(checkpoint)).toThrow(message);
  });

  test("pickled weights are named as what they are", () => {
    const checkpoint = path.join(folder, "pickled");
    fs.mkdirSync(checkpoint);
    fs.writeFileSync(path.join(checkpoint, "config.json"), "{}");
    fs.writeFileSync(path.join(checkpoint, "pytorch_model.bin"), "");
    expect(() => readCheckpoint(checkpoint)).toThrow("has no *.safetensors file; pickled weights are not read");
  });
});

describe("floats", () => {
  const bitsOf = (x: number): number => new Uint32Array(Float32Array.of(x).buffer)[0] as number;

  test("every F16 survives F32 and back", () => {
    const words = Uint16Array.from({ length: 65_536 }, (_, i) => i);
    const floats = new Float32Array(65_536);
    decodeFloats(new Uint8Array(words.buffer), "F16", floats);
    expect([floats[0x3c00], floats[0x0001], floats[0x7bff], floats[0xfc00]]).toEqual([1, 2 ** -24, 65_504, -Infinity]);
    const back = new Uint8Array(65_536 * 2);
    encodeFloats(floats, "F16", back);
    const lost = [...new Uint16Array(back.buffer)].flatMap((word, i) => (word === i || Number.isNaN(floats[i]) ? [] : [i]));
    expect(lost).toEqual([]);
  });

  test("every BF16 survives F32 and back; NaN stays NaN", () => {
    for (let word = 0; word < 65_536; word++) {
      const isNaNWord = (word & 0x7fff) > 0x7f80;
      expect(bfloat16Bits(word * 65_536)).toBe(isNaNWord ? word | 64 : word);
    }
  });

  test("rounding is to nearest, ties to even", () => {
    expect(float16Bits(bitsOf(1 + 2 ** -11))).toBe(0x3c00);
    expect(float16Bits(bitsOf(1 + 3 * 2 ** -11))).toBe(0x3c02);
    expect(float16Bits(bitsOf(65_519))).toBe(0x7bff);
    expect(float16Bits(bitsOf(65_520))).toBe(0x7c00);
    expect(float16Bits(bitsOf(2 ** -25))).toBe(0);
    expect(float16Bits(bitsOf(1.5 * 2 ** -25))).toBe(1);
    expect(float16Bits(bitsOf(2 ** -14 - 2 ** -25))).toBe(0x0400);
    expect(bfloat16Bits(bitsOf(1 + 2 ** -8))).toBe(0x3f80);
    expect(bfloat16Bits(bitsOf(1 + 3 * 2 ** -8))).toBe(0x3f82);
  });

  test("F16 rounds to the nearest of its neighbours", () => {
    const decode = (bits: number): number => {
      const out = new Float32Array(1);
      decodeFloats(new Uint8Array(Uint16Array.of(bits).buffer), "F16", out);
      return out[0] as number;
    };
    fc.assert(
      fc.property(fc.float({ min: -60_000, max: 60_000, noNaN: true }), (x) => {
        const bits = float16Bits(bitsOf(x));
        const error = Math.abs(decode(bits) - x);
        for (const neighbour of [bits - 1, bits + 1]) if ((neighbour & 0x7c00) !== 0x7c00 && neighbour >= 0) expect(error).toBeLessThanOrEqual(Math.abs(decode(neighbour & 0xffff) - x));
      }),
    );
  });
});
