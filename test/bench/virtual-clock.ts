import type { Clock } from "../../src/bench/arrivals.ts";

/** Time that moves only when everybody waits: timers fire in order of their due time, and no real time passes. */
export class VirtualClock implements Clock {
  #nowMs = 0;
  #timers: { dueMs: number; wake: () => void }[] = [];

  now(): number {
    return this.#nowMs;
  }

  sleepUntil(ms: number): Promise<void> {
    return new Promise((wake) => this.#timers.push({ dueMs: Math.max(ms, this.#nowMs), wake }));
  }

  sleep(ms: number): Promise<void> {
    return this.sleepUntil(this.#nowMs + ms);
  }

  /** Runs until `work` settles. */
  async run<T>(work: Promise<T>): Promise<T> {
    let isSettled = false;
    const settle = (): void => void (isSettled = true);
    work.then(settle, settle);
    for (;;) {
      await new Promise((resolve) => setImmediate(resolve));
      if (isSettled) return work;
      this.#timers.sort((a, b) => a.dueMs - b.dueMs);
      const next = this.#timers.shift();
      if (next === undefined) throw new Error("everybody waits and no timer is set");
      this.#nowMs = next.dueMs;
      next.wake();
    }
  }
}
