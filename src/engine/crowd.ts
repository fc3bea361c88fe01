/**
 * Whether other groups of slots use the device while this engine decodes.
 *
 * Groups whose requests end together stand idle for some milliseconds, each when it is about to choose a context for its
 * next requests. What they did a moment ago says better what the coming steps will cost.
 */

/** What the groups know of each other. */
export interface CrowdView {
  /** Told by this engine: it has work. */
  isBusy: boolean;
  /** Another one has. */
  readonly isCrowded: boolean;
}

/** Longer than the end of a wave of requests and the reading of the next one's prompts. */
export const memoryMs = 500;

export class Crowd {
  readonly #view: CrowdView | undefined;
  readonly #clock: () => number;
  #lastMs = -Infinity;
  /** Others work, or did a moment ago. */
  isCrowded = false;
  /** The two are the same now: a step's time belongs to the table in use. */
  isCertain = true;

  constructor(view: CrowdView | undefined, clock: () => number) {
    this.#view = view;
    this.#clock = clock;
  }

  /** Before a step. */
  look(isBusy: boolean): void {
    const view = this.#view;
    if (view === undefined) return;
    view.isBusy = isBusy;
    const now = this.#clock();
    const isNow = view.isCrowded;
    if (isNow) this.#lastMs = now;
    this.isCrowded = now - this.#lastMs < memoryMs;
    this.isCertain = this.isCrowded === isNow;
  }
}
