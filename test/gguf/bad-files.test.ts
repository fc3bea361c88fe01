/** Files from the wild, one fault each: the error names the place, what was read and the limit. */
import * as fc from "fast-check";
import * as fs from "node:fs";
import * as path from "node:path";
import { beforeAll, describe, expect, test } from "vitest";
import { GgufError } from "../../src/gguf/error.ts";
import { arrayEntry, encodeString, scalarEntry, stringEntry, u32, u32Entry, u64, type NewEntry } from "../../src/gguf/kv.ts";
import { readGgufHeader } from "../../src/gguf/reader.ts";
import { ggmlTypes, valueTypes } from "../../src/gguf/types.ts";
import { UserError } from "../../src/util/errors.ts";
import { readEverything, runCampaign } from "./campaign.ts";
import { synthSmall, temporaryFolder } from "./files.ts";

const folder = temporaryFolder("bad");
const file = path.join(folder, "bad.gguf");

interface RawTensor {
  readonly name: string;
  readonly shape: readonly (number | bigint)[];
  readonly type: number;
  readonly offset: number | bigint;
}

const big = (value: number | bigint): Buffer => {
  const out = Buffer.alloc(8);
  out.writeBigUInt64LE(BigInt.asUintN(64, BigInt(value)));
  return out;
};

interface Raw {
  readonly magic?: string;
  readonly version?: number;
  readonly nTensors?: number | bigint;
  readonly nEntries?: number | bigint;
  readonly entries?: readonly Uint8Array[];
  readonly tensors?: readonly RawTensor[];
  readonly dataBytes?: number;
}

/** A file as the test spells it, right or wrong. */
function write({ magic = "GGUF", version = 3, entries = [], tensors = [], dataBytes = 64, nTensors = tensors.length, nEntries = entries.length }: Raw): void {
  const table = tensors.flatMap((t) => [encodeString(t.name), u32(t.shape.length), ...t.shape.map(big), u32(t.type), big(t.offset)]);
  const head = Buffer.concat([Buffer.from(magic, "latin1"), u32(version), big(nTensors), big(nEntries), ...entries, ...table]);
  fs.writeFileSync(file, Buffer.concat([head, Buffer.alloc(Math.ceil(head.length / 32) * 32 - head.length + dataBytes)]));
}

const bytes = (...entries: readonly NewEntry[]): Uint8Array[] => entries.map((entry) => entry.bytes);
const f32 = (name: string, shape: readonly (number | bigint)[], offset: number | bigint = 0, type = 0): RawTensor => ({ name, shape, type, offset });

function errorOf(raw: Raw): GgufError {
  write(raw);
  try {
    readGgufHeader(file);
  } catch (error) {
    expect(error).toBeInstanceOf(GgufError);
    return error as GgufError;
  }
  return expect.fail("the file was accepted");
}

