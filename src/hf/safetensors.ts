/**
 * The safetensors format: eight bytes of length, a JSON table, then data without gaps
 * (https://github.com/huggingface/safetensors#format). Tables are checked before they are believed.
 */
import * as fs from "node:fs";
import * as fsp from "node:fs/promises";
import * as path from "node:path";
import { FormatError, quote } from "../gguf/error.ts";
import type { Pieces } from "../gguf/writer.ts";
import { errorMessage } from "../util/errors.ts";
import { requireDiskSpace, statFile, writeAtomic } from "../util/files.ts";
import { formatInteger } from "../util/format.ts";

export class SafetensorsError extends FormatError {
  override readonly name: string = "SafetensorsError";
}

/** Bytes of an element, by the names the format uses. */
const dtypeSizes = new Map(
  Object.entries({ BOOL: 1, U8: 1, I8: 1, F8_E5M2: 1, F8_E4M3: 1, F8_E8M0: 1, I16: 2, U16: 2, F16: 2, BF16: 2, I32: 4, U32: 4, F32: 4, I64: 8, U64: 8, F64: 8 }),
);

export interface HfTensor {
  readonly name: string;
  readonly dtype: string;
  /** PyTorch order: the last size is the row length. */
  readonly shape: readonly number[];
  readonly file: string;
  /** Absolute position in `file`. */
  readonly offset: number;
  readonly sizeBytes: number;
}

/** The limit that the reference implementation sets. */
const maxTableBytes = 100_000_000;

/**
 * The tensors of one file, sorted by name as the reference implementation does.
 * @throws {SafetensorsError} when the table is not JSON, or claims what the file does not hold.
 */
export function readSafetensors(file: string): HfTensor[] {
  const { size } = statFile(file, "safetensors");
  const fd = fs.openSync(file, "r");
  try {
    const table = readTable(file, fd, size);
    const tensors = Object.entries(table.json)
      .filter(([name]) => name !== "__metadata__")
      .map(([name, info]) => readRow(file, name, info, table.bytes + 8, size));
    checkGaps(file, tensors, table.bytes + 8, size);
    return tensors.toSorted((a, b) => (a.name < b.name ? -1 : 1));
  } finally {
    fs.closeSync(fd);
  }
}

/** The `__metadata__` of a file: texts by key. */
export function readSafetensorsMetadata(file: string): Readonly<Record<string, string>> {
  const { size } = statFile(file, "safetensors");
  const fd = fs.openSync(file, "r");
  try {
    const metadata = readTable(file, fd, size).json["__metadata__"];
    if (metadata === undefined) return {};
    if (typeof metadata !== "object" || metadata === null || !Object.values(metadata).every((value) => typeof value === "string")) throw new SafetensorsError(file, 8, "__metadata__", "must be an object of texts");
    return metadata as Record<string, string>;
  } finally {
    fs.closeSync(fd);
  }
}

function readTable(file: string, fd: number, size: number): { json: Record<string, unknown>; bytes: number } {
  if (size < 8) throw new SafetensorsError(file, 0, "the length of the table", `the file has ${size} bytes, 8 are needed`);
  const length = Buffer.alloc(8);
  fs.readSync(fd, length, 0, 8, 0);
  const bytes = length.readBigUInt64LE();
  const limit = Math.min(maxTableBytes, size - 8);
  if (bytes > BigInt(limit)) throw new SafetensorsError(file, 0, "the length of the table", `${formatInteger(bytes)} bytes, at most ${formatInteger(limit)} are possible; is this a safetensors file?`);
  const text = Buffer.allocUnsafe(Number(bytes));
  fs.readSync(fd, text, 0, text.length, 8);
  let json: unknown;
  try {
    json = JSON.parse(text.toString("utf8"));
  } catch (error) {
    throw new SafetensorsError(file, 8, "the table", `not JSON: ${quote(errorMessage(error))}`);
  }
  if (typeof json !== "object" || json === null || Array.isArray(json)) throw new SafetensorsError(file, 8, "the table", "must be a JSON object");
  return { json: json as Record<string, unknown>, bytes: Number(bytes) };
}

const isCount = (value: unknown): value is number => Number.isSafeInteger(value) && (value as number) >= 0;

