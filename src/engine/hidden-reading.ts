/**
 * How little a head needs while nothing is drafted: whether a step's hidden rows are read, and what a probe of hopeless
 * drafts is given of them.
 */
import type { DecodeContext } from "./backend.ts";
import type { Gate } from "./gate.ts";
import { skipTo } from "./head-feed.ts";
import type { Sequence } from "./sequence.ts";

/**
 * Looks in a row, one every eight steps, that find no need of hidden rows, after which a GPU does not read them any more: its
 * graph is captured anew then.
 */
const maxUnread = 8;
/**
 * While drafting is far from paying, a probe on a CPU asks this many sequences, and feeds the head this many rows of each: the
 * rest stays a gap in its context. On a GPU a draft costs nearly the same for all of them, so asking all ends the probe sooner.
 */
const hintSeqs = 2;
const hintRows = 4;
/** The gate may look at its choice anew that many steps later. */
const lateSteps = 8;

export class HiddenReading {
  readonly #isAsynchronous: boolean;
  /** Looks in a row for which no hidden rows were needed. */
  #nUnread = 0;

  constructor(isAsynchronous: boolean) {
    this.#isAsynchronous = isAsynchronous;
  }

  /**
   * Whether the next step's hidden rows are read: only where this many sequences could win by drafts that are all
   * accepted. Reading begins at the next look when that becomes so. On a GPU it ends between requests, or after a while,
   * because each change costs a captured graph. On a CPU a change costs nothing while the rows do (the last layer computes
   * all of a prompt's), so there a head that is far from paying has them read before a probe only.
   * @returns undefined: as it is
   */
  next(gate: Gate, nRunning: number, isBetweenRequests: boolean): boolean | undefined {
    const waits = !this.#isAsynchronous && gate.stepsToProbe(nRunning) > hintRows + 1 + lateSteps && gate.isHopeless(nRunning);
    const isRead = !waits && gate.canPayAt(nRunning);
    this.#nUnread = isRead ? 0 : this.#nUnread + 1;
    return isRead || !this.#isAsynchronous || this.#nUnread > maxUnread || isBetweenRequests ? isRead : undefined;
  }
}

/** Some sequences, others at each step, whose next drafts a probe may have for the price of a few rows. */
export function hinted(live: readonly Sequence[], head: DecodeContext, step: number): readonly Sequence[] {
  const asked = live.length <= hintSeqs ? live : Array.from({ length: hintSeqs }, (_, i) => live[(step + i) % live.length] as Sequence);
  for (const seq of asked) skipTo(head, seq, seq.nPast - hintRows);
  return asked;
}
