/** Which free slot a request gets, and whose prompt is read next. Pure. */
import type { SlotSampling } from "./backend.ts";
import type { GenerateRequest } from "./request.ts";
import { isPlainGreedy, isTopKEnough } from "./sampler.ts";
import type { Sequence } from "./sequence.ts";

/** Candidates that a device top-k chain keeps. */
export const nDeviceCandidates = 64;

/** Whether a slot that samples this way gives the request exactly what it asks. */
export function canServe(sampling: SlotSampling, request: GenerateRequest): boolean {
  if (sampling === "host") return true;
  if (request.grammar !== undefined || request.nLogprobs !== undefined) return false;
  return sampling === "device-greedy" ? isPlainGreedy(request.sampling) : isTopKEnough(request.sampling, nDeviceCandidates);
}

export interface FreeSlot {
  readonly slot: number;
  readonly sampling: SlotSampling;
  /** Leading prompt tokens that the slot's history covers as a whole; 0 when it holds nothing useful. */
  readonly nCached: number;
  readonly isEmpty: boolean;
}

const preference: Record<SlotSampling, number> = { "device-greedy": 0, "device-top-k": 1, host: 2 };

/** The slot with the longest usable history, else the least capable that serves the request, empty ones first. */
export function chooseSlot(free: readonly FreeSlot[], request: GenerateRequest): FreeSlot | undefined {
  let best: FreeSlot | undefined;
  const rank = (s: FreeSlot): number => s.nCached * 16 - preference[s.sampling] * 2 + (s.isEmpty ? 1 : 0);
  for (const slot of free) if (canServe(slot.sampling, request) && (best === undefined || rank(slot) > rank(best))) best = slot;
  return best;
}

/** Length of the slot's history when the prompt extends all of it, else 0. At least one prompt token is left to read. */
export function reusableHistory(history: Int32Array, nHistory: number, prompt: Int32Array): number {
  if (nHistory === 0 || nHistory >= prompt.length) return 0;
  for (let i = 0; i < nHistory; i++) if (history[i] !== prompt[i]) return 0;
  return nHistory;
}

/** A prompt with no more rows left than this is nearly read. */
const tailRows = 32;
/** Steps for which a prompt that was begun may be passed over. */
const patienceSteps = 8;

/**
 * Short tails first, so that a ragged burst ends together; then who was served longest ago, so that a long prompt does not hold up short ones.
 * One that was begun and then passed over for `patienceSteps` comes before those that are new, or they could hold it up for ever.
 */
export function byUrgency(a: Sequence, b: Sequence, nSteps: number): number {
  const isTail = (s: Sequence): number => (s.nPast > s.nCached && s.nPrefillLeft <= tailRows ? 0 : 1);
  const hasWaited = (s: Sequence): number => (s.servedStep > 0 && nSteps - s.servedStep >= patienceSteps ? 0 : 1);
  return isTail(a) - isTail(b) || hasWaited(a) - hasWaited(b) || a.servedStep - b.servedStep || a.submittedMs - b.submittedMs || a.slot - b.slot;
}
