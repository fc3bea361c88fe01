/** Reads one metadata entry. Every length is checked against the bytes that are left before it costs memory. */
import * as fs from "node:fs";
import { ByteReader } from "./byte-reader.ts";
import { GgufError, quote } from "./error.ts";
import type { GgufArrayEntry, GgufEntry, GgufScalar } from "./header.ts";
import { leastElementBytes, scalarBytes, valueTypeName, type ScalarTypeName } from "./types.ts";

export const maxKeyBytes = 65_535;
const maxStringBytes = 64 << 20;
const maxArrayDepth = 4;
const keptElements = 1024;
const keptElementBytes = 4096;

/** One key with its value; long arrays are walked, not kept. */
export function readEntry(r: ByteReader, index: number, remarks: string[]): GgufEntry {
  const start = r.offset;
  const key = r.string(`metadata key ${index}`, maxKeyBytes);
  if (key === "") r.fail(`metadata key ${index}`, "the key is empty", start);
  const reading = `the value of ${quote(key)}`;
  const type = readValueType(r, reading);
  if (type !== "array") {
    const value = scalarReaders[type](r, reading);
    return { kind: "scalar", key, type, value, range: { file: r.file, offset: start, sizeBytes: r.offset - start } };
  }
  const elementType = readValueType(r, reading);
  const length = r.count(`${reading}: array length`, leastElementBytes(elementType));
  const elementsAt = r.offset;
  let values: GgufScalar[] | undefined;
  if (elementType === "array") {
    remarks.push(`${quote(key)} is an array of arrays, which llama.cpp refuses`);
    for (let i = 0; i < length; i++) skipArray(r, reading, 2);
  } else {
    skipElements(r, elementType, length, reading);
    if (length <= keptElements && r.offset - elementsAt <= keptElementBytes) values = readElements(r, elementType, length, reading, elementsAt);
  }
  const end = r.offset;
  return {
    kind: "array",
    key,
    elementType,
    length,
    values,
    range: { file: r.file, offset: start, sizeBytes: end - start },
    elements: { file: r.file, offset: elementsAt, sizeBytes: end - elementsAt },
  };
}

function readValueType(r: ByteReader, reading: string): ScalarTypeName | "array" {
  const at = r.offset;
  const id = r.u32(`${reading}: type`);
  return valueTypeName(id) ?? r.fail(reading, `value type ${id} does not exist (0 to 12 do)`, at);
}

const scalarReaders: Readonly<Record<ScalarTypeName, (r: ByteReader, reading: string) => GgufScalar>> = {
  u8: (r, reading) => r.u8(reading),
  i8: (r, reading) => r.i8(reading),
  u16: (r, reading) => r.u16(reading),
  i16: (r, reading) => r.i16(reading),
  u32: (r, reading) => r.u32(reading),
  i32: (r, reading) => r.i32(reading),
  f32: (r, reading) => r.f32(reading),
  f64: (r, reading) => r.f64(reading),
  bool: (r, reading) => r.u8(reading) !== 0,
  string: (r, reading) => r.string(reading, maxStringBytes),
  u64: (r, reading) => smallIfSafe(r.u64(reading)),
  i64: (r, reading) => smallIfSafe(r.i64(reading)),
};

function smallIfSafe(value: bigint): number | bigint {
  const small = Number(value);
  return Number.isSafeInteger(small) ? small : value;
}

function skipElements(r: ByteReader, type: ScalarTypeName, length: number, reading: string): void {
  const bytes = scalarBytes(type);
  if (bytes !== undefined) r.skip(length * bytes, reading);
  else r.walkStrings(length, reading);
}

/** An array inside an array: its type, length and elements. */
function skipArray(r: ByteReader, reading: string, depth: number): void {
  if (depth > maxArrayDepth) r.fail(reading, `arrays nested deeper than ${maxArrayDepth}`);
  const type = readValueType(r, reading);
  const length = r.count(`${reading}: array length`, leastElementBytes(type));
  if (type !== "array") skipElements(r, type, length, reading);
  else for (let i = 0; i < length; i++) skipArray(r, reading, depth + 1);
}

function readElements(r: ByteReader, type: ScalarTypeName, length: number, reading: string, at: number): GgufScalar[] {
  r.seek(at);
  return Array.from({ length }, () => scalarReaders[type](r, reading));
}

/**
 * All elements of an array entry, from the file where it lies. For vocabularies: some 250,000 strings.
 * @throws {GgufError} for an array of arrays, or when the file changed meanwhile.
 */
export function readArray(entry: GgufArrayEntry, littleEndian = true): GgufScalar[] {
  const { elementType, elements, length } = entry;
  if (entry.values !== undefined) return [...entry.values];
  if (elementType === "array") throw new GgufError(elements.file, elements.offset, quote(entry.key), "arrays of arrays are not read");
  return onElements(entry, littleEndian, (r) => readElements(r, elementType, length, quote(entry.key), elements.offset));
}

/** Shows each string of an array of strings where it lies in memory, without making it a string. Little-endian files. */
export function walkArray(entry: GgufArrayEntry, visit: (window: Uint8Array, start: number, end: number) => void): void {
  onElements(entry, true, (r) => {
    r.seek(entry.elements.offset);
    r.walkStrings(entry.length, quote(entry.key), visit);
  });
}

function onElements<T>({ elements }: GgufArrayEntry, littleEndian: boolean, read: (r: ByteReader) => T): T {
  const fd = fs.openSync(elements.file, "r");
  try {
    const r = new ByteReader(elements.file, fd, elements.offset + elements.sizeBytes);
    r.littleEndian = littleEndian;
    return read(r);
  } finally {
    fs.closeSync(fd);
  }
}
