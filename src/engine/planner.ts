/**
 * Gathers what the scheduler's decision needs and keeps the account it rests on: how long steps take, and how much
 * prefill time the running streams are owed. The decision itself is `schedule`.
 */
import type { DecodeContext } from "./backend.ts";
import type { EngineConfig } from "./config.ts";
import type { Gate } from "./gate.ts";
import { consecutiveMembers } from "./prefill-plan.ts";
import { schedule, type Plan } from "./scheduler.ts";
import type { Sequence } from "./sequence.ts";
import type { Slots } from "./slots.ts";

/**
 * While streams run, a prefill forward may pause them for about this many decode steps, longer when more prompts wait than
 * streams run, or twice its fixed cost: below that smaller chunks shorten a pause less than they add forwards.
 */
const maxPauseSteps = 8;
/** 128 rows already touch most experts of a MoE model, so smaller chunks save little. */
const minChunkRows = 128;
/** Beyond this the fixed cost is shared well enough, and a fit of too little time a row must not make endless pauses. */
const maxChunkRows = 1024;
/** Padding costs rows, so only short tails are padded. */
const maxPadRows = 4;
/** A further sequence's share of the average rate where no table says it: measured near 0.2 at 8 to 16 streams of a MoE model, 1 in theory. */
const unknownShare = 0.5;

/**
 * A wave of drafted requests ends over some steps: while this share of those that run are so many steps from their limits,
 * their successors are waited for longer, by this factor.
 */
const waveShare = 0.25;
const waveSteps = 2;
const wavePatience = 3;

/** A sequence whose burst is still being read does not stream yet; prompts that go on coming for longer than this are no burst. */
const maxBurstMs = 100;

export interface PlannerDependencies {
  readonly slots: Slots;
  readonly gate: Gate;
  readonly target: DecodeContext;
  readonly config: EngineConfig;
  readonly clock: () => number;
}

export class Planner {
  /** What a prefill forward costs: baseMs + rowMs * rows. Zero until measured. */
  prefillCost = { baseMs: 0, rowMs: 0 };
  readonly #d: PlannerDependencies;
  /** Decode time since the last prefill, minus the prefill time it has to make up for. */
  #decodeCreditMs = 0;
  /** Time of the last decode step, and its draft length. */
  #stepMs = 0;
  #nDraft = 0;
  /** The last plan was to wait for clients whose requests have ended. */
  #isExpecting = false;

  constructor(dependencies: PlannerDependencies) {
    this.#d = dependencies;
  }

