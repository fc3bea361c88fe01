/**
 * A tensor as a sequence of spans of other tensors, with at most two changes on the way: the columns of a row in
 * another order, and a function of each element. Reordering rows, stacking experts and splitting a fused tensor are
 * all just other spans, so nothing larger than a block of rows is ever in memory.
 */
import { readPieces } from "../gguf/writer.ts";
import { decodeFloats, encodeFloats, floatBytes, floatType, type FloatType } from "./elements.ts";
import type { HfTensor } from "./safetensors.ts";

/** A run of elements of a tensor, in its own order. */
export interface Span {
  readonly tensor: HfTensor;
  readonly start: number;
  readonly length: number;
}

export interface ElementStream {
  readonly spans: readonly Span[];
  /** Column `i` of each row of `columns.length` elements is taken from `columns[i]`; spans then hold whole rows. */
  readonly columns?: Uint32Array | undefined;
  readonly map?: ((x: number) => number) | undefined;
}

/** Elements that are converted at a time. */
const blockElements = 1 << 20;

export const wholeTensor = (tensor: HfTensor): Span => ({ tensor, start: 0, length: tensor.shape.reduce((n, d) => n * d, 1) });

/** The bytes of the stream in another type. One buffer is handed out again and again. */
export async function* streamElements({ spans, columns, map }: ElementStream, to: FloatType): AsyncGenerator<Uint8Array> {
  const rowLength = columns?.length ?? 1;
  const step = Math.max(1, Math.floor(blockElements / rowLength)) * rowLength;
  let floats = new Float32Array(0);
  let reordered = new Float32Array(0);
  let out = new Uint8Array(0);
  for (const { tensor, start, length } of spans) {
    const from = floatType(tensor.dtype, tensor.name);
    const width = floatBytes[from];
    for await (const piece of readPieces(tensor.file, tensor.offset + start * width, length * width, step * width)) {
      if (from === to && columns === undefined && map === undefined) {
        yield piece;
        continue;
      }
      const n = piece.length / width;
      if (floats.length < n) [floats, reordered, out] = [new Float32Array(n), new Float32Array(columns === undefined ? 0 : n), new Uint8Array(n * floatBytes[to])];
      let values = floats.subarray(0, n);
      decodeFloats(piece, from, values);
      if (columns !== undefined) {
        reorderColumns(values, columns, reordered);
        values = reordered.subarray(0, n);
      }
      if (map !== undefined) for (let i = 0; i < n; i++) values[i] = map(values[i] as number);
      encodeFloats(values, to, out);
      yield out.subarray(0, n * floatBytes[to]);
    }
  }
}

function reorderColumns(values: Float32Array, columns: Uint32Array, out: Float32Array): void {
  for (let row = 0; row < values.length; row += columns.length) for (let i = 0; i < columns.length; i++) out[row + i] = values[row + (columns[i] as number)] as number;
}
