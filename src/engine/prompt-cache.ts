/**
 * Saved states of sequences (`--cache-ram`): text read once need not be read again.
 *
 * A recurrent model's state belongs to one length of text and cannot be cut, so an entry helps only a prompt that extends
 * all of it. Entries are made where that is likely: when a slot's history gives way to another request (the next turn of a
 * chat extends it), and where a prompt was seen to part from an earlier one (a shared system prompt, the same prompt again).
 * The target's and the heads' states and the hidden rows that the head has not seen are one entry: a head without them
 * would draft worse after a restore than before.
 */
import type { Drafter } from "./drafters/drafter.ts";
import type { DecodeContext } from "./backend.ts";
import type { SavedRows } from "./hidden-ring.ts";
import type { Sequence } from "./sequence.ts";

/** What a draft head needs besides the target's state. */
export interface SavedHead {
  readonly state: Uint8Array;
  /** Positions 0..past-1 are in the state. */
  readonly past: number;
  /** The head's own hidden rows, where another head is fed with them. */
  readonly made: SavedRows | undefined;
}

export interface SavedPrompt {
  readonly tokens: Int32Array;
  readonly target: Uint8Array;
  readonly heads: readonly SavedHead[];
  readonly rows: SavedRows | undefined;
  readonly sizeBytes: number;
}

/** Shorter text is read faster than a state is copied. */
const minTokens = 64;
/** Prompts remembered to see where a new one parts from them. */
const nRemembered = 32;

export class PromptCache {
  readonly #limitBytes: number;
  /** Least recently used first. */
  readonly #entries: SavedPrompt[] = [];
  readonly #prompts: Int32Array[] = [];
  #sizeBytes = 0;

  constructor(limitBytes: number) {
    this.#limitBytes = limitBytes;
  }

  get sizeBytes(): number {
    return this.#sizeBytes;
  }

  get nEntries(): number {
    return this.#entries.length;
  }

  /** The longest entry that the prompt extends, when it saves enough over `nCached` tokens that are at hand already. */
  find(prompt: Int32Array, nCached: number): SavedPrompt | undefined {
    let best: SavedPrompt | undefined;
    for (const entry of this.#entries) {
      const n = entry.tokens.length;
      if (n >= prompt.length || n < nCached + minTokens || n <= (best?.tokens.length ?? 0)) continue;
      if (commonPrefix(entry.tokens, prompt) === n) best = entry;
    }
    if (best !== undefined) this.#touch(best);
    return best;
  }

  /** Where this prompt parts from an earlier one, if a state there would have saved reading; the prompt is remembered. */
  branchPoint(prompt: Int32Array, nCached: number): number | undefined {
    let longest = 0;
    for (const earlier of this.#prompts) longest = Math.max(longest, commonPrefix(earlier, prompt));
    this.#prompts.push(prompt);
    if (this.#prompts.length > nRemembered) this.#prompts.shift();
    // One token of a prompt must be left to read: its output is the first token of the answer.
    const at = Math.min(longest, prompt.length - 1);
    return at >= nCached + minTokens ? at : undefined;
  }

  /** Whether there is an entry of just these tokens; it counts as used. */
  has(tokens: Int32Array): boolean {
    const known = this.#entries.find((e) => e.tokens.length === tokens.length && commonPrefix(e.tokens, tokens) === tokens.length);
    if (known !== undefined) this.#touch(known);
    return known !== undefined;
  }

  /** Keeps an entry, at the cost of those used least recently. One that is too large alone, or known, is not kept. */
  add(entry: SavedPrompt): void {
    if (this.has(entry.tokens)) return;
    if (entry.tokens.length < minTokens || entry.sizeBytes > this.#limitBytes) return;
    this.#entries.push(entry);
    this.#sizeBytes += entry.sizeBytes;
    while (this.#sizeBytes > this.#limitBytes) this.#sizeBytes -= (this.#entries.shift() as SavedPrompt).sizeBytes;
  }

  #touch(entry: SavedPrompt): void {
    this.#entries.splice(this.#entries.indexOf(entry), 1);
    this.#entries.push(entry);
  }
}

/** The state of a slot: everything decoded, and what the heads need to go on drafting as well as before. */
export function saveSlot(seq: Sequence, target: DecodeContext, drafter: Drafter | undefined): SavedPrompt {
  const tokens = seq.tokens.slice(0, seq.nPast);
  const state = target.saveSequence(seq.slot);
  const heads = drafter?.save(seq) ?? [];
  const rows = seq.ring?.save(Math.max(0, Math.min(seq.nPast, ...heads.map((h) => h.past)) - 1), seq.nPast);
  let sizeBytes = tokens.byteLength + state.byteLength + (rows?.values.byteLength ?? 0);
  for (const head of heads) sizeBytes += head.state.byteLength + (head.made?.values.byteLength ?? 0);
  return { tokens, target: state, heads, rows, sizeBytes };
}

/** Puts a saved state into an empty slot. False when the library refuses it; the slot is empty then. */
export function restoreSlot(saved: SavedPrompt, seq: Sequence, target: DecodeContext, drafter: Drafter | undefined): boolean {
  if (!target.restoreSequence(seq.slot, saved.target)) return false;
  if (saved.rows !== undefined) seq.ring?.load(saved.rows);
  if (drafter?.restore(seq, saved.heads) === false) {
    target.clear(seq.slot);
    return false;
  }
  return true;
}

function commonPrefix(a: Int32Array, b: Int32Array): number {
  const n = Math.min(a.length, b.length);
  let i = 0;
  while (i < n && a[i] === b[i]) i++;
  return i;
}