const cases: [string, Raw, string][] = [
  ["another format", { magic: "GGML" }, 'byte 0, reading the magic: not a GGUF file: it begins with "GGML" instead of "GGUF"'],
  ["a web page", { magic: "<!DO" }, "this looks like a web page"],
  ["version 1", { version: 1 }, "GGUF version 1; versions 2 and 3 are read"],
  ["version 4", { version: 4 }, "GGUF version 4"],
  ["more tensors than bytes", { nTensors: 2n ** 63n }, "reading the number of tensors: 9,223,372,036,854,775,808 is more than the rest of the file can hold"],
  ["more keys than bytes", { nEntries: 2n ** 40n }, "reading the number of metadata keys: 1,099,511,627,776 is more"],
  ["a string longer than the file", { entries: [Buffer.concat([encodeString("a"), u32(valueTypes.string), big(2n ** 30n - 1n)])] }, 'reading the value of "a": 1,073,741,823 is more than the rest of the file can hold (at most'],
  ["a key longer than the file", { entries: [big(2n ** 64n - 1n)] }, "reading metadata key 0: 18,446,744,073,709,551,615 is more"],
  ["an empty key", { entries: bytes(u32Entry("", 1)) }, "the key is empty"],
  ["a key twice", { entries: bytes(u32Entry("k", 1), u32Entry("k", 2)) }, 'the key "k" appears twice'],
  ["a value type that does not exist", { entries: [Buffer.concat([encodeString("a"), u32(13)])] }, "value type 13 does not exist (0 to 12 do)"],
  ["an array longer than the file", { entries: [Buffer.concat([encodeString("a"), u32(valueTypes.array), u32(valueTypes.u64), big(2n ** 61n)])] }, "array length: 2,305,843,009,213,693,952 is more"],
  ["arrays nested without end", { entries: [Buffer.concat([encodeString("a"), u32(9), u32(9), u64(1), ...Array.from({ length: 40 }, () => Buffer.concat([u32(9), u64(1)]))])], dataBytes: 4000 }, "arrays nested deeper than 4"],
  ["alignment 0", { entries: bytes(u32Entry("general.alignment", 0)) }, "0 is not a multiple of 8 between 8 and 1,048,576"],
  ["alignment 2^30", { entries: bytes(u32Entry("general.alignment", 2 ** 30)) }, "1,073,741,824 is not a multiple of 8"],
  ["alignment as text", { entries: bytes(stringEntry("general.alignment", "32")) }, "reading general.alignment: must be u32, is string"],
  ["alignment in an array", { entries: bytes(arrayEntry("general.alignment", "u32", [32])) }, "must be u32, is an array"],
  ["five dimensions", { tensors: [f32("t", [1, 1, 1, 1, 1])] }, "5 dimensions, the limit is 4"],
  ["dimensions that overflow", { tensors: [f32("t", [2n ** 33n, 2n ** 33n])] }, "a shape of [8589934592, 8589934592] is more than a file of"],
  ["a negative dimension", { tensors: [f32("t", [-1n])] }, "is more than a file of"],
  ["a tensor twice", { tensors: [f32("t", [4]), f32("t", [4], 32)] }, 'the name "t" appears twice'],
  ["an offset beyond the file", { tensors: [f32("t", [4], 2n ** 62n)] }, "its data begins 4,611,686,018,427,387,904 bytes into tensor data"],
  ["an offset that is not aligned", { tensors: [f32("t", [4], 8)] }, "its offset 8 is not a multiple of the alignment 32"],
  ["tensors that overlap", { tensors: [f32("a", [16]), f32("b", [4], 32)] }, 'tensor "a": its 64 bytes overlap tensor "b"'],
  ["two tensors in one place", { tensors: [f32("a", [4]), f32("b", [4])] }, "overlap"],
  ["data that is cut off", { tensors: [f32("t", [40])] }, "truncated by 96 bytes; fetch the file again"],
  ["rows that are no whole blocks", { tensors: [f32("t", [100], 0, 12)] }, "rows of 100 elements are not whole blocks of 256 (Q4_K)"],
  ["a file without its magic", { magic: "" }, "not a GGUF file"],
];

test.each(cases)("%s", (_name, raw, message) => {
  const error = errorOf(raw);
  expect(error.message).toContain(message);
  expect(error.message).toMatch(/: byte [\d,]+, reading /);
  expect(error.message).not.toContain("\n");
  expect(error.exitCode).toBe(1);
});

test("a folder, and no file at all", () => {
  expect(() => readGgufHeader(folder)).toThrow("is a folder, a file is needed");
  expect(() => readGgufHeader(path.join(folder, "none.gguf"))).toThrow("does not exist; check the path");
});

describe("read with a remark", () => {
  const remarksOf = (raw: Raw): readonly string[] => {
    write(raw);
    return readGgufHeader(file).remarks;
  };

  test("alignment that is no power of two", () => {
    expect(remarksOf({ entries: bytes(u32Entry("general.alignment", 24)), tensors: [f32("t", [4], 24)] })).toEqual(expect.arrayContaining(["general.alignment 24 is not a power of two, which llama.cpp refuses"]));
  });

  test("gaps between tensors", () => {
    expect(remarksOf({ tensors: [f32("t", [4], 32)] })).toEqual(["tensor data is not packed in the order of the table, which llama.cpp refuses"]);
  });

  test("a type this release does not know keeps its place", () => {
    const remarks = remarksOf({ tensors: [f32("a", [16], 0, 137), f32("b", [4], 32)], dataBytes: 64 });
    expect(remarks).toEqual(["1 tensors of an unknown type (type 137 (unknown)), which this llama.cpp refuses"]);
    expect(readGgufHeader(file).tensors.map((t) => [t.type?.name, t.sizeBytes])).toEqual([
      [undefined, 32],
      ["F32", 16],
    ]);
  });

  test("arrays of arrays are walked", () => {
    const nested = Buffer.concat([encodeString("a"), u32(9), u32(9), u64(2), u32(4), u64(1), u32(7), u32(8), u64(1), encodeString("x")]);
    expect(remarksOf({ entries: [nested, ...bytes(u32Entry("after", 5))] })).toEqual(['"a" is an array of arrays, which llama.cpp refuses']);
    expect(readGgufHeader(file).entries.get("after")).toMatchObject({ value: 5 });
  });

  test("a big-endian file says so and is read", () => {
    const swap = (b: Buffer, width: number): Buffer => Buffer.from(b.subarray(0, width).toReversed());
    const key = Buffer.concat([swap(u64(1), 8), Buffer.from("k"), swap(u32(4), 4), swap(u32(77), 4)]);
    fs.writeFileSync(file, Buffer.concat([Buffer.from("GGUF"), swap(u32(3), 4), swap(u64(0), 8), swap(u64(1), 8), key]));
    const header = readGgufHeader(file);
    expect([header.littleEndian, header.version, header.entries.get("k")]).toMatchObject([false, 3, { value: 77 }]);
    expect(header.remarks[0]).toContain("big-endian");
  });

  test("version 2 has the same layout", () => {
    write({ version: 2, entries: bytes(scalarEntry("k", "i16", -3)), tensors: [f32("t", [4])] });
    expect(readGgufHeader(file)).toMatchObject({ version: 2, tensors: [{ name: "t", sizeBytes: 16 }], remarks: [] });
  });
});

