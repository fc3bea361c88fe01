/** Damages the header of a GGUF file in the ways that files are damaged: bits, counts, lengths, pieces moved or lost. */
import { readGgufHeader } from "../../src/gguf/reader.ts";
import type { Rng } from "../../src/util/rng.ts";

const edgeValues = [0n, 1n, 2n, 7n, 8n, 13n, 24n, 31n, 32n, 63n, 64n, 255n, 256n, 65_535n, 65_536n, 0x7fff_ffffn, 0x8000_0000n, 0xffff_ffffn, 0x1_0000_0000n, 0x0010_0000_0000_0000n, 0x7fff_ffff_ffff_ffffn, 0x8000_0000_0000_0000n, 0xffff_ffff_ffff_ffffn];

export interface Specimen {
  readonly bytes: Buffer;
  /** Where tensor data begins. */
  readonly dataOffset: number;
  /** Positions of counts, lengths, types and offsets. */
  readonly fields: readonly number[];
  /** Whole metadata entries. */
  readonly entries: readonly { readonly offset: number; readonly sizeBytes: number }[];
}

/** @param bytes the content of `file`. */
export function specimenOf(file: string, bytes: Buffer): Specimen {
  const header = readGgufHeader(file);
  const entries = [...header.entries.values()].map((entry) => entry.range);
  const fields = [4, 8, 16];
  for (const entry of header.entries.values()) {
    const afterKey = entry.range.offset + 8 + Buffer.byteLength(entry.key);
    fields.push(entry.range.offset, afterKey, afterKey + 4);
    if (entry.kind === "array") fields.push(afterKey + 8, entry.elements.offset);
  }
  let at = entries.reduce((end, range) => Math.max(end, range.offset + range.sizeBytes), 24);
  for (const tensor of header.tensors) {
    const afterName = at + 8 + Buffer.byteLength(tensor.name);
    fields.push(at, afterName);
    for (let d = 0; d < tensor.shape.length; d++) fields.push(afterName + 4 + 8 * d);
    at = afterName + 4 + 8 * tensor.shape.length;
    fields.push(at, at + 4);
    at += 12;
  }
  return { bytes, dataOffset: header.dataOffset, fields, entries };
}

type Mutation = (specimen: Specimen, bytes: Buffer, rng: Rng) => Buffer;

const mutations: Readonly<Record<string, Mutation>> = {
  "flip a bit": ({ dataOffset }, bytes, rng) => {
    const at = rng.below(Math.min(dataOffset, bytes.length));
    bytes[at] = (bytes[at] as number) ^ (1 << rng.below(8));
    return bytes;
  },
  "random byte": ({ dataOffset }, bytes, rng) => {
    bytes[rng.below(Math.min(dataOffset, bytes.length))] = rng.below(256);
    return bytes;
  },
  "edge value in a 64-bit field": ({ fields }, bytes, rng) => writeAt(bytes, pick(fields, rng), pick(edgeValues, rng), 8),
  "edge value in a 32-bit field": ({ fields }, bytes, rng) => writeAt(bytes, pick(fields, rng), pick(edgeValues, rng) & 0xffff_ffffn, 4),
  "field off by a little": ({ fields }, bytes, rng) => {
    const at = pick(fields, rng);
    if (at + 8 > bytes.length) return bytes;
    return writeAt(bytes, at, BigInt.asUintN(64, bytes.readBigUInt64LE(at) + BigInt(rng.below(65) - 32)), 8);
  },
  "size of the file in a field": ({ fields }, bytes, rng) => writeAt(bytes, pick(fields, rng), BigInt(bytes.length + rng.below(33) - 16), 8),
  "edge value anywhere": ({ dataOffset }, bytes, rng) => writeAt(bytes, rng.below(Math.min(dataOffset, bytes.length)), pick(edgeValues, rng), 8),
  "cut the file": (_specimen, bytes, rng) => bytes.subarray(0, rng.below(bytes.length + 1)),
  "cut within the header": ({ dataOffset }, bytes, rng) => bytes.subarray(0, rng.below(dataOffset + 1)),
  "lose bytes": ({ dataOffset }, bytes, rng) => {
    const at = rng.below(Math.min(dataOffset, bytes.length));
    return Buffer.concat([bytes.subarray(0, at), bytes.subarray(at + 1 + rng.below(40))]);
  },
  "insert bytes": ({ dataOffset }, bytes, rng) => {
    const at = rng.below(Math.min(dataOffset, bytes.length));
    return Buffer.concat([bytes.subarray(0, at), Buffer.from(Array.from({ length: 1 + rng.below(40) }, () => rng.below(256))), bytes.subarray(at)]);
  },
  "an entry twice": ({ entries }, bytes, rng) => {
    const [one, other] = [pick(entries, rng), pick(entries, rng)];
    return Buffer.concat([bytes.subarray(0, other.offset), bytes.subarray(one.offset, one.offset + one.sizeBytes), bytes.subarray(other.offset)]);
  },
  "an entry over another": ({ entries }, bytes, rng) => {
    const [one, other] = [pick(entries, rng), pick(entries, rng)];
    if (one.offset + one.sizeBytes <= bytes.length) bytes.copy(bytes, other.offset, one.offset, one.offset + one.sizeBytes);
    return bytes;
  },
  "big-endian version": (_specimen, bytes) => writeAt(bytes, 4, 0x0300_0000n, 4),
};

const kinds = Object.values(mutations);

function pick<T>(items: readonly T[], rng: Rng): T {
  return items[rng.below(items.length)] as T;
}

function writeAt(bytes: Buffer, at: number, value: bigint, width: 4 | 8): Buffer {
  if (at + width > bytes.length) return bytes;
  if (width === 8) bytes.writeBigUInt64LE(value, at);
  else bytes.writeUInt32LE(Number(value), at);
  return bytes;
}

/** One to four mutations on top of each other. */
export function mutate(specimen: Specimen, rng: Rng): Buffer {
  let bytes: Buffer = Buffer.from(specimen.bytes);
  for (let n = 1 + (rng.uniform() < 0.3 ? rng.below(4) : 0); n > 0 && bytes.length > 0; n--) bytes = pick(kinds, rng)(specimen, bytes, rng);
  return bytes;
}
