/** Before each step: which of the target's two contexts decodes, and whether its hidden rows are read. */
import type { Gate } from "./gate.ts";
import type { HiddenReading } from "./hidden-reading.ts";
import { Lately } from "./lately.ts";
import type { Slots } from "./slots.ts";
import type { Tier } from "./tier.ts";

/** Of the time that limits allow, what is counted on where requests end one by one. */
const aheadShare = 0.25;
/** Most of what runs would end together: two that do, of requests that usually end by their limits, or more. */
const waveLateness = 0.5;

export interface ContextChoiceParts {
  readonly slots: Slots;
  readonly gate: Gate;
  readonly tier: Tier;
  readonly hiddenReading: HiddenReading;
  /** Hidden rows of the coming steps are read, or not. */
  readonly readHidden: (isRead: boolean) => void;
  readonly clock: () => number;
}

export class ContextChoice {
  readonly #p: ContextChoiceParts;
  readonly #lately = new Lately();
  /** Time of decode steps that the choice has not counted yet. */
  #decodeMs = 0;

  constructor(parts: ContextChoiceParts) {
    this.#p = parts;
  }

  noteDecode(ms: number): void {
    this.#decodeMs += ms;
  }

  /** Before each step but those of a rest. */
  choose(): void {
    const { slots, gate, tier, hiddenReading, readHidden, clock } = this.#p;
    const { running } = slots;
    // A rest that was not looked into has just ended.
    if (gate.restedWith > 0) this.#lately.peak(gate.restedWith, clock());
    gate.restedWith = 0;
    if (running.length === 0) return;
    const prefilling = slots.inPhase("prefill");
    const peak = this.#lately.peak(running.length, clock());
    // Of a wave's requests the first may be here before the others.
    const nSeqs = prefilling.length > 0 ? peak : running.length;
    const isBetweenRequests = running.length === prefilling.length && prefilling.every((s) => s.nPast === 0);
    const isRead = hiddenReading.next(gate, nSeqs, isBetweenRequests);
    if (isRead !== undefined) readHidden(isRead);
    if (!tier.hasPlain) return;
    gate.value.rollingRatio = tier.rollingRatio;
    const { isPlain } = tier;
    // Requests that end together make the next change free: what the other context would have saved is then no reason to copy now.
    const isWave = slots.endSpread.lateness > waveLateness;
    tier.choose(gate.plainGain(nSeqs), isWave ? 0 : this.#decodeMs, running, (isWave ? 1 : aheadShare) * this.#aheadMs(nSeqs), gate.changePromise);
    // A ghost is not worth a move to the other context.
    if (tier.isPlain !== isPlain) slots.dropGhosts();
    this.#decodeMs = 0;
    gate.value.zeroFactor = tier.zeroFactor;
    gate.mayTry = !tier.isPlain;
    gate.value.entryPromise = tier.isPlain ? gate.changePromise : 0;
  }

  /** Decode time that the running requests' limits allow, where it is limits that end requests. */
  #aheadMs(nRunning: number): number {
    const { slots, gate } = this.#p;
    return gate.table === undefined ? 0 : slots.arrivals.lengthShare * slots.meanTokensLeft() * gate.table.stepMs(nRunning, 0);
  }
}
