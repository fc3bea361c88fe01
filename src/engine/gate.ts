/**
 * The gate: one draft length for the whole batch, each step, down to zero.
 *
 * It takes the length with the most expected tokens per second: tokens from recent acceptance, time from the measured
 * cost table. Three things keep it calm and honest: a change must win by more than `hysteresis` and repay the price of
 * rebuilding graphs within `horizonSteps`; at length 0 it probes now and then, only where even perfect acceptance could
 * pay (`probing.ts`), and else rests.
 * Sources of the idea: SGLang's adaptive steps and vLLM's draft length by batch size (one length a batch, from tables);
 * the measured cost table, and zero as the true plain path, are ours.
 */
import type { CostTable } from "./cost-table.ts";
import { DraftValue } from "./draft-value.ts";
import { leadSteps, patienceFor, Probing } from "./probing.ts";
import { trialMargin, Trials, triedUses } from "./trials.ts";

export interface GateOptions {
  readonly mode: "fixed" | "adaptive";
  readonly nMax: number;
  /** Fewest drafts worth a verify. */
  readonly nMin?: number;
  readonly hysteresis?: number;
  readonly horizonSteps?: number;
  readonly minProbeSteps?: number;
  readonly maxProbeSteps?: number;
}

/** A price measured on a busy machine must not keep a wrong length for ever. */
const maxPrice = 0.03;

/**
 * Drafting must promise this much more than plain decoding before much is changed for it.
 * What steps and known losses promise was up to 5% more than came of it end to end (docs/log.md), and near a tie a gate that
 * goes to and fro loses more than either length.
 */
export const minPromise = 0.05;

/**
 * At length 0 nothing is learned but that length's own time, so there the choice is made anew every few steps only; where
 * it has been the same for long, and the context is the one for it, every `maxRestSteps`.
 */
const restSteps = 8;
const maxRestSteps = 64;
/** Of a length that stands on a CPU the cost of one step in so many tells enough. */
const costSteps = 64;

/** Steps that a change of shape makes dear. */
const changedSteps = 2;

export type GateReason = "fixed" | "best" | "hold" | "probe" | "cannot-pay" | "idle-at-zero" | "trial" | "capped";

export class Gate {
  readonly value: DraftValue;
  reason: GateReason = "fixed";
  /** What other groups that draft last drafted. */
  othersLength: number | undefined;
  /** What is drafted is verified, so that its cost is known. */
  mayTry = true;
  /** At rest most costs are not asked for: where reading one takes a share of a step that counts. */
  samplesCost = false;
  /** Sequences of the rest that the last steps were part of; 0: of none, or whoever wanted to know has seen it. */
  restedWith = 0;
  #changePromise = minPromise;
  readonly #options: Required<GateOptions>;
  /** Length in force outside of probes. */
  #current: number;
  readonly #probing: Probing;
  readonly #trials = new Trials();
  #lastNSeqs = 0;
  #forced: number | undefined;
  /** Steps for which length 0 stands without another look, while as many sequences decode. */
  #restLeft = 0;
  /** Steps since the last one whose cost is known. */
  #sinceCost = 0;
  /** Steps at rest that acceptance has not counted yet. */
  #nRested = 0;
  /** Steps since the last one of a trial. */
  #sinceTrial = Infinity;
  /** How long the last rest was. */
  #restLength = restSteps;

