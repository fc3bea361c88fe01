/**
 * One decode step of the engine: draft, decode, verify, emit, and what is learned from it.
 */
import type { Rng } from "../util/rng.ts";
import type { DecodeContext } from "./backend.ts";
import type { ContextChoice } from "./context-choice.ts";
import type { Crowd } from "./crowd.ts";
import type { Drafter } from "./drafters/drafter.ts";
import type { Gate } from "./gate.ts";
import type { HiddenReading } from "./hidden-reading.ts";
import { draftCap, type Planner } from "./planner.ts";
import type { Sequence } from "./sequence.ts";
import { ShadowDrafts } from "./shadow-drafts.ts";
import type { ShapeHold } from "./shape-hold.ts";
import type { Slots } from "./slots.ts";
import type { StepMeter } from "./step-meter.ts";
import type { Tier } from "./tier.ts";
import type { Verifier } from "./verifier.ts";
import { drawAcceptance } from "./verify.ts";

export interface DecodeStepParts {
  readonly slots: Slots;
  readonly gate: Gate;
  readonly tier: Tier;
  readonly meter: StepMeter;
  readonly planner: Planner;
  readonly shape: ShapeHold;
  readonly verifier: Verifier;
  readonly drafter: Drafter | undefined;
  readonly heads: readonly DecodeContext[];
  readonly hasHead: boolean;
  readonly hiddenReading: HiddenReading;
  readonly contextChoice: ContextChoice;
  readonly crowd: Crowd;
  readonly rng: Rng;
  readonly syntheticRates: readonly number[] | undefined;
  /** The device works. */
  readonly launched: () => void;
  /** A native call failed; throws on what is not the fault of these sequences. */
  readonly refused: (seqs: readonly Sequence[], error: unknown) => void;
}

export class DecodeStep {
  readonly #p: DecodeStepParts;
  readonly #shadow = new ShadowDrafts();

  constructor(parts: DecodeStepParts) {
    this.#p = parts;
  }

  /** One step of every decoding sequence: its pending token and the same number of drafts for all. */
  run(): void {
    const { drafter, gate, slots, tier, verifier } = this.#p;
    const seqs = [...slots.decoded];
    const live = seqs.filter((s) => s.phase === "decode");
    const isRolling = tier.hasPlain && !tier.isPlain;
    if (drafter === undefined || (!verifier.keepsHidden && !isRolling && gate.isResting(seqs.length))) this.#decodePlain(seqs, live);
    else this.#decodeDrafted(drafter, seqs, live, isRolling);
  }

  /** Nothing is drafted, and nothing is learned of drafts: without a head, or while the gate rests. A path of its own, since whatever lies between two native calls runs from cold caches. */
  #decodePlain(seqs: readonly Sequence[], live: readonly Sequence[]): void {
    const { crowd, drafter, gate, meter, refused, verifier } = this.#p;
    const isCostWanted = drafter !== undefined && gate.rest(seqs.length);
    meter.begin("decode", seqs, 1, 0, drafter === undefined ? "no head" : gate.reason, isCostWanted);
    try {
      crowd.decodes(0);
      verifier.run(seqs, 0);
    } catch (error) {
      refused(seqs, error);
      return;
    }
    this.#endDecode(seqs, live, 0);
    if (isCostWanted) gate.endStep(seqs.length, 0, crowd.isCertain ? meter.costMs : undefined, meter.isSteady);
  }

  #decodeDrafted(drafter: Drafter, seqs: readonly Sequence[], live: readonly Sequence[], isRolling: boolean): void {
    const { contextChoice, crowd, gate, hasHead, launched, meter, refused, slots, tier, verifier } = this.#p;
    const chosen = gate.choose(seqs.length, gate.isResting(seqs.length) ? 0 : draftCap(live));
    // A probe changes nothing for the target: what it would have accepted shows anyway.
    const isCompared = chosen > 0 && (tier.isPlain || gate.isProbing);
    const wanted = isCompared ? 0 : chosen;
    const isCostWanted = gate.wantsCost();
    meter.begin("decode", seqs, wanted + 1, wanted, gate.reason, isCostWanted);
    const promisesLittle = hasHead && (isCompared || verifier.keepsHidden) && gate.promisesLittle(seqs.length);
    const isShadowed = isCompared && (verifier.keepsHidden || !hasHead) && this.#shadow.isDue(gate.isProbing);
    let nDraft = 0;
    try {
      if (wanted > 0) nDraft = drafter.draft(seqs, wanted, launched);
      crowd.decodes(nDraft);
      if (isShadowed) this.#startShadow(live, chosen, promisesLittle);
      meter.drafted(nDraft);
      verifier.run(seqs, nDraft);
    } catch (error) {
      refused(seqs, error);
      return;
    }
    if (nDraft > 0) drafter.afterVerify(seqs);
    if (this.#shadow.isOpen) this.#shadow.settle((n, nAccepted) => this.#noteShadow(n, nAccepted));
    this.#endDecode(seqs, live, nDraft);
    contextChoice.noteDecode(meter.costMs);
    if (nDraft === 0 && verifier.keepsHidden && !promisesLittle) drafter.afterPlain(slots.inPhase("decode"), meter.totalMs);
    // Drafts that were only compared, or given up, are not part of what a step of this length costs.
    const counts = isCostWanted && crowd.isCertain && !isShadowed && !(wanted > 0 && nDraft === 0);
    // A step without drafts in the rolling context is not what one costs in the plain context.
    const isRollingZero = nDraft === 0 && isRolling;
    const { costMs, isSteady } = meter;
    const { table } = gate;
    if (counts && isSteady && isRollingZero && table !== undefined) tier.noteRolling(costMs / table.stepMs(seqs.length, 0));
    gate.endStep(seqs.length, nDraft, counts && !isRollingZero ? costMs : undefined, isSteady);
  }

  /** Tokens leave, and all that counts steps hears of this one. */
  #endDecode(seqs: readonly Sequence[], live: readonly Sequence[], nDraft: number): void {
    const { meter, planner, shape, slots } = this.#p;
    for (const seq of live) {
      seq.firstStep ??= slots.totals.nSteps;
      slots.emit(seq);
    }
    meter.end();
    const { totalMs } = meter;
    shape.noteStep(seqs.length, slots.inPhase("ghost"), totalMs);
    planner.noteDecode(totalMs, nDraft);
    slots.totals.noteDecode(seqs.length, nDraft, totalMs);
  }

  /** Drafts that the target's own tokens are compared with. */
  #startShadow(live: readonly Sequence[], nDraft: number, isHint: boolean): void {
    const { drafter, heads, hiddenReading, slots } = this.#p;
    const [head, ...others] = heads;
    const asked = isHint && head !== undefined && others.length === 0 ? hiddenReading.hinted(live, head, slots.totals.nSteps) : live;
    this.#shadow.start(asked, (drafter as Drafter).draft(asked, nDraft));
  }

  /** Acceptance that a probe learned without verifying; synthetic rates replace the comparison as they do in a verify. */
  #noteShadow(nDraft: number, nAccepted: number): void {
    const { gate, rng, syntheticRates } = this.#p;
    gate.note(nDraft, syntheticRates === undefined ? nAccepted : drawAcceptance(syntheticRates, nDraft, rng.uniform()));
  }
}
