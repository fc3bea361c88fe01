/** Which free slot a request gets. Pure. */
import type { SlotSampling } from "./backend.ts";
import type { GenerateRequest } from "./request.ts";
import { isPlainGreedy, isTopKEnough } from "./sampler.ts";

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
