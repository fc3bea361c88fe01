/**
 * How libllama cuts a batch into forwards (ubatches) on a recurrent or hybrid model, computed without a device.
 * Follows llama-batch.cpp `split_equal` and llama-memory-hybrid.cpp `init_batch` of v0.5.0: one forward takes the same
 * number of rows of each of its sequences; a sequence's last `nKeepTail` rows stay together, for rollback snapshots.
 */
import type { ContextLimits } from "./backend.ts";

export interface SplitOptions {
  readonly nUbatch: number;
  /** Unified KV: any sequences may share a forward; else only consecutive ids. */
  readonly isUnified: boolean;
  /** nRollback + 1, or 0 without rollback. */
  readonly nKeepTail: number;
}

export interface Forward {
  readonly seqs: readonly number[];
  /** Rows of each sequence. */
  readonly nRowsEach: number;
}

export function splitOptionsOf({ nUbatch, nCtxSeq, nCells, nRollback }: ContextLimits): SplitOptions {
  return { nUbatch, isUnified: nCtxSeq === nCells, nKeepTail: Number.isFinite(nRollback) && nRollback > 0 ? nRollback + 1 : 0 };
}

/**
 * One past the last sequence that shares a forward with sequence `first`, when each brings `nRowsEach` rows. hot: once a step.
 *
 * What a decode may have to roll back must be one forward: each forward gathers the recurrent states of its sequences in
 * neighbouring cells, and a state that has to make room moves without its snapshots (llama-memory-recurrent.cpp
 * `find_slot`). Rolling it back afterwards would take another sequence's snapshot, and the call would say true.
 *
 * @param seqs in order of slot
 */
export function endOfForward(seqs: readonly { readonly slot: number }[], first: number, nRowsEach: number, { nUbatch, nCtxSeq, nCells }: ContextLimits): number {
  const limit = Math.min(seqs.length, first + Math.max(1, Math.floor(nUbatch / nRowsEach)));
  if (nCtxSeq === nCells) return limit;
  let end = first + 1;
  while (end < limit && seqs[end]?.slot === (seqs[end - 1]?.slot ?? 0) + 1) end++;
  return end;
}

/** @param rows rows of each sequence in batch order: [sequence id, number of rows], ids distinct, numbers > 0 */
export function predictForwards(rows: readonly (readonly [seq: number, nRows: number])[], options: SplitOptions): Forward[] {
  const { nUbatch, isUnified, nKeepTail } = options;
  const left = rows.map(([, n]) => n);
  const forwards: Forward[] = [];
  for (;;) {
    let taken = participants(rows, left, isUnified, nUbatch);
    if (taken.length === 0) return forwards;
    const shortest = Math.min(...taken.map((i) => left[i] as number));
    let each = Math.min(shortest, Math.max(1, Math.floor(nUbatch / taken.length)));
    if (nKeepTail > 0) {
      const keeps = (i: number): boolean => {
        const rest = (left[i] as number) - each;
        return rest === 0 || rest >= nKeepTail;
      };
      const firstBad = taken.findIndex((i) => !keeps(i));
      if (firstBad === 0) {
        const first = taken[0] as number;
        const whole = left[first] as number;
        each = whole <= nUbatch ? whole : whole - nKeepTail;
        taken = [first];
      } else if (firstBad > 0) taken = taken.slice(0, firstBad);
    }
    for (const i of taken) left[i] = (left[i] as number) - each;
    forwards.push({ seqs: taken.map((i) => (rows[i] as readonly [number, number])[0]), nRowsEach: each });
  }
}

function participants(rows: readonly (readonly [number, number])[], left: readonly number[], isUnified: boolean, nUbatch: number): number[] {
  const taken: number[] = [];
  let lastSeq = -1;
  for (let i = 0; i < rows.length && taken.length <= nUbatch; i++) {
    if ((left[i] as number) === 0) continue;
    const [seq] = rows[i] as readonly [number, number];
    if (!isUnified && taken.length > 0 && seq !== lastSeq + 1) continue;
    taken.push(i);
    lastSeq = seq;
  }
  return taken;
}
