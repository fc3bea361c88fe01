/**
 * Importance matrices (llama-imatrix): for each tensor the mean squared activation of every input column, one row per
 * expert. Two formats: GGUF with `NAME.in_sum2` and `NAME.counts`, and the older binary. Normalised as llama-quantize does.
 */
import * as fs from "node:fs";
import { arrayKey, countKey } from "../gguf/keys.ts";
import { readRange } from "../gguf/kv.ts";
import { readGgufHeader } from "../gguf/reader.ts";
import type { GgufTensor } from "../gguf/header.ts";
import { UserError } from "../util/errors.ts";
import { statFile } from "../util/files.ts";

export interface Imatrix {
  readonly file: string;
  /** Tensor name -> [columns * experts]. */
  readonly entries: ReadonlyMap<string, Float32Array>;
  readonly datasets: readonly string[];
  readonly nChunks: number;
}

/** @throws {UserError} for a file that is neither format, or whose sums and counts do not pair. */
export function readImatrix(file: string): Imatrix {
  const { size } = statFile(file, "--imatrix");
  const fd = fs.openSync(file, "r");
  const magic = Buffer.alloc(4);
  try {
    fs.readSync(fd, magic, 0, 4, 0);
  } finally {
    fs.closeSync(fd);
  }
  if (magic.toString("latin1") === "GGUF") return readGgufImatrix(file);
  if (size > 4 * 2 ** 30) throw new UserError(`--imatrix ${file} is not an importance matrix`);
  return readLegacyImatrix(file, fs.readFileSync(file));
}

function floats(tensor: GgufTensor): Float32Array {
  const bytes = readRange({ file: tensor.file, offset: tensor.offset, sizeBytes: tensor.sizeBytes });
  return new Float32Array(bytes.buffer.slice(bytes.byteOffset, bytes.byteOffset + bytes.length));
}

function readGgufImatrix(file: string): Imatrix {
  const header = readGgufHeader(file);
  const datasets = arrayKey(header, "imatrix.datasets");
  const nChunks = countKey(header, "imatrix.chunk_count");
  if (datasets === undefined || nChunks === undefined || countKey(header, "imatrix.chunk_size") === undefined)
    throw new UserError(`--imatrix ${file} is a GGUF file without imatrix.datasets, imatrix.chunk_count and imatrix.chunk_size; is it an importance matrix?`);
  const tensors = new Map(header.tensors.map((tensor) => [tensor.name, tensor]));
  const entries = new Map<string, Float32Array>();
  for (const tensor of header.tensors) {
    const name = /^(.*)\.in_sum2$/s.exec(tensor.name)?.[1];
    if (name === undefined) continue;
    const counts = tensors.get(`${name}.counts`);
    if (counts === undefined) throw new UserError(`--imatrix ${file} has ${tensor.name} without ${name}.counts; it is damaged`);
    if (tensor.type?.name !== "F32" || counts.type?.name !== "F32") throw new UserError(`--imatrix ${file}: ${name} is not F32`);
    entries.set(name, normalise(floats(tensor), floats(counts)));
  }
  if (entries.size === 0) throw new UserError(`--imatrix ${file} holds no entry`);
  return { file, entries, datasets: (datasets.values ?? []).map(String), nChunks };
}

/** Sums over counts, one count per expert; an expert that saw nothing weighs all columns alike. */
export function normalise(sums: Float32Array, counts: Float32Array): Float32Array {
  const nColumns = sums.length / counts.length;
  return Float32Array.from(sums, (sum, i) => {
    const count = Math.round(counts[Math.floor(i / nColumns)] as number);
    return count > 0 ? sum / count : 1;
  });
}

/** int32 n; then n times: int32 length, name, int32 ncall, int32 nval, float32[nval]; then optional int32 chunks, length, dataset. */
function readLegacyImatrix(file: string, bytes: Buffer): Imatrix {
  let at = 0;
  const fail = (): never => {
    throw new UserError(`--imatrix ${file} is not an importance matrix, or is cut off at byte ${at}`);
  };
  const int = (least: number): number => {
    if (at + 4 > bytes.length) fail();
    const value = bytes.readInt32LE(at);
    if (value < least || value > bytes.length) fail();
    at += 4;
    return value;
  };
  const take = (n: number): Buffer => {
    if (n > bytes.length - at) fail();
    at += n;
    return bytes.subarray(at - n, at);
  };
  const entries = new Map<string, Float32Array>();
  const n = int(1);
  for (let i = 0; i < n; i++) {
    const name = take(int(1)).toString("utf8");
    const nCalls = int(0);
    const values = take(4 * int(1));
    entries.set(
      name,
      Float32Array.from({ length: values.length / 4 }, (_, k) => values.readFloatLE(4 * k) / (nCalls > 0 ? nCalls : 1)),
    );
  }
  const hasTrailer = at + 4 <= bytes.length;
  const nChunks = hasTrailer ? bytes.readInt32LE(at) : 0;
  at += 4;
  const dataset = hasTrailer && at + 4 <= bytes.length ? take(int(0)).toString("utf8") : "";
  return { file, entries, datasets: dataset === "" ? [] : [dataset], nChunks };
}
