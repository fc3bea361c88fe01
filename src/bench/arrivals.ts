/**
 * When requests are sent. Closed loop: a fixed number in flight, the next starts when one ends, so a slow server is
 * asked less (its queueing hides). Open loop: times fixed beforehand, and latency counts from the intended time, so that
 * a stall shows in every request that should have been sent during it (coordinated omission, G. Tene).
 */
import { Rng } from "../util/rng.ts";

export interface Clock {
  /** Milliseconds since the start of the run. */
  now(): number;
  sleepUntil(ms: number): Promise<void>;
}

export function realClock(): Clock {
  const startMs = performance.now();
  const now = (): number => performance.now() - startMs;
  return { now, sleepUntil: (ms) => new Promise((resolve) => setTimeout(resolve, Math.max(0, ms - now()))) };
}

/**
 * Intended send times of an open loop, in ms from the start. Gaps are gamma distributed with mean 1/rate and shape
 * `burstiness`: 1 is a Poisson process, below 1 comes in bursts, Infinity is a metronome (as in vLLM's bench).
 */
export function arrivalTimes(n: number, ratePerSec: number, burstiness: number, seed: number): number[] {
  const rng = new Rng(seed);
  const meanMs = 1000 / ratePerSec;
  let atMs = 0;
  return Array.from({ length: n }, (_, i) => {
    if (i > 0) atMs += burstiness === Infinity ? meanMs : (meanMs / burstiness) * gamma(rng, burstiness);
    return atMs;
  });
}

/** Gamma of a shape and scale 1 (Marsaglia and Tsang, 2000). */
function gamma(rng: Rng, shape: number): number {
  if (shape < 1) return gamma(rng, shape + 1) * Math.pow(1 - rng.uniform(), 1 / shape);
  const d = shape - 1 / 3;
  const c = 1 / Math.sqrt(9 * d);
  for (;;) {
    const x = rng.normal();
    const v = (1 + c * x) ** 3;
    if (v > 0 && Math.log(1 - rng.uniform()) < 0.5 * x * x + d - d * v + d * Math.log(v)) return d * v;
  }
}

type Send<T> = (index: number, intendedAtMs?: number) => Promise<T>;

/** Keeps `concurrency` requests in flight until `n` were sent. Results are in the order of their index. */
export async function runClosedLoop<T>(n: number, concurrency: number, send: Send<T>, onDone?: (result: T) => void): Promise<T[]> {
  const results: T[] = [];
  let next = 0;
  const worker = async (): Promise<void> => {
    while (next < n) {
      const index = next++;
      const result = await send(index);
      results[index] = result;
      onDone?.(result);
    }
  };
  await Promise.all(Array.from({ length: Math.min(concurrency, n) }, worker));
  return results;
}

/** Sends request i at `timesMs[i]`, however many are in flight, up to `maxInFlight`; late ones keep their intended time. */
export async function runOpenLoop<T>(timesMs: readonly number[], clock: Clock, send: Send<T>, options: { maxInFlight?: number; onDone?: (result: T) => void } = {}): Promise<T[]> {
  const { maxInFlight = Infinity, onDone } = options;
  const results: T[] = [];
  const inFlight = new Set<Promise<void>>();
  for (const [index, atMs] of timesMs.entries()) {
    await clock.sleepUntil(atMs);
    while (inFlight.size >= maxInFlight) await Promise.race(inFlight);
    const one = send(index, atMs).then((result) => {
      results[index] = result;
      onDone?.(result);
      inFlight.delete(one);
    });
    inFlight.add(one);
  }
  await Promise.all(inFlight);
  return results;
}
