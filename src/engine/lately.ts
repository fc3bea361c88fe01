/** A number's peak of the last half second: requests that arrive in two bunches after a wave has ended are as many as before. */
import { memoryMs } from "./crowd.ts";

export class Lately {
  #peak = 0;
  #atMs = -Infinity;

  /** Notes `n` and gives the peak. Hot: called before each step. */
  peak(n: number, now: number): number {
    if (n >= this.#peak || now - this.#atMs >= memoryMs) {
      this.#peak = n;
      this.#atMs = now;
    }
    return this.#peak;
  }
}
