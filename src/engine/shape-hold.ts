/**
 * Keeps the shape that a GPU has a captured graph for.
 *
 * A decode of another number of sequences or rows runs without its CUDA graph and the next one captures it anew: 8 ms and
 * 5 ms above a steady step of 7 ms on an H200, more with sixteen sequences. Requests come and go, so the shape would
 * change all the time. Two things keep it:
 * - a prompt's last token is left to the decode step where that step then has the captured shape. The prompt's forward has
 *   no outputs, and libllama keeps the graph of forwards without outputs apart (llama-context.cpp, `gf_res_prev`), so the
 *   captured one stays valid;
 * - the slot of a request that ended goes on being decoded for a while, as a ghost, until the next request takes it:
 *   at most as long as its rows cost less than the change that they avoid (ski rental: never worse than twice the best).
 */
import type { Sequence } from "./sequence.ts";
import type { Slots } from "./slots.ts";

export class ShapeHold {
  /** Price of a change of shape; 0, not known: nothing is held. */
  changeMs = 0;
  /** Sequences of the last decode step. */
  #nSeqs = 0;
  /** What one of them cost. */
  #msPerSeq = 0;

  /**
   * Whether `nPrompts` should leave their last tokens to a decode step of `nSeqs` sequences, themselves included: it finds
   * its graph, and what that saves the others is more than the step that each first token comes later.
   */
  isWorthWaiting(nPrompts: number, nSeqs: number): boolean {
    return nSeqs === this.#nSeqs && nPrompts * nSeqs * this.#msPerSeq < (nSeqs - nPrompts) * this.changeMs;
  }

  /** Whether ghosts may go on among running sequences: their clients usually send the next request at once, and nobody's time is used up. */
  isWorth(ghosts: readonly Sequence[], refillShare: number): boolean {
    let spentMs = 0;
    for (const ghost of ghosts) spentMs += ghost.ghostMs;
    return refillShare >= 0.5 && spentMs + ghosts.length * this.#msPerSeq < this.changeMs;
  }

  /** Before a step: ghosts go on together or not at all; when they go, waiting requests come in. */
  holdGhosts(slots: Slots, now: number, nMax: number): void {
    const ghosts = slots.inPhase("ghost");
    const isWorth = slots.inPhase("decode").length > 0 && this.isWorth(ghosts, slots.arrivals.refillShare(now));
    slots.leavesGhosts = isWorth && ghosts.every((s) => s.draftRoom > nMax);
    if (slots.leavesGhosts || ghosts.length === 0) return;
    slots.dropGhosts();
    slots.admit();
  }

  /** Before a step: prompts leave their last token to the decode step where that finds its graph. */
  leaveLast(slots: Slots): void {
    const prefilling = slots.inPhase("prefill");
    const leavesLast = this.isWorthWaiting(prefilling.length, slots.decoded.length + prefilling.length);
    for (const seq of prefilling) seq.leavesLast = leavesLast && seq.nPast < seq.nPrompt - 1;
  }

  /** A decode step of `nSeqs` sequences took `ms`. A ghost's part is counted as that of a whole sequence, which is somewhat too much. */
  noteStep(nSeqs: number, ghosts: readonly Sequence[], ms: number): void {
    this.#nSeqs = nSeqs;
    this.#msPerSeq = ms / nSeqs;
    for (const ghost of ghosts) ghost.ghostMs += this.#msPerSeq;
  }
}
