/**
 * What the next step does: read prompts or decode. Pure: data in, plan out.
 *
 * Prefill is kept apart from verify (mixed rows would shatter the batch) and shares time with it: while sequences run,
 * reading prompts may take as long as decoding does, so a running stream keeps at least half its pace. Prompts that
 * arrive one by one may be held back a moment to be read together where a shared forward is cheaper than two.
 */
import { planPrefillChunk, type PrefillChunk } from "./prefill-plan.ts";

export interface ScheduleInput {
  /** Rows still to read of each prefilling sequence, first come first. */
  readonly prefillLeft: readonly number[];
  /** True when none of them has been started, so that waiting for company loses nothing but time. */
  readonly isFreshPrefill: boolean;
  readonly nDecoding: number;
  /** Decoding sequences that a prefill pauses: all but those whose burst is still being read. */
  readonly nStreaming: number;
  /** Free slots that a further request could take. */
  readonly nFreeSlots: number;
  /** Time since the first of the waiting prompts was submitted. */
  readonly waitedMs: number;
  /** Decode time gained since the last prefill minus the prefill time it has to make up for; prefill may run at >= 0. */
  readonly decodeCreditMs: number;
  readonly maxRows: number;
  /** Rows that a prompt may be padded with and rolled back. */
  readonly maxPad: number;
  /** Most rows while sequences stream: bounds the pause of running streams. */
  readonly maxRowsWhileStreaming: number;
  readonly holdBack: HoldBack;
  /** Time since the last arrival. */
  readonly sinceArrivalMs: number;
  /** Requests that usually arrive together. */
  readonly burstSize: number;
  /** Ended requests whose clients will send the next one within milliseconds. */
  readonly nExpected: number;
}

/** Requests closer than this belong to one burst. */
export const burstGapMs = 10;
const maxGatherMs = 40;
/** A burst that has its usual size goes on while requests come as close together as this: it may have grown. */
const moreMs = 3;

export interface HoldBack {
  /** Longest wait for company, 0: never wait. */
  readonly maxWaitMs: number;
  /** Mean time to the next request that finds a slot, Infinity when unknown. */
  readonly arrivalMs: number;
  /** What a forward costs apart from its rows: saved by reading two prompts in one. */
  readonly forwardBaseMs: number;
  /** Share of a sequence's average rate that a further sequence adds to the batch: 1 where time does not grow with rows, near 0 where it is proportional. */
  readonly marginalShare: number;
}

export type Plan = { readonly kind: "idle" } | { readonly kind: "gather" } | { readonly kind: "decode" } | { readonly kind: "prefill"; readonly chunk: PrefillChunk };

export function schedule(input: ScheduleInput): Plan {
  const { prefillLeft, nDecoding, nStreaming, maxPad } = input;
  if (prefillLeft.length === 0) return nDecoding > 0 ? { kind: "decode" } : { kind: "idle" };
  if (nDecoding === 0 && shouldGather(input)) return { kind: "gather" };
  // Sequences whose prompts were part of the same burst do not stream yet: the burst is finished first.
  if (nStreaming > 0 && (input.decodeCreditMs < 0 || shouldHoldBack(input))) return { kind: "decode" };
  const maxRows = nStreaming > 0 ? Math.min(input.maxRows, input.maxRowsWhileStreaming) : input.maxRows;
  return { kind: "prefill", chunk: planPrefillChunk(prefillLeft, Math.max(1, maxRows), maxPad) };
}

/**
 * An idle engine that usually gets its requests in bursts waits until no further one has come for a moment: the first of
 * sixteen would otherwise be read alone, and the other fifteen wait for it.
 */
export function shouldGather({ prefillLeft, isFreshPrefill, nFreeSlots, waitedMs, holdBack, sinceArrivalMs, burstSize, nExpected }: ScheduleInput): boolean {
  // Where a forward costs nothing apart from its rows (a CPU), company saves nothing.
  if (holdBack.maxWaitMs === 0 || holdBack.forwardBaseMs === 0) return false;
  if (!isFreshPrefill || nFreeSlots === 0) return false;
  if (nExpected > 0) return true;
  const gapMs = prefillLeft.length < Math.round(burstSize) ? burstGapMs : moreMs;
  return burstSize >= 2 && sinceArrivalMs < gapMs && waitedMs < maxGatherMs;
}

/**
 * Waiting for one more prompt saves a forward's base time for the whole batch; it costs the waiting sequences' tokens
 * meanwhile, of which the batch really loses only their marginal share.
 */
export function shouldHoldBack({ prefillLeft, isFreshPrefill, nStreaming, nFreeSlots, waitedMs, holdBack }: ScheduleInput): boolean {
  const { maxWaitMs, arrivalMs, forwardBaseMs, marginalShare } = holdBack;
  if (!isFreshPrefill || waitedMs >= maxWaitMs) return false;
  // Where all slots are taken only the end of a request makes room, and when that will be is known.
  if (nFreeSlots === 0 && arrivalMs > maxWaitMs - waitedMs) return false;
  const lostMs = (arrivalMs * prefillLeft.length * marginalShare) / (nStreaming + prefillLeft.length);
  return lostMs < forwardBaseMs;
}
