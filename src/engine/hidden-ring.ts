/**
 * The target's hidden rows that the draft head has not seen yet, by position, in bounded memory.
 *
 * The head's row for the token at position p takes the target's hidden row of position p - 1 (NextN shift). Rows are
 * kept from the decode that produced them until the head is fed: at once while drafting, lazily while the gate is at 0.
 * When more than `capacity` rows wait, the oldest are lost: the head then has a gap there, which costs acceptance, never text.
 */

/** Rows of positions `position`.., copied out of a ring. */
export interface SavedRows {
  readonly position: number;
  readonly values: Float32Array;
}

export class HiddenRing {
  readonly capacity: number;
  readonly #nEmbd: number;
  readonly #rows: Float32Array;
  /** One past the last position written. */
  #end = 0;
  /** First position ever written since reset. */
  #start = 0;

  constructor(capacity: number, nEmbd: number) {
    this.capacity = capacity;
    this.#nEmbd = nEmbd;
    this.#rows = new Float32Array(capacity * nEmbd);
  }

  reset(position = 0): void {
    this.#start = position;
    this.#end = position;
  }

  /** Oldest position still held; equals `end` when empty. */
  get begin(): number {
    return Math.max(this.#start, this.#end - this.capacity);
  }

  get end(): number {
    return this.#end;
  }

  has(position: number): boolean {
    return position >= this.begin && position < this.#end;
  }

  /** Copies `n` rows for positions `position`... from `source`, row `sourceRow` on. Overwrites what was held from `position` on. */
  write(position: number, source: Float32Array, sourceRow: number, n: number): void {
    if (position !== this.#end && !(position >= this.begin && position < this.#end)) this.#start = position;
    // At most two pieces: up to the end of the buffer, and from its start.
    for (let i = Math.max(0, n - this.capacity); i < n; ) {
      const at = (position + i) % this.capacity;
      const count = Math.min(n - i, this.capacity - at);
      const from = (sourceRow + i) * this.#nEmbd;
      this.#rows.set(source.subarray(from, from + count * this.#nEmbd), at * this.#nEmbd);
      i += count;
    }
    this.#end = position + n;
  }

  /** A copy of the rows from..to-1, or of those of them that are still held. */
  save(from: number, to: number): SavedRows {
    const end = Math.min(to, this.#end);
    const position = Math.min(end, Math.max(from, this.begin));
    const values = new Float32Array((end - position) * this.#nEmbd);
    for (let p = position; p < end; p++) this.read(p, values, p - position);
    return { position, values };
  }

  load({ position, values }: SavedRows): void {
    this.reset(position);
    this.write(position, values, 0, values.length / this.#nEmbd);
  }

  /** Copies the row of `position` to `target` at row `targetRow`. The caller checks `has`. */
  read(position: number, target: Float32Array, targetRow: number): void {
    const from = (position % this.capacity) * this.#nEmbd;
    target.set(this.#rows.subarray(from, from + this.#nEmbd), targetRow * this.#nEmbd);
  }
}
