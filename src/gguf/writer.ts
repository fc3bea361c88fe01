/**
 * Writes a GGUF file front to back. Tensor data comes from sources that hand out pieces, so memory holds the header
 * and one piece, whatever the size of the file. The file gets its name only when it is whole and its header reads
 * back as it was meant.
 */
import * as fs from "node:fs/promises";
import * as path from "node:path";
import { UserError } from "../util/errors.ts";
import { requireDiskSpace, writeAtomic } from "../util/files.ts";
import { formatInteger } from "../util/format.ts";
import type { GgufHeader, GgufTensor } from "./header.ts";
import { encodeString, entryBytes, entrySize, u32, u64, type EntryInput } from "./kv.ts";
import { readGgufHeader } from "./reader.ts";
import { defaultAlignment, ggufVersion, maxDimensions, maxTensorNameBytes, tensorBytes, type GgmlType } from "./types.ts";

/** Pieces of a tensor in order. A source may hand out one buffer again and again: each piece is used up before the next. */
export type Pieces = Iterable<Uint8Array> | AsyncIterable<Uint8Array>;

export interface TensorInput {
  readonly name: string;
  /** ggml order: `shape[0]` is the row length. */
  readonly shape: readonly number[];
  readonly typeId: number;
  readonly sizeBytes: number;
  /** Called once, when it is this tensor's turn. */
  data(): Pieces;
}

export interface WriteOptions {
  readonly entries: readonly EntryInput[];
  readonly tensors: readonly TensorInput[];
  readonly alignment?: number;
  readonly version?: number;
  readonly signal?: AbortSignal | undefined;
  /** Looks at the finished file before it gets its name; throws to refuse it. */
  readonly check?: ((written: GgufHeader) => Promise<void>) | undefined;
  /** Called with the number of bytes written so far. */
  readonly onBytes?: ((nBytes: number, totalBytes: number) => void) | undefined;
}

const copyBytes = 2 << 20;

export function newTensor(name: string, shape: readonly number[], type: GgmlType, data: () => Pieces): TensorInput {
  return { name, shape, typeId: type.id, sizeBytes: tensorBytes(type, shape), data };
}

/** A tensor of a file, byte for byte, perhaps under another name. */
export function copiedTensor(tensor: GgufTensor, name = tensor.name): TensorInput {
  return { name, shape: tensor.shape, typeId: tensor.typeId, sizeBytes: tensor.sizeBytes, data: () => readPieces(tensor.file, tensor.offset, tensor.sizeBytes) };
}

/** The bytes of a range in pieces of exactly `pieceBytes` (the last may be shorter); one buffer, handed out again and again. */
export async function* readPieces(file: string, offset: number, sizeBytes: number, pieceBytes = copyBytes): AsyncGenerator<Buffer> {
  const handle = await fs.open(file, "r");
  try {
    const buffer = Buffer.allocUnsafe(Math.min(pieceBytes, sizeBytes));
    for (let done = 0; done < sizeBytes; ) {
      const wanted = Math.min(buffer.length, sizeBytes - done);
      for (let got = 0; got < wanted; ) {
        const { bytesRead } = await handle.read(buffer, got, wanted - got, offset + done + got);
        if (bytesRead === 0) throw new UserError(`${file}: ended at byte ${formatInteger(offset + done + got)}, ${formatInteger(sizeBytes - done - got)} bytes early; was it changed while it was read?`);
        got += bytesRead;
      }
      yield buffer.subarray(0, wanted);
      done += wanted;
    }
  } finally {
    await handle.close();
  }
}

const padded = (nBytes: number, alignment: number): number => Math.ceil(nBytes / alignment) * alignment;

/** Magic, counts, metadata and tensor table. One part is in memory at a time: a vocabulary has megabytes. */
function* headerParts({ entries, tensors, alignment = defaultAlignment, version = ggufVersion }: WriteOptions): Generator<Uint8Array> {
  yield Buffer.concat([Buffer.from("GGUF"), u32(version), u64(tensors.length), u64(entries.length)]);
  for (const entry of entries) yield entryBytes(entry);
  const rows: Uint8Array[] = [];
  let offset = 0;
  for (const { name, shape, typeId, sizeBytes } of tensors) {
    rows.push(encodeString(name), u32(shape.length), ...shape.map(u64), u32(typeId), u64(offset));
    offset += padded(sizeBytes, alignment);
  }
  yield Buffer.concat(rows);
}

