/**
 * Reads the header of a GGUF file (versions 2 and 3): metadata and tensor table, never tensor data.
 *
 * Values of the metadata are kept when they are small; a vocabulary is walked and remembered as a byte range.
 * Every claim of the file is checked against its size before it costs memory. What llama.cpp would refuse but can be
 * read (a gap between tensors, an unknown type) is a remark, what cannot be trusted is a GgufError.
 * Format: docs/gguf.md of ggml; limits: gguf.cpp of llama.cpp v0.5.0.
 */
import * as fs from "node:fs";
import { statFile } from "../util/files.ts";
import { formatInteger } from "../util/format.ts";
import { ByteReader } from "./byte-reader.ts";
import { quote } from "./error.ts";
import { readEntry } from "./entry.ts";
import type { GgufEntry, GgufHeader } from "./header.ts";
import { placeTensors, readTableRow, type TableRow } from "./tensor-table.ts";
import { defaultAlignment } from "./types.ts";

const maxAlignment = 1 << 20;

/**
 * @throws {GgufError} with the position, what was being read and the limit.
 * @throws {UserError} when the file cannot be opened.
 */
export function readGgufHeader(file: string): GgufHeader {
  const { size } = statFile(file, "GGUF");
  const fd = fs.openSync(file, "r");
  try {
    return parse(new ByteReader(file, fd, size));
  } finally {
    fs.closeSync(fd);
  }
}

function parse(r: ByteReader): GgufHeader {
  const version = readVersion(r);
  const nTensors = r.count("the number of tensors", 24);
  const nEntries = r.count("the number of metadata keys", 13);
  const remarks: string[] = [];
  if (!r.littleEndian) remarks.push("big-endian: llama.cpp on a little-endian machine refuses it; gguf_convert_endian.py of gguf-py rewrites it");
  const entries = new Map<string, GgufEntry>();
  for (let i = 0; i < nEntries; i++) {
    const entry = readEntry(r, i, remarks);
    if (entries.has(entry.key)) r.fail(`metadata key ${i}`, `the key ${quote(entry.key)} appears twice`, entry.range.offset);
    entries.set(entry.key, entry);
  }
  const alignment = readAlignment(r, entries.get("general.alignment"), remarks);
  const table: TableRow[] = [];
  const names = new Set<string>();
  for (let i = 0; i < nTensors; i++) {
    const row = readTableRow(r, i);
    if (names.has(row.name)) r.fail(`tensor ${i}`, `the name ${quote(row.name)} appears twice`, row.at);
    names.add(row.name);
    table.push(row);
  }
  const dataOffset = nTensors === 0 ? r.offset : Math.ceil(r.offset / alignment) * alignment;
  if (dataOffset > r.sizeBytes) r.fail("tensor data", `begins at byte ${formatInteger(dataOffset)}, after the end of the file`);
  const tensors = placeTensors(r, table, dataOffset, alignment, remarks);
  return { file: r.file, fileBytes: r.sizeBytes, version, littleEndian: r.littleEndian, entries, tensors, alignment, dataOffset, remarks };
}

function readVersion(r: ByteReader): number {
  r.require(4, "the magic");
  const magic = Buffer.from([r.u8("magic"), r.u8("magic"), r.u8("magic"), r.u8("magic")]);
  if (magic.toString("latin1") !== "GGUF") {
    const hint = magic.toString("latin1").startsWith("<") ? "; this looks like a web page, was the download redirected?" : "";
    r.fail("the magic", `not a GGUF file: it begins with ${quote(magic.toString("latin1"))} instead of "GGUF"${hint}`, 0);
  }
  r.require(20, "the GGUF header");
  let version = r.u32("the version");
  if (version !== 0 && (version & 0xffff) === 0) {
    r.littleEndian = false;
    r.seek(4);
    version = r.u32("the version");
  }
  if (version !== 2 && version !== 3) r.fail("the version", `GGUF version ${version}; versions 2 and 3 are read`, 4);
  return version;
}

function readAlignment(r: ByteReader, entry: GgufEntry | undefined, remarks: string[]): number {
  if (entry === undefined) return defaultAlignment;
  const at = entry.range.offset;
  if (entry.kind !== "scalar" || entry.type !== "u32" || typeof entry.value !== "number")
    return r.fail("general.alignment", `must be u32, is ${entry.kind === "array" ? "an array" : entry.type}`, at);
  const value = entry.value;
  if (value === 0 || value % 8 !== 0 || value > maxAlignment) return r.fail("general.alignment", `${formatInteger(value)} is not a multiple of 8 between 8 and ${formatInteger(maxAlignment)}`, at);
  if ((value & (value - 1)) !== 0) remarks.push(`general.alignment ${value} is not a power of two, which llama.cpp refuses`);
  return value;
}
