/**
 * Calls `onHang` when no sign of life came for `limitMs`. Time in which this process itself stood still (a suspended
 * laptop, a long garbage collection) does not count: the signs of that time wait unread in the pipe.
 */
export class HangWatch {
  readonly #limitMs: number;
  readonly #onHang: (silentMs: number) => void;
  readonly #intervalMs: number;
  readonly #timer: NodeJS.Timeout | undefined;
  #lastSignMs = performance.now();
  #lastTurnMs = performance.now();

  /** `limitMs` 0: never. */
  constructor(limitMs: number, onHang: (silentMs: number) => void) {
    this.#limitMs = limitMs;
    this.#onHang = onHang;
    this.#intervalMs = Math.max(20, limitMs / 4);
    if (limitMs > 0) this.#timer = setInterval(() => this.turn(performance.now()), this.#intervalMs).unref();
  }

  sign(nowMs = performance.now()): void {
    this.#lastSignMs = nowMs;
  }

  turn(nowMs: number): void {
    if (nowMs - this.#lastTurnMs > 2 * this.#intervalMs) this.#lastSignMs = nowMs;
    this.#lastTurnMs = nowMs;
    if (nowMs - this.#lastSignMs >= this.#limitMs) this.#onHang(nowMs - this.#lastSignMs);
  }

  stop(): void {
    clearInterval(this.#timer);
  }
}
