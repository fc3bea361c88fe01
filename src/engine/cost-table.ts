/**
 * Time of a step by number of sequences and draft length, measured: the gate's only knowledge of the hardware.
 *
 * Cells are filled by a short calibration (`calibrate.ts`), kept in a file per model, device and library version, and
 * refined by every step that runs. Between measured numbers of sequences time is interpolated linearly, beyond the last
 * one extrapolated by its slope (MoE decode time is close to linear there: each row brings new experts).
 */
export interface CostTableData {
  readonly nSeqs: readonly number[];
  /** stepMs[i][k]: whole step of nSeqs[i] sequences with draft length k, in ms. */
  readonly stepMs: readonly (readonly number[])[];
  /** One-time price of a step whose shape differs from the last one's, in ms: graphs are rebuilt, and captured in the step after. */
  readonly changeMs: number;
  /** Moving one sequence's state between the two contexts of the target; 0 where there is one. */
  readonly moveMs: number;
  /** Prefill of one forward: baseMs + rowMs * rows, fitted. */
  readonly prefillBaseMs: number;
  readonly prefillRowMs: number;
}

/**
 * A further draft token costs at least this much of a step. A table measured on a busy machine may say otherwise, and a
 * length that seems dearer than a longer one would never be tried, so never be measured again: it is read as cheaper. What
 * was measured of it stays, since the longer one may have been cheap for a moment only, while another group stood still.
 */
const minGrowth = 1.06;

export class CostTable {
  readonly nSeqs: readonly number[];
  /** As measured. */
  readonly #measuredMs: Float64Array[];
  /** As read: no length dearer than a longer one. */
  readonly #stepMs: Float64Array[];
  /** Steps in use that each was refined by. */
  readonly #nUses: Float64Array[];
  readonly changeMs: number;
  readonly moveMs: number;
  readonly prefillBaseMs: number;
  readonly prefillRowMs: number;
  readonly #rate: number;

  /** @param memory where the times are kept, `3 * nSeqs * (nMax + 1)` numbers or more: shared by threads, all learn what each measures; an update that two make at once may be lost */
  constructor(data: CostTableData, { learningRate = 0.05, memory }: { readonly learningRate?: number; readonly memory?: Float64Array } = {}) {
    this.nSeqs = data.nSeqs;
    const width = data.stepMs[0]?.length ?? 0;
    const size = data.stepMs.length * width;
    const numbers = memory ?? new Float64Array(3 * size);
    if (numbers.length < 3 * size) throw new RangeError(`a cost table of ${data.stepMs.length} by ${width} needs ${3 * size} numbers of memory, not ${numbers.length}`);
    const rows = (offset: number): Float64Array[] =>
      data.stepMs.map((row, i) => {
        const at = numbers.subarray(offset + i * width, offset + (i + 1) * width);
        at.set(row);
        return at;
      });
    this.#measuredMs = rows(0);
    this.#stepMs = rows(size);
    this.#nUses = rows(2 * size);
    for (const row of this.#nUses) row.fill(0);
    this.changeMs = data.changeMs;
    this.moveMs = data.moveMs;
    this.prefillBaseMs = data.prefillBaseMs;
    this.prefillRowMs = data.prefillRowMs;
    this.#rate = learningRate;
    for (let i = this.nSeqs.length - 2; i >= 0; i--) for (let k = 0; k <= this.nMax; k++) this.#lowerTo(i, k, (this.#measuredMs[i + 1] as Float64Array)[k] as number);
    for (let i = 0; i < this.nSeqs.length; i++) this.#readAnew(i);
  }

  get nMax(): number {
    return (this.#measuredMs[0]?.length ?? 1) - 1;
  }

  /** Expected milliseconds of a step of n sequences with draft length k. Hot: allocates nothing. */
  stepMs(n: number, k: number): number {
    return this.#between(this.#stepMs, n, k);
  }

  #between(rows: readonly Float64Array[], n: number, k: number): number {
    const i = this.#cell(n);
    const low = this.nSeqs[i] as number;
    const high = this.nSeqs[i + 1];
    const atLow = (rows[i] as Float64Array)[k] as number;
    if (high === undefined) return atLow;
    const atHigh = (rows[i + 1] as Float64Array)[k] as number;
    return Math.max(atLow * 0.25, atLow + ((atHigh - atLow) * (n - low)) / (high - low));
  }

  /** Steps in use that what is known of n sequences with draft length k comes from; 0: from calibration alone. */
  nUses(n: number, k: number): number {
    const i = this.#cell(n);
    const high = this.nSeqs[i + 1];
    const isNearHigh = high !== undefined && 2 * n >= (this.nSeqs[i] as number) + high;
    return (this.#nUses[isNearHigh ? i + 1 : i] as Float64Array)[k] as number;
  }

  /** Moves the two cells around n towards a measured time. Outliers (garbage collection, a busy machine) move them no further than 2x. */
  refine(n: number, k: number, measuredMs: number): void {
    const predicted = this.#between(this.#measuredMs, n, k);
    const ratio = Math.min(2, Math.max(0.5, measuredMs / predicted));
    const i = this.#cell(n);
    for (const cell of [i, i + 1]) {
      const row = this.#measuredMs[cell];
      const at = this.nSeqs[cell];
      if (row === undefined || at === undefined) continue;
      const span = (this.nSeqs[i + 1] ?? at) - (this.nSeqs[i] as number) || 1;
      const nearness = Math.max(0, 1 - Math.abs(n - at) / span);
      if (nearness === 0) continue;
      const uses = this.#nUses[cell] as Float64Array;
      uses[k] = (uses[k] as number) + nearness;
      row[k] = (row[k] as number) * (1 + this.#rate * nearness * (ratio - 1));
      // Longer ones that were last cheaper than this one is by its record and by its last step were cheap at another time.
      let least = Math.min(row[k], ratio * predicted);
      for (let j = k + 1; j <= this.nMax; j++) {
        least *= minGrowth;
        row[j] = Math.max(row[j] as number, least);
      }
      this.#readAnew(cell);
    }
  }

  toJSON(): CostTableData {
    return {
      nSeqs: this.nSeqs,
      stepMs: this.#measuredMs.map((row) => Array.from(row, (x) => Number(x.toFixed(4)))),
      changeMs: this.changeMs,
      moveMs: this.moveMs,
      prefillBaseMs: this.prefillBaseMs,
      prefillRowMs: this.prefillRowMs,
    };
  }

  /** Fewer sequences never take longer. */
  #lowerTo(i: number, k: number, mostMs: number): void {
    const row = this.#measuredMs[i] as Float64Array;
    row[k] = Math.min(row[k] as number, mostMs);
  }

  #readAnew(i: number): void {
    const measured = this.#measuredMs[i] as Float64Array;
    const row = this.#stepMs[i] as Float64Array;
    let most = Infinity;
    for (let k = this.nMax; k >= 0; k--) {
      row[k] = Math.min(measured[k] as number, most);
      most = (row[k] as number) / minGrowth;
    }
  }

  /** Index of the interval that n lies in; the last interval also serves everything beyond. */
  #cell(n: number): number {
    let i = 0;
    while (i + 2 < this.nSeqs.length && n >= (this.nSeqs[i + 1] as number)) i++;
    return i;
  }
}
