/**
 * Feeds a draft head the accepted tokens it has not seen: row (token p, position p, target hidden row of p - 1).
 *
 * The head's context is plain KV, so rows of several sequences in any number are one forward. Rejected rows are never fed.
 */
import type { DecodeContext } from "./backend.ts";
import type { Sequence } from "./sequence.ts";

/** Hidden rows still in the target's output of the last decode: those of `seq` start at `row` and at position `position`. */
export interface FreshHidden {
  /** Undefined when hidden rows were not kept. */
  readonly view: Float32Array | undefined;
  readonly row: number;
  readonly position: number;
}

/** Positions of the sequence that the head lacks, the pending token (index nPast) included when `withPending`. */
export function nHeadRowsMissing(seq: Sequence, withPending: boolean): number {
  return seq.nPast + (withPending ? 1 : 0) - seq.headPast;
}

/** Drops rows whose hidden state was lost from the ring: the head keeps a gap there. Returns the number lost. */
export function skipLostRows(head: DecodeContext, seq: Sequence, fresh?: FreshHidden): number {
  const first = seq.headPast;
  if (seq.ring === undefined) return 0;
  // The row of position 0 takes no hidden row, the one after it takes row 0.
  const source = Math.max(0, first - 1);
  const hasFirst = seq.ring.has(source) || (fresh !== undefined && source >= fresh.position);
  if (hasFirst) return 0;
  const next = Math.min(seq.ring.begin + 1, fresh === undefined ? Infinity : fresh.position + 1, seq.nPast);
  return skipTo(head, seq, next);
}

/**
 * The head goes on at `position`: what it missed before stays a gap, and no draft that was not accepted stays behind in it.
 * @returns rows left out
 */
export function skipTo(head: DecodeContext, seq: Sequence, position: number): number {
  const nLost = Math.max(0, position - seq.headPast);
  if (nLost > 0) head.removeFrom(seq.slot, seq.headPast);
  seq.headPast += nLost;
  return nLost;
}

/** Adds the row of position p to the head's batch. The caller has made room and checked that the hidden row is there. */
export function addHeadRow(head: DecodeContext, seq: Sequence, position: number, wantOutput: boolean, fresh?: FreshHidden): number {
  const { rows, nEmbd } = head;
  const i = rows.n++;
  rows.tokens[i] = seq.tokens[position] as number;
  rows.positions[i] = position;
  rows.seqs[i] = seq.slot;
  rows.outputs[i] = wantOutput ? 1 : 0;
  const source = position - 1;
  if (source < 0) rows.hidden.fill(0, i * nEmbd, (i + 1) * nEmbd);
  else if (fresh?.view !== undefined && source >= fresh.position) {
    const from = (fresh.row + source - fresh.position) * nEmbd;
    rows.hidden.set(fresh.view.subarray(from, from + nEmbd), i * nEmbd);
  } else seq.ring?.read(source, rows.hidden, i);
  return i;
}

/**
 * Feeds everything decoded so far, without outputs, in as few decodes as the batch allows.
 * @returns rows fed and rows lost
 */
export function feedHead(head: DecodeContext, seqs: readonly Sequence[], fresh?: ReadonlyMap<Sequence, FreshHidden>): { nFed: number; nLost: number } {
  let nFed = 0;
  let nLost = 0;
  head.rows.n = 0;
  for (const seq of seqs) {
    const freshOfSeq = fresh?.get(seq);
    nLost += skipLostRows(head, seq, freshOfSeq);
    if (seq.headPast >= seq.nPast) continue;
    head.removeFrom(seq.slot, seq.headPast);
    while (seq.headPast < seq.nPast) {
      if (head.rows.n === head.rows.capacity) nFed += flush(head);
      if (!addFreshRows(head, seq, freshOfSeq)) addHeadRow(head, seq, seq.headPast++, false, freshOfSeq);
    }
  }
  nFed += flush(head);
  return { nFed, nLost };
}

/** Rows whose hidden rows lie side by side in the target's output: one copy for all of them. */
function addFreshRows(head: DecodeContext, seq: Sequence, fresh: FreshHidden | undefined): boolean {
  const { rows, nEmbd } = head;
  const first = seq.headPast;
  if (fresh?.view === undefined || first - 1 < fresh.position) return false;
  const n = Math.min(seq.nPast - first, rows.capacity - rows.n);
  const from = (fresh.row + first - 1 - fresh.position) * nEmbd;
  rows.hidden.set(fresh.view.subarray(from, from + n * nEmbd), rows.n * nEmbd);
  for (let i = 0; i < n; i++) {
    const row = rows.n++;
    rows.tokens[row] = seq.tokens[first + i] as number;
    rows.positions[row] = first + i;
    rows.seqs[row] = seq.slot;
    rows.outputs[row] = 0;
  }
  seq.headPast += n;
  return true;
}

function flush(head: DecodeContext): number {
  const { n } = head.rows;
  if (n > 0) head.decode();
  head.rows.n = 0;
  return n;
}