  constructor(options: GateOptions, table?: CostTable) {
    this.#options = { nMin: 0, hysteresis: 0.01, horizonSteps: 256, minProbeSteps: 32, maxProbeSteps: 160, ...options };
    this.value = new DraftValue(options.nMax, Math.max(1, this.#options.nMin), table);
    this.#current = options.nMax;
    this.#probing = new Probing(this.#options.minProbeSteps, this.#options.maxProbeSteps);
  }

  /**
   * Takes a measured table and forgets what calibration taught about acceptance.
   * @param crowded the table while other groups of slots work too, where there are any
   */
  useTable(table: CostTable, crowded = table): void {
    this.value.useTables(table, crowded);
    this.#current = this.#options.nMax;
    this.#nRested = 0;
    this.#probing.cancel();
    this.#trials.clear();
    this.#restLeft = 0;
  }

  /** Holds the draft length at k for calibration; undefined gives the choice back. */
  force(k: number | undefined): void {
    this.#forced = k;
  }

  /** Whether other groups of slots work on the device in this step. */
  set isCrowded(isCrowded: boolean) {
    if (this.value.takeTable(isCrowded)) this.#restLeft = 0;
  }

  /** What drafting must promise over plain decoding to be worth a change of context, or hidden rows between probes. */
  get changePromise(): number {
    return this.#changePromise;
  }

  set changePromise(promise: number) {
    if (promise < this.#changePromise) this.#restLeft = 0;
    this.#changePromise = promise;
  }

  get table(): CostTable | undefined {
    return this.value.table;
  }

  /** True while the head must be kept ready for the next step; false while it is fed lazily. */
  get isDrafting(): boolean {
    return (this.#forced ?? this.#current) > 0 || this.isProbing;
  }

  /** Length 0 was chosen for `nSeqs` sequences a rest ago, and stands. */
  isResting(nSeqs: number): boolean {
    return this.#restLeft > 0 && nSeqs === this.#lastNSeqs && this.#forced === undefined;
  }

  /** True while drafts are made to learn about acceptance, not to win time. */
  get isProbing(): boolean {
    return this.#probing.length !== undefined;
  }

  /**
   * By what share `nSeqs` sequences are faster without drafts in the context that the table's length 0 was measured in
   * than by the best that this one offers; negative when drafting wins.
   */
  plainGain(nSeqs: number): number {
    if (this.#forced !== undefined) return this.#forced === 0 ? 1 : -1;
    if (!this.#chooses) return -1;
    this.#countRest();
    return this.value.plainGain(nSeqs);
  }

  /** Whether drafting promises too little for `nSeqs` sequences to be prepared for: a probe needs no more than a hint of acceptance. */
  promisesLittle(nSeqs: number): boolean {
    if (!this.#chooses || this.#forced !== undefined || this.#current > 0) return false;
    this.#countRest();
    return this.value.bestDrafted(nSeqs) < (1 + this.changePromise) * this.value.rate(nSeqs, 0);
  }

  /** Steps at length 0 until the next probe of `nSeqs` sequences; 0 while drafting or probing. */
  stepsToProbe(nSeqs: number): number {
    return this.isDrafting ? 0 : this.#probing.stepsLeft(this.#patience(nSeqs));
  }

  /** Whether `nSeqs` sequences could win by drafts that are all accepted. */
  canPayAt(nSeqs: number): boolean {
    return !this.#chooses || this.#forced !== undefined || this.#probeLength(nSeqs) > 0;
  }

  /**
   * A step of a rest: all that the gate has to do then, where the answer is false. Hot.
   * @returns whether its cost is wanted: `endStep` must be told of it then
   */
  rest(nSeqs: number): boolean {
    this.#takeRest(nSeqs);
    if (this.wantsCost()) return true;
    this.#probing.stepsAtZero++;
    this.#sinceCost++;
    this.#nRested++;
    return false;
  }

  #takeRest(nSeqs: number): void {
    this.restedWith = nSeqs;
    this.#restLeft--;
  }

  /** Whether this step's cost is worth the microseconds that reading it takes; after `choose`. */
  wantsCost(): boolean {
    if (this.#options.mode === "fixed") return false;
    // Counted over breaks and looks: at fixed places of a request costs would be biased.
    return !this.samplesCost || this.#forced !== undefined || this.isDrafting || this.value.zeroFactor !== 1 || this.#sinceCost >= costSteps;
  }

  /**
   * Draft length of the next step. Hot: allocates nothing but a probe's record, and a closure where it drafts.
   * @param nSeqs sequences that decode, at least 1
   * @param cap most drafts that the context's end and the requests allow
   */
  choose(nSeqs: number, cap: number): number {
    const { nMax } = this.#options;
    if (this.#forced !== undefined) return this.#within(this.#forced, cap);
    if (!this.#chooses) {
      this.reason = cap < nMax ? "capped" : "fixed";
      return this.#within(nMax, cap);
    }
    if (this.isResting(nSeqs)) {
      this.#takeRest(nSeqs);
      return 0;
    }
    this.#countRest();
    const probed = this.#probing.length;
    if (probed !== undefined && this.#probeGoesOn(nSeqs, probed)) return this.#within(probed, cap);
    this.#restLeft = 0;
    const isSettled = this.#current === 0 && this.value.zeroFactor === 1 && nSeqs === this.#lastNSeqs;
    this.#adopt(nSeqs);
    this.#lastNSeqs = nSeqs;
    if (this.#current > 0) return this.#within(this.#tried(nSeqs, cap) ?? this.#current, cap);
    this.#trials.cancel();
    this.#maybeProbe(nSeqs);
    this.#restLength = isSettled ? Math.min(maxRestSteps, 2 * this.#restLength) : restSteps;
    if (this.#probing.length !== undefined) return this.#within(this.#probing.length, cap);
    const most = this.reason === "cannot-pay" ? maxRestSteps : Math.max(restSteps, this.stepsToProbe(nSeqs) - leadSteps);
    this.#restLeft = Math.min(this.#restLength, most) - 1;
    return 0;
  }

  #within(k: number, cap: number): number {
    return cap < k && cap < this.value.least ? 0 : Math.min(k, cap);
  }

  /** By what costs are known; else the length is the longest. */
  get #chooses(): boolean {
    return this.#options.mode === "adaptive" && this.value.table !== undefined;
  }

  /** The next step's graph is built anew whatever its length: a change is free. */
  noteBreak(): void {
    this.#lastNSeqs = 0;
    this.#restLeft = 0;
  }

  /** One sequence's verify. */
  note(nDraft: number, nAccepted: number): void {
    if (nDraft === 0) return;
    this.#countRest();
    this.value.acceptance.note(nDraft, nAccepted);
    if (this.#probing.note(nAccepted)) this.value.acceptance.weakenTo(4);
  }

  /**
   * Ends a step.
   * @param measuredMs what it took; undefined where that says nothing about this length with this table
   * @param isSteady its shape was that of the steps before it, so that its time refines the table
   */
  endStep(nSeqs: number, nDraft: number, measuredMs: number | undefined, isSteady = true): void {
    this.#probing.endStep(nDraft);
    this.#sinceCost++;
    if (measuredMs === undefined && this.isResting(nSeqs)) {
      this.#nRested++;
      return;
    }
    this.value.acceptance.endStep(nDraft);
    const isOrdinary = this.#sinceTrial++ > changedSteps;
    if (measuredMs === undefined) return;
    this.value.noteCost(nSeqs, nDraft, measuredMs, isSteady, isOrdinary, this.#sinceCost);
    this.#sinceCost = 0;
  }

  /** Acceptance ages by the steps of a rest before it is weighed again. */
  #countRest(): void {
    for (; this.#nRested > 0; this.#nRested--) this.value.acceptance.endStep(0);
  }

  #adopt(nSeqs: number): void {
    const { hysteresis, horizonSteps } = this.#options;
    const { value } = this;
    const table = value.table as CostTable;
    const best = value.best(nSeqs);
    this.reason = "hold";
    if (best === this.#current) return;
    const currentRate = value.worth(nSeqs, this.#current);
    const price = Math.min(maxPrice, table.changeMs / (horizonSteps * table.stepMs(nSeqs, best)));
    if (value.worth(nSeqs, best) > currentRate * (1 + hysteresis + price) || nSeqs !== this.#lastNSeqs) {
      this.reason = "best";
      this.#current = best;
      if (best > 0) this.#probing.startAnew();
    }
  }

  /** Another length than the one in force, for the moment of a trial. */
  #tried(nSeqs: number, cap: number): number | undefined {
    if (!this.mayTry) return undefined;
    const { value } = this;
    const table = value.table as CostTable;
    const worth = value.worth(nSeqs, this.#current);
    // Near a tie with length 0 what is tried may tip the choice, and that costs more than a better length wins.
    if (worth < value.rate(nSeqs, 0) * (1 + minPromise)) return undefined;
    const least = worth * (1 - trialMargin);
    const isWorthIt = (k: number): boolean => k !== this.#current && k >= value.least && table.nUses(nSeqs, k) < triedUses && value.worth(nSeqs, k) > least;
    const tried = this.#trials.next(nSeqs, Math.min(cap, this.#options.nMax), this.othersLength, isWorthIt);
    if (tried !== undefined) {
      this.reason = "trial";
      this.#sinceTrial = 0;
    }
    return tried;
  }

  #maybeProbe(nSeqs: number): void {
    const k = this.#probeLength(nSeqs);
    if (k === 0) {
      this.reason = "cannot-pay";
      return;
    }
    if (this.#probing.stepsLeft(this.#patience(nSeqs)) > 0) {
      this.reason = "idle-at-zero";
      return;
    }
    this.reason = "probe";
    this.#probing.start(k, this.value.acceptance.conditional(0));
  }

  /** Smallest length that pays if every draft is accepted; 0 if none does. */
  #probeLength(nSeqs: number): number {
    return this.value.shortestPaying(nSeqs, this.#options.hysteresis);
  }

  /** How many times longer probes are put off because even drafts that are all accepted would win little. */
  #patience(nSeqs: number): number {
    return this.value.table === undefined ? 1 : patienceFor(this.value.perfectGain(nSeqs));
  }

  #probeGoesOn(nSeqs: number, k: number): boolean {
    const { value } = this;
    const pays = value.worth(nSeqs, k) > value.rate(nSeqs, 0) * (1 + this.#options.hysteresis);
    return this.#probing.goesOn(value.breakEven(nSeqs, k), pays, this.#patience(nSeqs));
  }
}
