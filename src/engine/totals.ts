/** What an engine has done since it started. Plain counters; `snapshot` in engine.ts reads them. */
import { DraftCounts } from "./draft-counts.ts";

export class EngineTotals {
  nSteps = 0;
  nPromptTokens = 0;
  nCachedTokens = 0;
  nOutputTokens = 0;
  nRequests = 0;
  prefillMs = 0;
  decodeMs = 0;
  nDraftNow = 0;
  #nSeqsNow = 0;
  readonly draft: DraftCounts;
  readonly stepsAtK: number[];

  constructor(nMax: number) {
    this.draft = new DraftCounts(nMax);
    this.stepsAtK = Array.from({ length: nMax + 1 }, () => 0);
  }

  /** A decode step of `nSeqs` sequences with `nDraft` drafts each took `ms`. */
  noteDecode(nSeqs: number, nDraft: number, ms: number): void {
    this.nSteps++;
    this.decodeMs += ms;
    this.nDraftNow = nDraft;
    this.#nSeqsNow = nSeqs;
    this.stepsAtK[nDraft] = (this.stepsAtK[nDraft] ?? 0) + 1;
  }

  /** Sequences and rows of the last decode step; empty before the first. */
  get rowShape(): string {
    return this.#nSeqsNow === 0 ? "" : `${this.#nSeqsNow} seq x ${this.nDraftNow + 1} ${this.nDraftNow === 0 ? "row" : "rows"}`;
  }
}
