/**
 * Which prompt rows go into the next forward. Pure.
 *
 * On a recurrent model a batch is one forward only when every sequence brings the same number of rows
 * (llama-batch.cpp `split_equal`), and hidden rows keep batch order only then. So a chunk is `length` rows of each of
 * some sequences. Two things make prompts of different lengths cheap all the same:
 * - a prompt that ends up to `maxPad` rows early is padded, and the padding rolled back: the recurrent state can step
 *   back as many rows as a draft may be long;
 * - what remains ragged is cut either at the shortest remainder each time, or at powers of two, whichever needs fewer
 *   forwards (16 prompts of 130 to 160 tokens: a few more forwards instead of fifteen).
 */
export interface PrefillChunk {
  /** Indices into `remaining`. */
  readonly members: readonly number[];
  /** Rows of each member; one with fewer rows left is padded. */
  readonly length: number;
}

/**
 * The first sequence sets the scale: one with far more or far fewer rows left would gain nothing from a shared chunk.
 *
 * @param remaining rows still to prefill of each waiting sequence, most urgent first; all > 0
 * @param maxRows most rows of a forward; at least 1
 * @param maxPad most padding rows of a sequence
 */
export function planPrefillChunk(remaining: readonly number[], maxRows: number, maxPad = 0): PrefillChunk {
  const members = similarTo(remaining).slice(0, maxRows);
  const count = members.length;
  const group = members.map((i) => remaining[i] as number);
  const shortest = Math.min(...group);
  const room = Math.floor(maxRows / count);
  if (shortest >= room) {
    // Nobody can finish in a shared forward: fewer sequences with longer chunks reach their first token sooner.
    const nFit = Math.max(1, Math.floor(maxRows / shortest));
    if (nFit < count) return planPrefillChunk(remaining.slice(0, members[nFit]), maxRows, maxPad);
    return { members, length: Math.min(shortest, room) };
  }
  const byLength = cutsByLength(group, maxPad);
  const byDigits = cutsByDigits(group, maxPad);
  const cuts = byDigits.length < byLength.length ? byDigits : byLength;
  const length = Math.min(cuts[0] as number, room);
  // A member joins when the chunk fits into what it has left plus padding.
  return { members: members.filter((i) => (remaining[i] as number) + maxPad >= length), length };
}

/**
 * With cells for each sequence apart (KV not unified) a forward takes consecutive slots only. Keeps the members that share
 * one with the first, in order of slot: padding must be rolled back after its own forward, and hidden rows of several
 * forwards would not be in batch order.
 */
export function consecutiveMembers(members: readonly number[], slotOf: (member: number) => number): number[] {
  const bySlot = [...members].sort((a, b) => slotOf(a) - slotOf(b));
  let first = bySlot.indexOf(members[0] as number);
  let end = first + 1;
  while (first > 0 && slotOf(bySlot[first - 1] as number) === slotOf(bySlot[first] as number) - 1) first--;
  while (end < bySlot.length && slotOf(bySlot[end] as number) === slotOf(bySlot[end - 1] as number) + 1) end++;
  return bySlot.slice(first, end);
}

function similarTo(remaining: readonly number[]): number[] {
  const first = remaining[0] as number;
  const members: number[] = [];
  for (const [i, n] of remaining.entries()) if (n <= 2 * first + 8 && first <= 2 * n + 8) members.push(i);
  return members;
}

/** Chunk lengths when each forward ends the shortest prompts, padding those that nearly end with it. */
function cutsByLength(group: readonly number[], maxPad: number): number[] {
  const cuts: number[] = [];
  let left = [...group];
  while (left.length > 0) {
    const shortest = Math.min(...left);
    // The longest length that the shortest can be padded to and that ends another prompt exactly.
    const length = Math.max(...left.filter((n) => n <= shortest + maxPad));
    cuts.push(length);
    left = left.map((n) => n - length).filter((n) => n > 0);
  }
  return cuts;
}

/** The common part first when it is most of the work; then powers of two, largest first; padding ends what is short enough. */
function cutsByDigits(group: readonly number[], maxPad: number): number[] {
  const cuts: number[] = [];
  let left = [...group];
  const shortest = Math.min(...left);
  if (shortest > Math.max(...left) - shortest) {
    const length = Math.max(...left.filter((n) => n <= shortest + maxPad));
    cuts.push(length);
    left = left.map((n) => n - length).filter((n) => n > 0);
  }
  while (left.length > 0) {
    const longest = Math.max(...left);
    const length = longest <= maxPad + 1 ? longest : 2 ** Math.floor(Math.log2(longest));
    cuts.push(length);
    left = left.map((n) => (n + maxPad >= length ? n - length : n)).filter((n) => n > 0);
  }
  return cuts;
}
