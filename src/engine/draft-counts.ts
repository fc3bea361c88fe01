/** Counts of drafted and accepted tokens, of a request or a server. The definitions are those of `DraftStats`. */
import type { DraftStats } from "./request.ts";

export class DraftCounts {
  nDrafts = 0;
  nDrafted = 0;
  nAccepted = 0;
  readonly acceptedAt: number[];
  readonly reachedAt: number[];

  constructor(nMax: number) {
    this.acceptedAt = Array.from({ length: nMax }, () => 0);
    this.reachedAt = Array.from({ length: nMax }, () => 0);
  }

  /** One verify with `nDraft` proposed tokens of which the first `nAccepted` were accepted. Hot: allocates nothing. */
  add(nDraft: number, nAccepted: number): void {
    if (nDraft === 0) return;
    this.nDrafts++;
    this.nDrafted += nDraft;
    this.nAccepted += nAccepted;
    for (let i = 0; i < nDraft; i++) {
      if (i > nAccepted) break;
      this.reachedAt[i] = (this.reachedAt[i] as number) + 1;
      if (i < nAccepted) this.acceptedAt[i] = (this.acceptedAt[i] as number) + 1;
    }
  }

  snapshot(): DraftStats {
    return { nDrafts: this.nDrafts, nDrafted: this.nDrafted, nAccepted: this.nAccepted, acceptedAt: [...this.acceptedAt], reachedAt: [...this.reachedAt] };
  }
}

/** 1 + accepted / drafts: tokens a verify step yields, the bonus or correction token included. */
export function meanAcceptanceLength(stats: DraftStats): number {
  return stats.nDrafts === 0 ? NaN : 1 + stats.nAccepted / stats.nDrafts;
}
