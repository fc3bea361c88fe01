/**
 * Drafts that are compared and never verified: what plain decoding writes anyway says how many would have been accepted.
 * So the gate can probe at length 0 without a rollback, for the price of the head's own time.
 */
import type { GenerateRequest } from "./request.ts";
import type { Sequence } from "./sequence.ts";

interface Draft {
  readonly request: GenerateRequest;
  /** Index in the sequence's tokens of the first draft token. */
  readonly from: number;
  readonly tokens: Int32Array;
}

/** Steps between two drafts that are no probe: they keep the estimate awake, and each costs the head's time. */
const interval = 64;

export class ShadowDrafts {
  #nWaited = 0;
  readonly #open = new Map<Sequence, Draft>();

  get isOpen(): boolean {
    return this.#open.size > 0;
  }

  /** Whether to draft now: at once for a probe; now and then while drafting seems to pay but the context cannot. */
  isDue(isProbe: boolean): boolean {
    return !this.isOpen && (isProbe || ++this.#nWaited % interval === 0);
  }

  /** Remembers the first `nDraft` tokens of each sequence's draft, made before its pending token is decoded. */
  start(seqs: readonly Sequence[], nDraft: number): void {
    for (const seq of seqs) {
      const n = Math.min(nDraft, seq.nMax);
      if (n > 0) this.#open.set(seq, { request: seq.request as GenerateRequest, from: seq.nPast + 1, tokens: seq.draft.slice(0, n) });
    }
  }

  /** After a step: tells what is known by now. A request that ended first tells nothing. */
  settle(note: (nDraft: number, nAccepted: number) => void): void {
    for (const [seq, { request, from, tokens }] of this.#open) {
      if (seq.request !== request) {
        this.#open.delete(seq);
        continue;
      }
      let nRight = 0;
      while (nRight < tokens.length && from + nRight < seq.nTokens && seq.tokens[from + nRight] === tokens[nRight]) nRight++;
      const isDecided = nRight === tokens.length || from + nRight < seq.nTokens;
      if (!isDecided) continue;
      note(tokens.length, nRight);
      this.#open.delete(seq);
    }
  }

  clear(): void {
    this.#open.clear();
  }
}
