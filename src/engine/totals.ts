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
  rowShape = "";
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
    this.rowShape = `${nSeqs} seq x ${nDraft + 1} ${nDraft === 0 ? "row" : "rows"}`;
    this.stepsAtK[nDraft] = (this.stepsAtK[nDraft] ?? 0) + 1;
  }
}
