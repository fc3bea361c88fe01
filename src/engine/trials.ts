/**
 * Steps at a draft length that the cost table knows from calibration only.
 *
 * Lengths that run refine the table, the others stay as they were calibrated: one that seems a few percent too dear would
 * never run, so never be measured again. So where its record puts another length near the one in force, that one runs for a
 * moment, a few times for each number of sequences. Groups try at the same time: only steps in which all draft alike tell a cost.
 */

/** A length that seems to lose more than this is not tried. */
export const trialMargin = 0.1;
/** So many steps in use make a length known. */
export const triedUses = 32;
/** Two to build and capture the graph, and enough for the table to follow. */
const nSteps = 16;
/** From one trial to the next. */
const apart = 512;
/** Whole trials of one length by one number of sequences: where other groups never join, nothing is learned. */
const mostTimes = 4;
/** Above any draft length. */
const longest = 64;

export class Trials {
  #length: number | undefined;
  #nSeqs = 0;
  #left = 0;
  /** Steps since the last trial. */
  #since = apart - 64;
  /** Whole trials so far, by number of sequences and length. */
  readonly #times = new Map<number, number>();

  /**
   * Before a step of `nSeqs` sequences: the length on trial; undefined: none is.
   * @param nMax the longest that this step may draft
   * @param othersLength what other groups draft, where they do
   * @param isWorthIt whether a length is worth a trial
   */
  next(nSeqs: number, nMax: number, othersLength: number | undefined, isWorthIt: (k: number) => boolean): number | undefined {
    if (this.#left > 0 && nSeqs === this.#nSeqs && (this.#length as number) <= nMax) {
      if (--this.#left === 0) this.#times.set(this.#key, this.#timesOf(this.#key) + 1);
      return this.#length;
    }
    this.#left = 0;
    const isDue = ++this.#since >= apart;
    for (let k = 1; k <= nMax; k++) {
      if ((isDue || k === othersLength) && this.#timesOf(nSeqs * longest + k) < mostTimes && isWorthIt(k)) return this.#start(nSeqs, k);
    }
    return undefined;
  }

  #start(nSeqs: number, k: number): number {
    this.#since = 0;
    this.#length = k;
    this.#nSeqs = nSeqs;
    this.#left = nSteps - 1;
    return k;
  }

  get #key(): number {
    return this.#nSeqs * longest + (this.#length as number);
  }

  #timesOf(key: number): number {
    return this.#times.get(key) ?? 0;
  }

  cancel(): void {
    this.#left = 0;
  }

  /** Forgets what was tried: another table is in use. */
  clear(): void {
    this.#left = 0;
    this.#times.clear();
  }
}