/** With the padding up to where tensor data begins. */
function headerSize({ entries, tensors, alignment = defaultAlignment }: WriteOptions): number {
  const tableBytes = tensors.reduce((n, { name, shape }) => n + 8 + Buffer.byteLength(name) + 4 + 8 * shape.length + 4 + 8, 0);
  return padded(24 + entries.reduce((n, entry) => n + entrySize(entry), 0) + tableBytes, alignment);
}

export interface WriteResult {
  readonly sizeBytes: number;
}

/**
 * @throws {UserError} when the disk is too full (before anything is written), on Ctrl-C, or when a source gives another
 * number of bytes than it announced. Nothing is left then.
 */
export async function writeGguf(file: string, options: WriteOptions): Promise<WriteResult> {
  const { tensors, alignment = defaultAlignment } = options;
  checkTensors(tensors);
  const headerBytes = headerSize(options);
  const sizeBytes = headerBytes + tensors.reduce((n, t) => n + padded(t.sizeBytes, alignment), 0);
  requireDiskSpace(path.dirname(path.resolve(file)), sizeBytes, `writing ${file}`);
  await writeAtomic(file, async (temporary) => {
    const handle = await fs.open(temporary, "w");
    try {
      let written = 0;
      for (const part of headerParts(options)) written += await writeAll(handle, part);
      written += await writeAll(handle, Buffer.alloc(headerBytes - written));
      for (const tensor of tensors) {
        const nBytes = await writeTensor(handle, tensor, options, written, sizeBytes);
        written += nBytes + (await writeAll(handle, Buffer.alloc(padded(nBytes, alignment) - nBytes)));
      }
    } finally {
      await handle.close();
    }
    const written = checkWritten(temporary, file, tensors, sizeBytes);
    await options.check?.(written);
  });
  return { sizeBytes };
}

/** Returns the number of bytes: all of them. */
async function writeAll(handle: fs.FileHandle, bytes: Uint8Array): Promise<number> {
  for (let at = 0; at < bytes.length; ) at += (await handle.write(bytes, at)).bytesWritten;
  return bytes.length;
}

async function writeTensor(handle: fs.FileHandle, tensor: TensorInput, { signal, onBytes }: WriteOptions, written: number, totalBytes: number): Promise<number> {
  let nBytes = 0;
  for await (const piece of tensor.data()) {
    signal?.throwIfAborted();
    nBytes += piece.length;
    if (nBytes > tensor.sizeBytes) break;
    await writeAll(handle, piece);
    onBytes?.(written + nBytes, totalBytes);
  }
  if (nBytes !== tensor.sizeBytes) throw new Error(`the source of tensor ${tensor.name} gave ${nBytes} bytes, ${tensor.sizeBytes} were announced`);
  return nBytes;
}

function checkTensors(tensors: readonly TensorInput[]): void {
  const names = new Set<string>();
  for (const { name, shape } of tensors) {
    if (names.has(name)) throw new UserError(`two tensors are named ${name}; a GGUF file holds each name once`);
    names.add(name);
    if (Buffer.byteLength(name) > maxTensorNameBytes) throw new UserError(`the tensor name ${name} is longer than ${maxTensorNameBytes} bytes, the limit of llama.cpp`);
    if (shape.length > maxDimensions) throw new UserError(`tensor ${name} has ${shape.length} dimensions, the limit of GGUF is ${maxDimensions}`);
  }
}

function checkWritten(temporary: string, file: string, tensors: readonly TensorInput[], sizeBytes: number): GgufHeader {
  const header = readGgufHeader(temporary);
  const isAsMeant =
    header.fileBytes === sizeBytes &&
    header.tensors.length === tensors.length &&
    header.tensors.every((t, i) => {
      const meant = tensors[i] as TensorInput;
      return t.name === meant.name && t.typeId === meant.typeId && t.sizeBytes === meant.sizeBytes;
    });
  if (!isAsMeant) throw new Error(`${file}: the header that was written does not read back as it was meant`);
  return header;
}
