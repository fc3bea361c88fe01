/** Reads the tensor table and places each tensor in the file. */
import { formatInteger } from "../util/format.ts";
import type { ByteReader } from "./byte-reader.ts";
import { maxKeyBytes } from "./entry.ts";
import { quote } from "./error.ts";
import type { GgufTensor } from "./header.ts";
import { elementCount, ggmlType, maxDimensions, maxTensorNameBytes, tensorBytes, typeName } from "./types.ts";

export interface TableRow {
  readonly name: string;
  readonly shape: readonly number[];
  readonly typeId: number;
  /** From the beginning of tensor data. */
  readonly relativeOffset: number;
  /** Where this row of the table is. */
  readonly at: number;
}

export function readTableRow(r: ByteReader, index: number): TableRow {
  const at = r.offset;
  const name = r.string(`the name of tensor ${index}`, maxKeyBytes);
  const reading = `tensor ${index} ${quote(name)}`;
  const nDimensions = r.u32(`${reading}: dimensions`);
  if (nDimensions > maxDimensions) r.fail(reading, `${formatInteger(nDimensions)} dimensions, the limit is ${maxDimensions}`, at);
  const shape: number[] = [];
  let nElements = 1n;
  for (let d = 0; d < nDimensions; d++) {
    const size = r.u64(`${reading}: dimension ${d}`);
    nElements *= size;
    shape.push(Number(size));
  }
  // No type is smaller than one bit an element, so more elements than bits in the file is a lie whatever the type.
  if (nElements > BigInt(r.sizeBytes) * 8n || shape.some((size) => !Number.isSafeInteger(size)))
    r.fail(reading, `a shape of [${shape.join(", ")}] is more than a file of ${formatInteger(r.sizeBytes)} bytes can hold`, at);
  const typeId = r.u32(`${reading}: type`);
  const offset = r.u64(`${reading}: offset`);
  if (offset > BigInt(r.sizeBytes)) r.fail(reading, `its data begins ${formatInteger(offset)} bytes into tensor data, the file has ${formatInteger(r.sizeBytes)} bytes`, at);
  return { name, shape, typeId, relativeOffset: Number(offset), at };
}

/** Checks alignment, overlap and the end of the file, and gives each tensor its absolute place. */
export function placeTensors(r: ByteReader, table: readonly TableRow[], dataOffset: number, alignment: number, remarks: string[]): GgufTensor[] {
  const order = table.map((_, i) => i).sort((a, b) => (table[a] as TableRow).relativeOffset - (table[b] as TableRow).relativeOffset);
  const nextOffset = table.map(() => r.sizeBytes - dataOffset);
  order.forEach((i, rank) => {
    const next = order[rank + 1];
    if (next !== undefined) nextOffset[i] = (table[next] as TableRow).relativeOffset;
  });
  const tensors = table.map((row, i) => placeTensor(r, row, dataOffset, alignment, nextOffset[i] as number));
  for (const [rank, i] of order.entries()) {
    const [tensor, row] = [tensors[i] as GgufTensor, table[i] as TableRow];
    const next = order[rank + 1];
    if (next !== undefined && row.relativeOffset + tensor.sizeBytes > (nextOffset[i] as number))
      r.fail(`tensor ${quote(row.name)}`, `its ${formatInteger(tensor.sizeBytes)} bytes overlap tensor ${quote((table[next] as TableRow).name)}`, row.at);
  }
  remarkOnPlaces(table, tensors, alignment, remarks);
  return tensors;
}

function placeTensor(r: ByteReader, row: TableRow, dataOffset: number, alignment: number, nextOffset: number): GgufTensor {
  const reading = `tensor ${quote(row.name)}`;
  const type = ggmlType(row.typeId);
  if (row.relativeOffset % alignment !== 0) r.fail(reading, `its offset ${formatInteger(row.relativeOffset)} is not a multiple of the alignment ${alignment}`, row.at);
  const nElements = elementCount(row.shape);
  if (type !== undefined && (row.shape[0] ?? 1) % type.blockSize !== 0) r.fail(reading, `rows of ${formatInteger(row.shape[0] ?? 1)} elements are not whole blocks of ${type.blockSize} (${type.name})`, row.at);
  const offset = dataOffset + row.relativeOffset;
  const sizeBytes = type === undefined ? Math.max(0, nextOffset - row.relativeOffset) : tensorBytes(type, row.shape);
  if (offset + sizeBytes > r.sizeBytes)
    r.fail(reading, `its data ends at byte ${formatInteger(offset + sizeBytes)} of a file of ${formatInteger(r.sizeBytes)}: truncated by ${formatInteger(offset + sizeBytes - r.sizeBytes)} bytes; fetch the file again`, row.at);
  return { name: row.name, shape: row.shape, typeId: row.typeId, type, nElements, file: r.file, offset, sizeBytes };
}

function remarkOnPlaces(table: readonly TableRow[], tensors: readonly GgufTensor[], alignment: number, remarks: string[]): void {
  let expected = 0;
  let isPacked = true;
  for (const [i, tensor] of tensors.entries()) {
    if ((table[i] as TableRow).relativeOffset !== expected) isPacked = false;
    expected = Math.ceil((expected + tensor.sizeBytes) / alignment) * alignment;
  }
  if (!isPacked) remarks.push("tensor data is not packed in the order of the table, which llama.cpp refuses");
  const longName = tensors.find((t) => Buffer.byteLength(t.name) > maxTensorNameBytes);
  if (longName !== undefined) remarks.push(`tensor ${quote(longName.name)} has a name longer than ${maxTensorNameBytes} bytes, which llama.cpp refuses`);
  const unknown = tensors.filter((t) => t.type === undefined);
  if (unknown.length > 0) remarks.push(`${unknown.length} tensors of an unknown type (${[...new Set(unknown.map((t) => typeName(t.typeId)))].join(", ")}), which this llama.cpp refuses`);
}
