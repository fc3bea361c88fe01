/** Metadata entries to be written: new values, or entries of a file that are copied byte for byte. */
import * as fs from "node:fs";
import type { ByteRange, GgufEntry, GgufScalar } from "./header.ts";
import { scalarBytes, valueTypes, type ScalarTypeName } from "./types.ts";

export interface NewEntry {
  readonly key: string;
  readonly bytes: Uint8Array;
}

/** What the writer takes: an entry of a file stands for its bytes there. */
export type EntryInput = NewEntry | GgufEntry;

export function scalarEntry(key: string, type: ScalarTypeName, value: GgufScalar): NewEntry {
  return { key, bytes: Buffer.concat([encodeString(key), u32(valueTypes[type]), encode(type, [value])]) };
}

export function arrayEntry(key: string, elementType: ScalarTypeName, values: readonly GgufScalar[]): NewEntry {
  return { key, bytes: Buffer.concat([encodeString(key), u32(valueTypes.array), u32(valueTypes[elementType]), u64(values.length), encode(elementType, values)]) };
}

export const stringEntry = (key: string, value: string): NewEntry => scalarEntry(key, "string", value);
export const u32Entry = (key: string, value: number): NewEntry => scalarEntry(key, "u32", value);
export const f32Entry = (key: string, value: number): NewEntry => scalarEntry(key, "f32", value);
export const boolEntry = (key: string, value: boolean): NewEntry => scalarEntry(key, "bool", value);

/** The bytes of an entry as they stand in a file. */
export function entryBytes(entry: EntryInput): Uint8Array {
  return "bytes" in entry ? entry.bytes : readRange(entry.range);
}

/** Bytes of an entry, without reading them. */
export function entrySize(entry: EntryInput): number {
  return "bytes" in entry ? entry.bytes.length : entry.range.sizeBytes;
}

export function readRange(range: ByteRange): Buffer {
  const fd = fs.openSync(range.file, "r");
  try {
    const bytes = Buffer.allocUnsafe(range.sizeBytes);
    for (let done = 0; done < bytes.length; ) {
      const n = fs.readSync(fd, bytes, done, bytes.length - done, range.offset + done);
      if (n === 0) throw new Error(`${range.file} became shorter while it was read`);
      done += n;
    }
    return bytes;
  } finally {
    fs.closeSync(fd);
  }
}

export function encodeString(text: string): Buffer {
  const n = Buffer.byteLength(text);
  const out = Buffer.allocUnsafe(8 + n);
  out.writeBigUInt64LE(BigInt(n));
  out.write(text, 8);
  return out;
}

export function u32(value: number): Buffer {
  const out = Buffer.allocUnsafe(4);
  out.writeUInt32LE(value);
  return out;
}

export function u64(value: number): Buffer {
  const out = Buffer.allocUnsafe(8);
  out.writeBigUInt64LE(BigInt(value));
  return out;
}

function encode(type: ScalarTypeName, values: readonly GgufScalar[]): Buffer {
  if (type === "string") return encodeStrings(values);
  const size = scalarBytes(type) as number;
  const out = Buffer.alloc(values.length * size);
  const write = scalarWriters[type];
  values.forEach((value, i) => write(out, value, i * size));
  return out;
}

function encodeStrings(values: readonly GgufScalar[]): Buffer {
  const sizes = values.map((value) => Buffer.byteLength(String(value)));
  const out = Buffer.allocUnsafe(sizes.reduce((n, size) => n + 8 + size, 0));
  let at = 0;
  for (const [i, value] of values.entries()) {
    const size = sizes[i] as number;
    out.writeBigUInt64LE(BigInt(size), at);
    out.write(String(value), at + 8);
    at += 8 + size;
  }
  return out;
}

const scalarWriters: Readonly<Record<Exclude<ScalarTypeName, "string">, (out: Buffer, value: GgufScalar, at: number) => void>> = {
  u8: (out, value, at) => void out.writeUInt8(Number(value), at),
  i8: (out, value, at) => void out.writeInt8(Number(value), at),
  u16: (out, value, at) => void out.writeUInt16LE(Number(value), at),
  i16: (out, value, at) => void out.writeInt16LE(Number(value), at),
  u32: (out, value, at) => void out.writeUInt32LE(Number(value), at),
  i32: (out, value, at) => void out.writeInt32LE(Number(value), at),
  f32: (out, value, at) => void out.writeFloatLE(Number(value), at),
  f64: (out, value, at) => void out.writeDoubleLE(Number(value), at),
  bool: (out, value, at) => void out.writeUInt8(value === true ? 1 : 0, at),
  u64: (out, value, at) => void out.writeBigUInt64LE(BigInt(value), at),
  i64: (out, value, at) => void out.writeBigInt64LE(BigInt(value), at),
};
