/**
 * Finds stop strings in a stream of bytes, however the stream is cut into pieces. One Knuth-Morris-Pratt automaton
 * a stop (Knuth, Morris and Pratt, 1977): its state is the length of the longest suffix of the stream that is a
 * prefix of the stop, so the largest state is what a server must hold back.
 *
 * The engine ends a request at the token that completes a stop; the server cuts the text before its first byte.
 * Both use this matcher, so they agree.
 */
export class StopMatcher {
  readonly #stops: readonly Uint8Array[];
  readonly #failures: readonly Int32Array[];
  readonly #states: Int32Array;
  #nBytes = 0;
  #matched = -1;
  #matchStart = -1;

  /** Empty stops never match; they keep their index. */
  constructor(stops: readonly Uint8Array[]) {
    this.#stops = stops;
    this.#failures = stops.map(failureTable);
    this.#states = new Int32Array(stops.length);
  }

  /**
   * Feeds bytes up to the first that completes a stop. Returns the index of that stop, else -1. Of several stops that
   * end at the same byte the longest wins. After a match nothing more is read and the same index is returned.
   */
  push(bytes: Uint8Array): number {
    if (this.#matched >= 0 || this.#stops.length === 0) {
      if (this.#matched < 0) this.#nBytes += bytes.length;
      return this.#matched;
    }
    for (const byte of bytes) {
      this.#nBytes++;
      this.#advance(byte);
      if (this.#matched >= 0) {
        this.#matchStart = this.#nBytes - (this.#stops[this.#matched] as Uint8Array).length;
        return this.#matched;
      }
    }
    return -1;
  }

  #advance(byte: number): void {
    for (let i = 0; i < this.#stops.length; i++) {
      const stop = this.#stops[i] as Uint8Array;
      const failure = this.#failures[i] as Int32Array;
      let state = this.#states[i] as number;
      while (state > 0 && stop[state] !== byte) state = failure[state - 1] as number;
      if (stop[state] === byte) state++;
      this.#states[i] = state;
      if (state === 0 || state !== stop.length) continue;
      if (this.#matched < 0 || stop.length > (this.#stops[this.#matched] as Uint8Array).length) this.#matched = i;
    }
  }

  /** Length of the longest suffix that is a proper prefix of some stop: bytes that may not be shown yet. 0 after a match. */
  get nHeld(): number {
    if (this.#matched >= 0) return 0;
    let nHeld = 0;
    for (const state of this.#states) if (state > nHeld) nHeld = state;
    return nHeld;
  }

  /** Bytes read since the start. */
  get nBytes(): number {
    return this.#nBytes;
  }

  /** Where the match begins, counted from the start of the stream; -1 without a match. */
  get matchStart(): number {
    return this.#matchStart;
  }
}

/** failure[i]: length of the longest proper border of pattern[0..i]. */
function failureTable(pattern: Uint8Array): Int32Array {
  const failure = new Int32Array(pattern.length);
  let border = 0;
  for (let i = 1; i < pattern.length; i++) {
    while (border > 0 && pattern[i] !== pattern[border]) border = failure[border - 1] as number;
    if (pattern[i] === pattern[border]) border++;
    failure[i] = border;
  }
  return failure;
}
