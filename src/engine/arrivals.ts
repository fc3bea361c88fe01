/** When requests come and how they end: their rate, how many come together, how often the end of one brings the next. Pure but for its memory. */
import { burstGapMs } from "./scheduler.ts";

/** Arrivals are forgotten over this time. */
const memoryMs = 4000;
/** An arrival this soon after a finish is the same client's next request. */
const refillMs = 200;
const refillRate = 0.1;
const lengthRate = 0.1;
/** A client that sends its next request at once has usually done so by now; on a busy machine it takes some times its average, up to the most. */
const soonMs = 15;
const turnFactor = 2.5;
const maxSoonMs = 60;
const turnRate = 0.1;

export class Arrivals {
  lastMs = -Infinity;
  /** Size of late bursts: requests that arrive within a few milliseconds of each other. */
  burstSize = 1;
  #nRecent = 0;
  #nInBurst = 0;
  /** A request has ended since the last arrival. */
  #hasEnded = false;
  /** Ends of requests that no arrival has followed yet, oldest first. */
  readonly #finishedMs: number[] = [];
  /** Share of ended requests that another follows at once: near 1 under a closed loop, near 0 for lone users. */
  #refillShare = 0.5;
  /** Mean time from the end of a request to the one that follows it. */
  #turnMs = 0;
  /** Share of recent requests that ended by their token limit; half before any has ended. */
  lengthShare = 0.5;

  noteArrival(now: number): void {
    this.#nRecent = this.#nRecent * Math.exp((this.lastMs - now) / memoryMs) + 1;
    this.#noteBurst(now);
    this.lastMs = now;
    this.#forgetFinished(now);
    const finishedMs = this.#finishedMs.shift();
    if (finishedMs === undefined) return;
    this.#refillShare += refillRate * (1 - this.#refillShare);
    this.#turnMs += turnRate * (now - finishedMs - this.#turnMs);
  }

  noteFinish(now: number, isByLength = false): void {
    this.#hasEnded = true;
    this.#finishedMs.push(now);
    this.lengthShare += lengthRate * ((isByLength ? 1 : 0) - this.lengthShare);
  }

  /** Mean time between arrivals over the last seconds; long when few came. */
  meanMs(now: number): number {
    return memoryMs / (this.#nRecent * Math.exp((this.lastMs - now) / memoryMs));
  }

  /** How likely the end of a running request brings a new one. */
  refillShare(now: number): number {
    this.#forgetFinished(now);
    return this.#refillShare;
  }

  /** Ended requests whose clients may be about to send the next one: under a closed loop they will. */
  nExpected(now: number): number {
    this.#forgetFinished(now);
    if (this.#refillShare < 0.7) return 0;
    const turnMs = turnFactor * this.#turnMs;
    const withinMs = turnMs > maxSoonMs ? soonMs : Math.max(soonMs, turnMs);
    let n = 0;
    for (const ms of this.#finishedMs) if (now - ms < withinMs) n++;
    return n;
  }

  /** Those who were waited for did not come: they have left. Else the next request of another client would stand for theirs, and its own be waited for, without end. */
  forgetExpected(): void {
    while (this.#finishedMs.shift() !== undefined) this.#refillShare -= refillRate * this.#refillShare;
  }

  /** A larger burst teaches at once; smaller ones, when a gap has ended them, by halves. */
  #noteBurst(now: number): void {
    // One after the other is no burst, however short the requests are.
    const isBurst = now - this.lastMs < burstGapMs && !this.#hasEnded;
    this.#hasEnded = false;
    if (isBurst) {
      this.#nInBurst++;
      this.burstSize = Math.max(this.burstSize, this.#nInBurst);
      return;
    }
    if (this.#nInBurst > 0) this.burstSize = (this.burstSize + this.#nInBurst) / 2;
    this.#nInBurst = 1;
  }

  #forgetFinished(now: number): void {
    while ((this.#finishedMs[0] ?? Infinity) < now - refillMs) {
      this.#finishedMs.shift();
      this.#refillShare -= refillRate * this.#refillShare;
    }
  }
}
