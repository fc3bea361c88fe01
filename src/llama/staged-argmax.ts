/**
 * The place of the greatest number of each row in two stages: of each part of a row, then among these. ggml-cuda gives a row
 * to one block: 45 us for 248,320 numbers on an H200, of one row or of 24, and in 64 parts, with all that the second stage
 * takes, 14 and 26.
 *
 * A part without a number that can be compared (a broken model's logits are NaN) has no place, -1 with CUDA, and its value is
 * read from before it; a row of such parts says as little as in one stage.
 *
 * ggml adds no integers, so a place is put together of floats, which hold each one below 2^24.
 */
import { knownType } from "../gguf/types.ts";
import type { GraphOps } from "./graph-surgery.ts";
import type { Pointer } from "./structs.ts";

/** What was measured. */
export const manyParts = 64;
/** Below that one stage is as fast. */
const leastNumbers = 1 << 16;
const mostNumbers = 1 << 24;
const [f32, i32] = [knownType("F32").id, knownType("I32").id];

/** Whether rows of so many numbers are cut into so many parts. */
export const isStaged = (n: number, nParts: number): boolean => nParts > 1 && n >= leastNumbers && n <= mostNumbers && n % nParts === 0;

/**
 * @param logits [n, nRows], in order
 * @param n a multiple of `nParts`, at most 2^24
 * @returns [nRows] of I32
 */
export function stagedArgmax({ ggml }: GraphOps, context: Pointer, logits: Pointer, n: number, nRows: number, nParts: number): Pointer {
  const [length, nAll] = [n / nParts, nParts * nRows];
  const places = ggml.ggml_argmax(context, ggml.ggml_reshape_2d(context, logits, length, nAll));
  const greatest = ggml.ggml_get_rows(context, ggml.ggml_reshape_3d(context, logits, 1, length, nAll), ggml.ggml_reshape_2d(context, places, 1, nAll));
  const parts = ggml.ggml_argmax(context, ggml.ggml_reshape_2d(context, greatest, nParts, nRows));
  const within = ggml.ggml_get_rows(context, ggml.ggml_reshape_3d(context, places, 1, nParts, nRows), ggml.ggml_reshape_2d(context, parts, 1, nRows));
  const before = ggml.ggml_scale(context, ggml.ggml_cast(context, parts, f32), length);
  return ggml.ggml_cast(context, ggml.ggml_add(context, ggml.ggml_cast(context, ggml.ggml_reshape_1d(context, within, nRows), f32), before), i32);
}
