/** A number's peak of the last half second, up to twice that: requests that come in two bunches after a wave are as many as before. */
import { memoryMs } from "./crowd.ts";

export class Lately {
  #peak = 0;
  #before = 0;
  #sinceMs = -Infinity;

  /** Notes `n` and gives the peak. Hot: called before each step. */
  peak(n: number, now: number): number {
    const agoMs = now - this.#sinceMs;
    if (agoMs >= memoryMs) {
      this.#before = agoMs < 2 * memoryMs ? this.#peak : 0;
      this.#peak = 0;
      this.#sinceMs = now;
    }
    this.#peak = Math.max(this.#peak, n);
    return Math.max(this.#peak, this.#before);
  }
}
