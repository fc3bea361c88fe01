import type { DecodeContext } from "../backend.ts";
import type { FreshHidden } from "../head-feed.ts";
import type { SavedHead } from "../prompt-cache.ts";
import type { Sequence } from "../sequence.ts";

/** Proposes tokens. It owns the state of its heads; it never touches the target. */
export interface Drafter {
  /**
   * Fills `draft[0..result)` of every sequence. All get the same number: a target batch is one forward only then.
   * @param nDraft wanted length, at least 1
   * @param launched called when the first decode is launched: time to send what the last step produced
   * @returns the length drafted, at most nDraft; 0 when drafting was given up
   */
  draft(seqs: readonly Sequence[], nDraft: number, launched?: () => void): number;
  /** After verify and rollback of a step that drafted: the accepted rows are in the sequences' rings. */
  afterVerify(seqs: readonly Sequence[]): void;
  /** Keeps the head in step after a prefill chunk; `isDrafting` false means as lazily as possible. */
  afterPrefill(seqs: readonly Sequence[], fresh: ReadonlyMap<Sequence, FreshHidden>, isDrafting: boolean): void;
  /** A step without draft: a chance to feed the head in the background. */
  afterPlain(seqs: readonly Sequence[], stepMs: number): void;
  /** The request of this slot ended. */
  release(seq: Sequence): void;
  /** What the heads hold of a slot, to go on from later; `restore` puts it into an empty slot, false when that fails. */
  save(seq: Sequence): readonly SavedHead[];
  restore(seq: Sequence, saved: readonly SavedHead[]): boolean;
  /** Time and calls since the last `takeTimes`, in the reports' words: p process (catch-up decodes of their own), g generate. */
  readonly times: DraftTimes;
}

/** State of positions 0..past-1 of a head; nothing when it has none. */
export function saveHeadState(head: DecodeContext, slot: number, past: number): Uint8Array {
  if (past === 0) return new Uint8Array();
  head.removeFrom(slot, past);
  return head.saveSequence(slot);
}

export function restoreHeadState(head: DecodeContext, slot: number, saved: SavedHead): boolean {
  return saved.past === 0 || head.restoreSequence(slot, saved.state);
}

export interface DraftTimes {
  processMs: number;
  nProcessCalls: number;
  generateMs: number;
  nGenerateCalls: number;
  nRowsLost: number;
}

export const createDraftTimes = (): DraftTimes => ({ processMs: 0, nProcessCalls: 0, generateMs: 0, nGenerateCalls: 0, nRowsLost: 0 });
