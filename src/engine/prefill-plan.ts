/**
 * Which prompt rows go into the next forward. Pure.
 *
 * On a recurrent model a batch is one forward only when every sequence brings the same number of rows
 * (llama-batch.cpp `split_equal`), and hidden rows keep batch order only then. So a chunk is `length` rows of each of
 * some sequences. Prompts of different lengths leave ragged remainders; two ways to finish them are compared by their
 * number of forwards: the shortest remainder of all each time (one forward a distinct length), or powers of two
 * (one forward a binary digit of the longest: 16 prompts of 130 to 160 tokens end in 5 more forwards, not 15).
 */
export interface PrefillChunk {
  /** Indices into `remaining`. */
  readonly members: readonly number[];
  /** Rows of each member. */
  readonly length: number;
}

/**
 * @param remaining rows still to prefill of each waiting sequence, first come first; all > 0
 * @param maxRows most rows of a forward; at least 1
 */
export function planPrefillChunk(remaining: readonly number[], maxRows: number): PrefillChunk {
  const count = Math.min(remaining.length, maxRows);
  const members = Array.from({ length: count }, (_, i) => i);
  const group = members.map((i) => remaining[i] as number);
  const shortest = Math.min(...group);
  const longest = Math.max(...group);
  const room = Math.floor(maxRows / count);
  if (shortest >= room) {
    // Nobody can finish in a shared forward: fewer sequences with longer chunks reach their first token sooner.
    const nFit = Math.max(1, Math.floor(maxRows / shortest));
    if (nFit < count) return planPrefillChunk(remaining.slice(0, nFit), maxRows);
    return { members, length: Math.min(shortest, room) };
  }
  if (nForwardsByDigits(group) < nForwardsByLength(group)) {
    const digit = 2 ** Math.floor(Math.log2(longest));
    const length = shortest > longest - shortest ? shortest : Math.min(digit, room);
    return { members: members.filter((i) => (remaining[i] as number) >= length), length };
  }
  return { members, length: shortest };
}

function nForwardsByLength(group: readonly number[]): number {
  return new Set(group).size;
}

function nForwardsByDigits(group: readonly number[]): number {
  const shortest = Math.min(...group);
  const longest = Math.max(...group);
  // The common part first when it is most of the work; then the binary digits that occur in the remainders.
  const base = shortest > longest - shortest ? shortest : 0;
  let digits = 0;
  for (const length of group) digits |= length - base;
  let n = base > 0 ? 1 : 0;
  for (; digits > 0; digits >>>= 1) n += digits & 1;
  return n;
}
