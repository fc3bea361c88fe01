/**
 * How many CPU threads a step uses, found out by steps of the run itself. ggml's threads wait for one another at every
 * operator: with one more than there are free cores, a step takes many times as long (331 to 2,626 ms measured), so
 * counting cores is not enough and the choice is looked at again when steps become slow.
 */
const samplesEach = 2;
/** A step so much slower than the choice was measured with is a sign of a busy neighbour. */
const slowRatio = 1.6;
const slowSteps = 6;
const firstProbe = 120;

export class StepThreads {
  readonly #candidates: readonly number[];
  #samples = new Map<number, number[]>();
  #choice: number;
  #referenceMs = Infinity;
  #nSlow = 0;
  #sinceProbe = 0;
  #probeEvery = firstProbe;

  /** Candidates in rising order; one candidate is used as it is. */
  constructor(candidates: readonly number[]) {
    this.#candidates = candidates;
    this.#choice = candidates[0] ?? 1;
    if (candidates.length > 1) this.#restart();
  }

  /** Threads for the next step. */
  get threads(): number {
    return this.#candidates.find((n) => this.#isOpen(n)) ?? this.#choice;
  }

  get isMeasuring(): boolean {
    return this.#candidates.some((n) => this.#isOpen(n));
  }

  /** Time of the step that ran with `threads`. */
  note(ms: number): void {
    if (this.#candidates.length < 2) return;
    const n = this.threads;
    if (this.#isOpen(n)) {
      this.#samples.get(n)?.push(ms);
      if (!this.isMeasuring) this.#choose();
      return;
    }
    this.#sinceProbe++;
    this.#nSlow = ms > this.#referenceMs * slowRatio ? this.#nSlow + 1 : 0;
    if (this.#nSlow < slowSteps && this.#sinceProbe < this.#probeEvery) return;
    // A probe that changes nothing makes the next one later.
    this.#probeEvery = this.#nSlow >= slowSteps ? firstProbe : this.#probeEvery * 2;
    this.#restart();
  }

  #isOpen(n: number): boolean {
    return (this.#samples.get(n)?.length ?? samplesEach) < samplesEach;
  }

  #restart(): void {
    this.#samples = new Map(this.#candidates.map((n) => [n, []]));
    this.#nSlow = 0;
    this.#sinceProbe = 0;
  }

  /** The best of two: one of them may have met a neighbour. */
  #choose(): void {
    this.#referenceMs = Infinity;
    for (const [n, samples] of this.#samples) {
      const ms = Math.min(...samples);
      if (ms >= this.#referenceMs) continue;
      [this.#referenceMs, this.#choice] = [ms, n];
    }
  }
}

/** 1, 2, 4 ... up to the cores there are. */
export function threadCandidates(nCores: number): number[] {
  const powers = Array.from({ length: Math.floor(Math.log2(nCores)) + 1 }, (_, i) => 2 ** i);
  return powers.includes(nCores) ? powers : [...powers, nCores];
}
