/** What an engine tells about itself: its state for people, and whether slots and contexts agree. */
import type { DecodeContext } from "./backend.ts";
import type { EngineSnapshot } from "./request.ts";
import type { Sequence } from "./sequence.ts";
import type { Slots } from "./slots.ts";
import type { EngineTotals } from "./totals.ts";

type Inside = Omit<EngineSnapshot, "rssBytes" | "deviceUsedBytes" | "isSynthetic">;

export function snapshotOf(slots: Slots, totals: EngineTotals, gateReason: string): Inside {
  return {
    slots: slots.sequences.map((s) => ({ slot: s.slot, requestId: s.request?.id, phase: s.phase === "ghost" ? "idle" : s.phase, nPrompt: s.nPrompt, nPast: s.nPast, nOutput: s.nOutput })),
    nQueued: slots.nQueued,
    nSteps: totals.nSteps,
    nPromptTokens: totals.nPromptTokens,
    nCachedTokens: totals.nCachedTokens,
    nOutputTokens: totals.nOutputTokens,
    nRequests: totals.nRequests,
    prefillMs: totals.prefillMs,
    decodeMs: totals.decodeMs,
    draft: totals.draft.snapshot(),
    nDraftNow: totals.nDraftNow,
    gateReason,
    stepsAtK: [...totals.stepsAtK],
    rowShape: totals.rowShape,
  };
}

/** @throws {Error} when a context holds other positions than the engine counts. */
export function checkIntegrity(sequences: readonly Sequence[], target: DecodeContext, heads: readonly DecodeContext[], nMax: number): void {
  for (const seq of sequences) {
    const held = target.lastPosition(seq.slot) + 1;
    if (held !== seq.nPast) throw new Error(`slot ${seq.slot} (${seq.phase}): the target holds ${held} positions, the engine counts ${seq.nPast}`);
    // Drafts that were not accepted stay in a head until its next rows come.
    const atMost = seq.nPast === 0 ? 0 : seq.nPast + nMax;
    for (const head of heads) {
      const inHead = head.lastPosition(seq.slot) + 1;
      if (inHead > atMost) throw new Error(`slot ${seq.slot} (${seq.phase}): a head holds ${inHead} positions, at most ${atMost} can be right`);
    }
  }
}