function readRow(file: string, name: string, info: unknown, dataOffset: number, size: number): HfTensor {
  const fail = (problem: string): never => {
    throw new SafetensorsError(file, 8, `tensor ${quote(name)}`, problem);
  };
  if (typeof info !== "object" || info === null) return fail("its row of the table is not an object");
  const { dtype, shape, data_offsets: offsets } = info as { dtype?: unknown; shape?: unknown; data_offsets?: unknown };
  if (typeof dtype !== "string") return fail("no dtype");
  const bytes = dtypeSizes.get(dtype);
  if (bytes === undefined) return fail(`dtype ${quote(dtype)} is not known (${[...dtypeSizes.keys()].join(", ")})`);
  if (!Array.isArray(shape) || !shape.every(isCount)) return fail("shape is not a list of counts");
  if (!Array.isArray(offsets) || offsets.length !== 2 || !offsets.every(isCount)) return fail("data_offsets is not a pair of counts");
  const [begin, end] = offsets as [number, number];
  const sizeBytes = shape.reduce((n, d) => n * d, bytes);
  if (end - begin !== sizeBytes) return fail(`data_offsets span ${formatInteger(end - begin)} bytes, ${dtype} [${shape.join(", ")}] takes ${formatInteger(sizeBytes)}`);
  if (dataOffset + end > size) return fail(`its data ends at byte ${formatInteger(dataOffset + end)} of a file of ${formatInteger(size)}: truncated; fetch the file again`);
  return { name, dtype, shape, file, offset: dataOffset + begin, sizeBytes };
}

function checkGaps(file: string, tensors: readonly HfTensor[], dataOffset: number, size: number): void {
  let expected = dataOffset;
  for (const tensor of tensors.toSorted((a, b) => a.offset - b.offset || a.sizeBytes - b.sizeBytes)) {
    if (tensor.offset !== expected)
      throw new SafetensorsError(file, tensor.offset, `tensor ${quote(tensor.name)}`, tensor.offset < expected ? "overlaps the tensor before it" : `a gap of ${formatInteger(tensor.offset - expected)} bytes before it`);
    expected += tensor.sizeBytes;
  }
  if (expected !== size) throw new SafetensorsError(file, expected, "the end", `${formatInteger(size - expected)} bytes belong to no tensor`);
}

export interface HfTensorInput {
  readonly name: string;
  readonly dtype: string;
  readonly shape: readonly number[];
  data(): Pieces;
}

/**
 * Writes one file; tensors keep the order given. The table is padded with spaces to 8 bytes, as the reference does.
 * @throws {UserError} when the disk is too full. Nothing is left then.
 */
export async function writeSafetensors(file: string, tensors: readonly HfTensorInput[], options: { metadata?: Readonly<Record<string, string>>; signal?: AbortSignal | undefined; onBytes?: ((nBytes: number, totalBytes: number) => void) | undefined } = {}): Promise<void> {
  const table: Record<string, unknown> = { __metadata__: { format: "pt", ...options.metadata } };
  let end = 0;
  const sizes = tensors.map(({ name, dtype, shape }) => {
    const sizeBytes = shape.reduce((n, d) => n * d, dtypeSizes.get(dtype) ?? NaN);
    table[name] = { dtype, shape, data_offsets: [end, end + sizeBytes] };
    end += sizeBytes;
    return sizeBytes;
  });
  const json = Buffer.from(JSON.stringify(table));
  const head = Buffer.alloc(8 + Math.ceil(json.length / 8) * 8, " ");
  head.writeBigUInt64LE(BigInt(head.length - 8));
  json.copy(head, 8);
  requireDiskSpace(path.dirname(path.resolve(file)), head.length + end, `writing ${file}`);
  await writeAtomic(file, async (temporary) => {
    const handle = await fsp.open(temporary, "w");
    try {
      await handle.write(head);
      let written = 0;
      for (const [i, tensor] of tensors.entries()) {
        const before = written;
        for await (const piece of tensor.data()) {
          options.signal?.throwIfAborted();
          for (let at = 0; at < piece.length; ) at += (await handle.write(piece, at)).bytesWritten;
          written += piece.length;
          options.onBytes?.(written, end);
        }
        if (written - before !== sizes[i]) throw new Error(`the source of tensor ${tensor.name} gave ${written - before} bytes, ${sizes[i]} were announced`);
      }
    } finally {
      await handle.close();
    }
  });
}