  /** @param nBehindGhosts requests at the head of the queue that are planned as if they had their slots; a chunk then says only that it is time */
  plan(nBehindGhosts = 0): Plan {
    const { slots, gate, target, config, clock } = this.#d;
    const prefilling = slots.inPhase("prefill");
    const decoding = slots.inPhase("decode");
    const nDecoding = decoding.length;
    if (prefilling.length === 0 && nBehindGhosts === 0) return this.#planWithoutPrompts(nDecoding);
    const prefillLeft = prefilling.map((s) => s.nPrefillLeft);
    let oldestMs = prefilling[0]?.submittedMs ?? Infinity;
    for (let i = 0; i < nBehindGhosts; i++) {
      const { request, atMs } = slots.queued(i);
      prefillLeft.push(request.prompt.length);
      oldestMs = Math.min(oldestMs, atMs);
    }
    const { nUbatch, nRows, nRollback, nCtxSeq, nCells } = target.limits;
    const now = clock();
    const { baseMs, rowMs } = this.prefillCost;
    const nStreaming = this.nStreaming();
    const pauseMs = maxPauseSteps * this.#stepMs * Math.max(1, prefillLeft.length / nStreaming);
    // Exact output needs prompts read as they are alone: one at a time, in chunks that do not depend on the others.
    const isExact = config.verify === "sequential";
    const maxRows = Math.min(nUbatch, nRows);
    let maxPad = Number.isFinite(nRollback) && !isExact ? Math.min(maxPadRows, nRollback) : 0;
    // Padding rows need positions too.
    for (const seq of prefilling) maxPad = Math.min(maxPad, Math.max(0, seq.draftRoom + 1 - seq.nPrefillLeft));
    const nExpected = slots.arrivals.nExpected(now);
    const refillShare = slots.arrivals.refillShare(now);
    const isWaveEnding = refillShare >= 0.5 && this.#nEnding(decoding) >= Math.max(1, waveShare * nDecoding);
    if (this.#isExpecting && nExpected === 0) slots.arrivals.forgetExpected();
    const plan = schedule({
      prefillLeft: isExact ? prefillLeft.slice(0, 1) : prefillLeft,
      isFreshPrefill: prefilling.every((s) => s.nPast === s.nCached),
      nDecoding,
      nStreaming,
      nFreeSlots: slots.nFree - nBehindGhosts,
      waitedMs: Math.max(0, now - oldestMs),
      decodeCreditMs: this.#decodeCreditMs,
      maxRows,
      maxRowsWhileStreaming: isExact || rowMs === 0 ? maxRows : Math.max(minChunkRows, Math.floor((pauseMs - baseMs) / rowMs), Math.min(maxChunkRows, Math.floor(baseMs / rowMs))),
      maxPad,
      sinceArrivalMs: now - slots.arrivals.lastMs,
      burstSize: slots.arrivals.burstSize,
      nExpected,
      holdBack: {
        maxWaitMs: isExact ? 0 : config.prefillWaitMs * (isWaveEnding ? wavePatience : 1),
        // Where all slots are taken the end of a request makes room for the next one.
        arrivalMs: Math.min(slots.nFree > nBehindGhosts ? slots.arrivals.meanMs(now) : Infinity, this.#nextEndMs(decoding) / refillShare),
        forwardBaseMs: baseMs,
        marginalShare: gate.table === undefined || nDecoding === 0 ? unknownShare : marginalShare(nDecoding, gate.table.stepMs(nDecoding, 0), gate.table.stepMs(nDecoding + 1, 0)),
      },
    });
    this.#isExpecting = plan.kind === "gather" && nExpected > 0;
    if (plan.kind !== "prefill" || nCtxSeq === nCells || nBehindGhosts > 0) return plan;
    const members = consecutiveMembers(plan.chunk.members, (i) => (prefilling[i] as Sequence).slot);
    return { kind: "prefill", chunk: { members, length: plan.chunk.length } };
  }

  #planWithoutPrompts(nDecoding: number): Plan {
    const { arrivals } = this.#d.slots;
    if (this.#isExpecting && arrivals.nExpected(this.#d.clock()) === 0) arrivals.forgetExpected();
    this.#isExpecting = false;
    return nDecoding > 0 ? { kind: "decode" } : { kind: "idle" };
  }

  /** Sequences that have had a step since their prompt, or have waited for one longer than a burst of prompts may take. */
  nStreaming(): number {
    const now = this.#d.clock();
    let n = 0;
    for (const seq of this.#d.slots.inPhase("decode")) if (seq.nOutput > 1 || now - seq.decodingSinceMs > maxBurstMs) n++;
    return n;
  }

  /** A prompt forward took `ms` while `nStreaming` streams stood still for `nWaiting` prompts. */
  notePrefill(ms: number, nStreaming: number, nWaiting: number): void {
    this.#decodeCreditMs = nStreaming > 0 ? Math.min(0, this.#decodeCreditMs) - ms * pauseWeight(nStreaming, nWaiting) : 0;
  }

  noteDecode(ms: number, nDraft: number): void {
    this.#decodeCreditMs += ms;
    this.#stepMs = ms;
    this.#nDraft = nDraft;
  }

  /** Forgets what is owed. */
  reset(): void {
    this.#decodeCreditMs = 0;
  }

  /** Requests that are about to reach their token limits. */
  #nEnding(decoding: readonly Sequence[]): number {
    const nTokens = waveSteps * this.#d.gate.value.acceptance.expectedTokens(this.#nDraft);
    let n = 0;
    for (const seq of decoding) if ((seq.request?.maxTokens ?? Infinity) - seq.nOutput <= nTokens) n++;
    return n;
  }

  /** Time until the first running request reaches its token limit, at the present pace. */
  #nextEndMs(decoding: readonly Sequence[]): number {
    let left = Infinity;
    for (const seq of decoding) left = Math.min(left, (seq.request?.maxTokens ?? Infinity) - seq.nOutput);
    return (left / this.#d.gate.value.acceptance.expectedTokens(this.#nDraft)) * this.#stepMs;
  }
}

/** A pause for many waiting prompts counts less against a few running streams: nobody's wait should outweigh everybody's. */
function pauseWeight(nStreaming: number, nWaiting: number): number {
  return Math.min(1, nStreaming / nWaiting);
}

/** What one more sequence adds to the batch's rate, as a share of the average sequence's rate. */
function marginalShare(n: number, msAtN: number, msAtNext: number): number {
  const gain = (n + 1) / msAtNext - n / msAtN;
  return Math.min(1, Math.max(0, gain * msAtN));
}

/** Drafts that every sequence's context and at least one request allow; none before the last hidden row of each is at hand. */
export function draftCap(seqs: readonly Sequence[]): number {
  let room = Infinity;
  let wanted = 0;
  for (const seq of seqs) {
    if (seq.ring !== undefined && seq.ring.end !== seq.nPast) return 0;
    room = Math.min(room, seq.draftRoom);
    wanted = Math.max(wanted, seq.nMax);
  }
  return Math.max(0, Math.min(room, wanted));
}
