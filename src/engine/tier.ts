/**
 * Which of the target's two contexts decodes: the plain one where drafting does not pay, the rolling one where it does.
 *
 * Between requests a change is free. While sequences run it copies their states, so it waits until what the other context
 * would have saved by now is as much as the copies cost: the rule of the ski rental, never worse than twice the best. A
 * clear gain over what the requests' limits let expect counts as well: one request of a burst that was read before the
 * others came must not hold them all.
 * Without a pair this is a constant.
 */
import { minPromise } from "./gate.ts";
import type { TargetPair } from "./target-pair.ts";

const ratioRate = 0.05;
/** Snapshots always cost something; a table measured on a busy machine may seem to say otherwise. */
const minRatio = 1.03;
const maxRatio = 1.5;
/** What lies ahead counts from this gain on: one within the noise of probes must not copy states again and again, however long the requests. */
const minAheadGain = 0.02;

export class Tier {
  readonly #pair: TargetPair | undefined;
  readonly #clock: () => number;
  /** Copying one state; a guess until the first was copied. */
  msPerMove = 5;
  /** What the other context would have saved since the last change. */
  #regretMs = 0;
  /** What a step without drafts costs in the rolling context, over the plain one. */
  #rollingRatio = 1.05;

  constructor(pair: TargetPair | undefined, clock: () => number) {
    this.#pair = pair;
    this.#clock = clock;
  }

  /** True while decodes cannot roll back, so that nothing can be drafted. */
  get isPlain(): boolean {
    return this.#pair?.isPlain ?? false;
  }

  get hasPlain(): boolean {
    return this.#pair !== undefined;
  }

  get rollingRatio(): number {
    return this.#pair === undefined ? 1 : this.#rollingRatio;
  }

  /** What a step without drafts costs here, over the plain context. */
  get zeroFactor(): number {
    return this.isPlain ? 1 : this.rollingRatio;
  }

  /** A step without drafts in the rolling context took `ratio` of what it takes in the plain one. */
  noteRolling(ratio: number): void {
    this.#rollingRatio += ratioRate * (Math.min(maxRatio, Math.max(minRatio, ratio)) - this.#rollingRatio);
  }

  /** Learns what a move costs by moving these slots there and back; for calibration. */
  measureMove(slots: readonly number[]): void {
    const pair = this.#pair;
    if (pair === undefined || slots.length === 0) return;
    const startMs = this.#clock();
    for (let i = 0; i < 2; i++) {
      pair.use(!pair.isPlain);
      pair.moveToActive(slots);
    }
    this.msPerMove = (this.#clock() - startMs) / (2 * slots.length);
  }

  /**
   * Before a step. `plainGain`: by what share the plain context would be faster for what runs now; negative when drafting is.
   * `slots` are those of running requests; all move together, or none. `aheadMs`: decode time that is expected of them still.
   * `promise`: what drafting must win by to be gone over to, and may fall short of to be stayed with.
   */
  choose(plainGain: number, lastStepMs: number, slots: readonly number[], aheadMs = 0, promise = minPromise): void {
    const pair = this.#pair;
    if (pair === undefined || plainGain === 0) return;
    const gain = pair.isPlain ? -plainGain - promise : plainGain;
    this.#regretMs = Math.max(0, this.#regretMs + gain * lastStepMs);
    if (gain < (pair.isPlain ? 0 : -promise)) return;
    let nHeld = 0;
    for (const slot of slots) if (pair.lastPosition(slot) >= 0) nHeld++;
    if (gain < 0 && nHeld > 0) return;
    const aheadGainMs = gain > minAheadGain ? gain * aheadMs : 0;
    if (nHeld > 0 && nHeld * this.msPerMove > this.#regretMs + aheadGainMs) return;
    this.#regretMs = 0;
    pair.use(!pair.isPlain);
    if (nHeld === 0) return;
    const startMs = this.#clock();
    pair.moveToActive(slots);
    this.msPerMove = (this.#clock() - startMs) / nHeld;
  }
}
