/**
 * One batch of the trainer: N rows packed from document windows. Row i is token t of its document; it goes in with the
 * target's hidden row of t - 1, and at depth j the token of t + j is fed and the token of t + j + 1 predicted. Rows of
 * a document are consecutive, so every per-depth input is the same array read j places further on.
 */
import type { HiddenRows } from "./dataset.ts";

export interface Batch {
  readonly nRows: number;
  readonly nDepths: number;
  /** F16 [N, d]: hidden row of the token before; zero for the first token of a document. */
  readonly hidden: Uint16Array;
  /** F16 [N + K - 1, d]: the target's hidden row of the token itself, from which the teacher's distribution comes. */
  readonly teacher: Uint16Array;
  /** [N + K - 1] */
  readonly tokens: Int32Array;
  /** [N + K - 1]: the token after each. */
  readonly labels: Int32Array;
  /** [N + K - 1] */
  readonly positions: Int32Array;
  /** [N, N]: 0 where a row may attend, -Infinity elsewhere. */
  readonly mask: Float32Array;
  /** [K, N]: row weights; each depth's sum is in `weightSums`. */
  readonly weights: Float32Array;
  readonly weightSums: Float64Array;
}

/** Rows `start` to `start + length` of a document, and the weight of the rows that predict a prompt token. */
export interface Window {
  readonly document: HiddenRows;
  readonly start: number;
  readonly length: number;
}

export function createBatch(nRows: number, nDepths: number, nEmbd: number): Batch {
  return {
    nRows,
    nDepths,
    hidden: new Uint16Array(nRows * nEmbd),
    teacher: new Uint16Array((nRows + nDepths - 1) * nEmbd),
    tokens: new Int32Array(nRows + nDepths - 1),
    labels: new Int32Array(nRows + nDepths - 1),
    positions: new Int32Array(nRows + nDepths - 1),
    mask: new Float32Array(nRows * nRows),
    weights: new Float32Array(nDepths * nRows),
    weightSums: new Float64Array(nDepths),
  };
}

/**
 * Packs windows until the batch is full; `next` gives at most the asked number of rows. The last window may run past
 * the batch by K - 1 rows of inputs, never of losses.
 */
export function fillBatch(batch: Batch, next: (maxRows: number) => Window, options: { promptWeight: number }): void {
  batch.mask.fill(-Infinity);
  batch.weights.fill(0);
  batch.weightSums.fill(0);
  let at = 0;
  while (at < batch.nRows) {
    const window = next(batch.nRows - at);
    placeWindow(batch, window, at, options.promptWeight);
    at += window.length;
  }
}

function placeWindow(batch: Batch, { document, start, length }: Window, at: number, promptWeight: number): void {
  const { nRows, nDepths } = batch;
  const { tokens, nPrompt, nEmbd } = document;
  // The next window begins right behind this one; only the last has inputs past its end. A document has one hidden row
  // less than tokens: its last token was never decoded.
  const isLast = at + length === nRows;
  const room = isLast ? Math.min(length + nDepths - 1, tokens.length - 1 - start) : length;
  batch.tokens.set(tokens.subarray(start, start + room), at);
  batch.labels.set(tokens.subarray(start + 1, start + room + 1), at);
  for (let i = 0; i < room; i++) batch.positions[at + i] = start + i;
  batch.teacher.set(document.rows(start, room), at * nEmbd);
  if (start === 0) {
    batch.hidden.fill(0, at * nEmbd, (at + 1) * nEmbd);
    if (length > 1) batch.hidden.set(document.rows(0, length - 1), (at + 1) * nEmbd);
  } else batch.hidden.set(document.rows(start - 1, length), at * nEmbd);
  for (let i = 0; i < length; i++) {
    const row = at + i;
    batch.mask.fill(0, row * nRows + at, row * nRows + row + 1);
    for (let j = 0; j < nDepths; j++) {
      const t = start + i + j;
      // The first row has no hidden row before it: the runtime feeds zeros and no draft starts there.
      if (start + i === 0 || i + j >= room) continue;
      const weight = t + 1 < nPrompt ? promptWeight : 1;
      batch.weights[j * nRows + row] = weight;
      batch.weightSums[j] = (batch.weightSums[j] as number) + weight;
    }
  }
}
