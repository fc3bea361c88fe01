/** Summaries of samples. All functions are pure; none changes its input. */
import { Rng } from "./rng.ts";

export function mean(samples: readonly number[]): number {
  return samples.length === 0 ? NaN : samples.reduce((sum, x) => sum + x, 0) / samples.length;
}

export function standardDeviation(samples: readonly number[]): number {
  if (samples.length < 2) return NaN;
  const m = mean(samples);
  return Math.sqrt(samples.reduce((sum, x) => sum + (x - m) ** 2, 0) / (samples.length - 1));
}

/** Linear interpolation between order statistics (the default of NumPy and R type 7). `q` in [0, 1]. */
export function quantile(samples: readonly number[], q: number): number {
  if (samples.length === 0) return NaN;
  const sorted = samples.toSorted((a, b) => a - b);
  const at = (sorted.length - 1) * q;
  const low = sorted[Math.floor(at)] as number;
  const high = sorted[Math.ceil(at)] as number;
  return low + (high - low) * (at - Math.floor(at));
}

export function median(samples: readonly number[]): number {
  return quantile(samples, 0.5);
}

export interface Interval {
  readonly low: number;
  readonly high: number;
}

/** Percentile bootstrap (Efron, 1979) of a statistic; seeded, so a report rebuilds to the same bytes. */
export function bootstrapInterval(
  samples: readonly number[],
  statistic: (resample: readonly number[]) => number = mean,
  { confidence = 0.95, nResamples = 2000, seed = 1 } = {},
): Interval {
  if (samples.length < 2) return { low: NaN, high: NaN };
  const rng = new Rng(seed);
  const values: number[] = [];
  const resample = Array.from(samples);
  for (let r = 0; r < nResamples; r++) {
    for (let i = 0; i < samples.length; i++) resample[i] = samples[rng.below(samples.length)] as number;
    values.push(statistic(resample));
  }
  const tail = (1 - confidence) / 2;
  return { low: quantile(values, tail), high: quantile(values, 1 - tail) };
}

/** Wilson score interval of a proportion (Wilson, 1927): right also at 0 and at n of n. */
export function wilsonInterval(successes: number, trials: number, z = 1.959964): Interval {
  if (trials === 0) return { low: 0, high: 1 };
  const p = successes / trials;
  const z2 = (z * z) / trials;
  const centre = (p + z2 / 2) / (1 + z2);
  const half = (z / (1 + z2)) * Math.sqrt((p * (1 - p)) / trials + z2 / (4 * trials));
  return { low: successes === 0 ? 0 : centre - half, high: successes === trials ? 1 : centre + half };
}
