/**
 * How little a head needs while nothing is drafted: whether a step's hidden rows are read, and what a probe of hopeless
 * drafts is given of them.
 */
import type { DecodeContext } from "./backend.ts";
import type { Gate } from "./gate.ts";
import { skipTo } from "./head-feed.ts";
import type { Sequence } from "./sequence.ts";

/** What a probe asks while drafting promises little: how many sequences, and how many rows of each it feeds the head; the rest stays a gap. */
interface Hint {
  readonly nSeqs: number;
  readonly nRows: number;
}
const hintOnCpu: Hint = { nSeqs: 2, nRows: 4 };
/** A draft costs a GPU nearly the same for all sequences, and a probe of all ends sooner. */
const hintOnGpu: Hint = { nSeqs: Infinity, nRows: 24 };
/** The gate may look at its choice anew that many steps later. */
const lateSteps = 8;
/** A change costs a GPU two captured graphs, so reading stops only where it would go on for this many times as long as a probe needs. */
const worthStopping = 4;
/** Looks in a row that find no need of hidden rows, after which a GPU does not read them any more. */
const maxUnread = 3;

export class HiddenReading {
  readonly #isAsynchronous: boolean;
  readonly #hint: Hint;
  #isRead = true;
  /** Looks in a row for which no hidden rows were needed. */
  #nUnread = 0;

  constructor(isAsynchronous: boolean) {
    this.#isAsynchronous = isAsynchronous;
    this.#hint = isAsynchronous ? hintOnGpu : hintOnCpu;
  }

  /**
   * Whether the next step's hidden rows are read: only where this many sequences could win by drafts that are all
   * accepted, and where that promises little, before a probe only. Reading begins at the next look when it is needed. On a
   * GPU it ends between requests, or after a while, because each change costs a captured graph; reading costs a GPU 1.5% of
   * a step of sixteen sequences, and a CPU the last layer's work for all rows of a prompt.
   * @returns undefined: as it is
   */
  next(gate: Gate, nRunning: number, isBetweenRequests: boolean): boolean | undefined {
    const leadSteps = (this.#isRead && this.#isAsynchronous ? worthStopping : 1) * (this.#hint.nRows + 1 + lateSteps);
    const waits = gate.stepsToProbe(nRunning) > leadSteps && gate.promisesLittle(nRunning);
    const isNeeded = !waits && gate.canPayAt(nRunning);
    this.#nUnread = isNeeded ? 0 : this.#nUnread + 1;
    if (!isNeeded && this.#isAsynchronous && this.#nUnread <= maxUnread && !isBetweenRequests) return undefined;
    this.#isRead = isNeeded;
    return isNeeded;
  }

  /** Sequences, some others at each step where not all, whose next drafts a probe may have for the price of a few rows. */
  hinted(live: readonly Sequence[], head: DecodeContext, step: number): readonly Sequence[] {
    const { nSeqs, nRows } = this.#hint;
    const asked = live.length <= nSeqs ? live : Array.from({ length: nSeqs }, (_, i) => live[(step + i) % live.length] as Sequence);
    for (const seq of asked) skipTo(head, seq, seq.nPast - nRows);
    return asked;
  }
}