test("random bytes after the magic never crash, and cost no memory", () => {
  fc.assert(
    fc.property(fc.uint8Array({ minLength: 0, maxLength: 400 }), (tail) => {
      fs.writeFileSync(file, Buffer.concat([Buffer.from("GGUF"), u32(3), tail]));
      try {
        readGgufHeader(file);
      } catch (error) {
        if (!(error instanceof GgufError)) throw error;
      }
    }),
    { numRuns: 300 },
  );
});

test("any header that is written reads back: names, shapes, values", () => {
  const name = fc.string({ minLength: 1, maxLength: 20, unit: "grapheme" });
  const entry = fc.oneof(
    fc.tuple(fc.constant("string" as const), fc.string({ unit: "grapheme" })),
    fc.tuple(fc.constant("u64" as const), fc.bigInt({ min: 0n, max: 2n ** 64n - 1n })),
    fc.tuple(fc.constant("i32" as const), fc.integer()),
    fc.tuple(fc.constant("f64" as const), fc.double()),
    fc.tuple(fc.constant("bool" as const), fc.boolean()),
  );
  fc.assert(
    fc.property(fc.uniqueArray(fc.tuple(name, entry), { selector: ([key]) => key, maxLength: 8 }), fc.uniqueArray(fc.tuple(name, fc.integer({ min: 0, max: ggmlTypes.length - 1 })), { selector: ([key]) => key, maxLength: 5 }), (entries, tensors) => {
      let offset = 0;
      const table = tensors.map(([tensorName, index]) => {
        const type = ggmlTypes[index] ?? expect.fail();
        const row = { name: tensorName, shape: [type.blockSize, 2], type: type.id, offset };
        offset += Math.ceil((2 * type.blockBytes) / 32) * 32;
        return row;
      });
      write({ entries: entries.map(([key, [type, value]]) => scalarEntry(key, type, value).bytes), tensors: table, dataBytes: offset });
      const header = readGgufHeader(file);
      const values = entries.map(([key, [, value]]) => [key, typeof value === "bigint" && value <= BigInt(Number.MAX_SAFE_INTEGER) ? Number(value) : value]);
      expect([...header.entries.values()].map((e) => [e.key, e.kind === "scalar" ? e.value : undefined])).toEqual(values);
      expect(header.tensors.map((t) => [t.name, t.typeId, t.sizeBytes])).toEqual(table.map((t) => [t.name, t.type, 2 * (ggmlTypes.find((g) => g.id === t.type)?.blockBytes ?? 0)]));
    }),
    { numRuns: 100 },
  );
});

describe("mutation campaign, short", () => {
  let sources: string[];
  beforeAll(async () => {
    sources = [await synthSmall(path.join(folder, "moe.gguf"))];
  });

  test("damaged headers are read or refused, quickly and in bounded memory", () => {
    const refusals: UserError[] = [];
    const result = runCampaign({ sources, folder, nFiles: 800, seed: 5, onVerdict: (_file, verdict) => void ("error" in verdict && refusals.push(verdict.error)) });
    expect(result.findings).toEqual([]);
    expect(result.nAccepted).toBeGreaterThan(30);
    expect(result.refusals.size).toBeGreaterThan(15);
    expect(result.memoryRiseBytes).toBeLessThan(200 << 20);
    expect(refusals.filter((error) => error.message.includes("\n"))).toEqual([]);
  });

  test("an undamaged file passes the same reading", () => {
    expect(readEverything(sources[0] as string)).toEqual([]);
  });
});
