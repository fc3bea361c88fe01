/**
 * What other groups of slots do on the device while this engine decodes.
 *
 * Groups whose requests end together stand idle for some milliseconds, each when it is about to choose a context for its
 * next requests. What they did a moment ago says better what the coming steps will cost.
 *
 * A step that drafts is cheap beside groups that do not, at their expense: a group that compares such steps with its own
 * undrafted ones drafts, whoever follows finds the same, and together they are slower than before. So only steps in which
 * all groups do the same tell what a draft length costs, and nobody drafts alone near a tie, where that would never be learned.
 * Whoever rests beside others that draft need not be sure to join them: what it would be careful about is done already.
 */

import { inFlux } from "../util/barrier.ts";

/** What the groups know of each other. */
export interface CrowdView {
  /** Told by this engine: 0 while it has no work, else one more than the draft length of its steps, and `inFlux` more where that says little. */
  work: number;
  /** The highest of the others' numbers, without `inFlux`; 0 where none of them works. */
  readonly most: number;
  /** All others that have work draft as many tokens as this one, and none of them reads prompts or has just done so. */
  readonly isAlike: boolean;
}

/** Longer than the end of a wave of requests and the reading of the next one's prompts. */
export const memoryMs = 500;

/**
 * Decodes after prompts whose graphs are built and captured, while the device is idle on this group's side: steps of others
 * beside them, or beside the prompts, are up to a third cheaper or twice as dear as they are later.
 */
const settlingSteps = 3;
/** Groups that never do the same must learn from what they have. */
const mostUnlikeSteps = 1000;

export class Crowd {
  readonly #view: CrowdView | undefined;
  readonly #clock: () => number;
  #lastMs = -Infinity;
  #work = 1;
  /** Decodes since prompts were read, or the length changed. */
  #nSettled = settlingSteps;
  #lastMost = 0;
  /** At the step's start others did what the table in use was measured in. */
  #fits = true;
  /** Steps in a row in which others drafted another length. */
  #nUnlike = 0;
  /** Others work, or did a moment ago. */
  isCrowded = false;
  /** Others work, and drafted nothing when they last did. */
  othersRest = false;
  /** Others work, and one drafted when it last did. */
  othersDraft = false;
  /** What the one of them that drafts most last drafted; undefined where none drafts. */
  get othersLength(): number | undefined {
    return this.othersDraft ? this.#lastMost - 1 : undefined;
  }

  constructor(view: CrowdView | undefined, clock: () => number) {
    this.#view = view;
    this.#clock = clock;
  }

  /** Before a step. */
  look(isBusy: boolean): void {
    const view = this.#view;
    if (view === undefined) return;
    view.work = isBusy ? this.#shown : 0;
    const now = this.#clock();
    const { most } = view;
    const isNow = most > 0;
    if (isNow) {
      this.#lastMs = now;
      this.#lastMost = most;
    }
    this.isCrowded = now - this.#lastMs < memoryMs;
    this.othersRest = this.isCrowded && this.#lastMost === 1;
    this.othersDraft = this.isCrowded && this.#lastMost > 1;
    this.#fits = this.isCrowded === isNow;
  }

  /** The step reads prompts. */
  reads(): void {
    this.#nSettled = 0;
    if (this.#view !== undefined) this.#view.work = this.#shown;
  }

  get #shown(): number {
    return this.#work + (this.#nSettled < settlingSteps ? inFlux : 0);
  }

  /** The step decodes, with drafts of length k. */
  decodes(k: number): void {
    const view = this.#view;
    if (view === undefined) return;
    this.#nSettled = this.#work === k + 1 ? this.#nSettled + 1 : 0;
    this.#work = k + 1;
    view.work = this.#shown;
    this.#nUnlike = view.isAlike ? 0 : this.#nUnlike + 1;
  }

  /** After a step: its time belongs to its draft length and to the table in use. */
  get isCertain(): boolean {
    const view = this.#view;
    if (view === undefined) return true;
    if (!this.#fits || (view.most > 0) !== this.isCrowded) return false;
    return this.#nUnlike > mostUnlikeSteps || (this.#nUnlike === 0 && view.isAlike);
  }
}
