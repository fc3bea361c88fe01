/**
 * Times one step and writes its trace record. Clocks are read here and in the parts it is given; nowhere else.
 */
import type { Backend } from "./backend.ts";
import type { DraftTimes } from "./drafters/drafter.ts";
import type { Sequence } from "./sequence.ts";
import { predictForwards, splitOptionsOf } from "./split.ts";
import { whyNotReused, type StepRecord, type TraceSink } from "./trace.ts";
import type { VerifyTimes } from "./verifier.ts";

export interface StepMeterOptions {
  readonly backend: Backend;
  readonly clock: () => number;
  readonly costClock: () => number;
  readonly verifyTimes: VerifyTimes;
  readonly draftTimes: DraftTimes | undefined;
  readonly trace: TraceSink | undefined;
}

export class StepMeter {
  readonly #o: StepMeterOptions;
  readonly #originMs: number;
  #startMs = 0;
  #startCostMs = 0;
  #kind: "prefill" | "decode" = "decode";
  #nSeqs = 0;
  #nGhosts = 0;
  #width = 0;
  #why = "";
  #step = 0;
  #last: StepRecord | undefined;
  /** Slots of the step and of the one before; kept for the trace alone. */
  #slots = "";
  #lastSlots = "";
  /** What a step must have in common with the one before to be like it. */
  readonly #lastShape = { kind: "", nSeqs: 0, width: 0, nRollback: 0 };
  #reusedTarget = 0;
  #reusedHead = 0;
  /** Draft length of the running or last step. */
  nDraft = 0;
  /** Time of the last step. */
  totalMs = 0;
  /** The same on the cost clock; on the other where the cost was not asked for. */
  costMs = 0;
  /**
   * True when the step's cost was asked for, it repeated the shape of the two before and the target's graph was reused: its
   * time says what such a step costs. The second of a shape does not, a GPU captures its graph then.
   */
  isSteady = false;
  /** Asked for: the processor's time and libllama's counters take some microseconds to read, and most steps at rest need neither. */
  #isCostWanted = true;
  /** `#nReused` is the count at the step's start. */
  #isCountKnown = false;
  #nAlike = 0;
  #nReused = 0;
  #hasReuse = false;
  nEmitted = 0;
  nAccepted = 0;

  constructor(options: StepMeterOptions) {
    this.#o = options;
    this.#originMs = options.clock();
  }

  begin(kind: "prefill" | "decode", seqs: readonly Sequence[], width: number, nDraft: number, why: string, isCostWanted = true): void {
    this.#startMs = this.#o.clock();
    this.#isCostWanted = isCostWanted;
    if (isCostWanted) {
      this.#startCostMs = this.#o.costClock();
      if (!this.#isCountKnown) this.#nReused = this.#o.backend.target.counters().nReusedGraphs;
    }
    this.#kind = kind;
    this.#nSeqs = seqs.length;
    this.#nGhosts = 0;
    for (const seq of seqs) if (seq.phase === "ghost") this.#nGhosts++;
    this.#width = width;
    this.#why = why;
    this.nDraft = nDraft;
    this.nEmitted = 0;
    this.nAccepted = 0;
    const { verifyTimes, draftTimes } = this.#o;
    verifyTimes.decodeMs = verifyTimes.nDecodes = verifyTimes.nRows = verifyTimes.nOutputs = 0;
    if (draftTimes !== undefined) draftTimes.processMs = draftTimes.nProcessCalls = draftTimes.generateMs = draftTimes.nGenerateCalls = draftTimes.nRowsLost = 0;
    if (this.#o.trace !== undefined) this.#slots = seqs.map((s) => s.slot).join(",");
  }

  /** The draft came out shorter than wanted. */
  drafted(nDraft: number): void {
    this.nDraft = nDraft;
    this.#width = nDraft + 1;
  }

  end(): void {
    this.totalMs = this.#o.clock() - this.#startMs;
    this.#nAlike = this.#isLikeLast() ? this.#nAlike + 1 : 0;
    if (this.#isCostWanted) this.#noteCost();
    else {
      this.costMs = this.totalMs;
      this.isSteady = false;
    }
    this.#isCountKnown = this.#isCostWanted;
    this.#step++;
    if (this.#o.trace !== undefined) this.#record(this.#o.trace);
  }

  #noteCost(): void {
    this.costMs = this.#o.costClock() - this.#startCostMs;
    const { nReusedGraphs } = this.#o.backend.target.counters();
    const isReused = nReusedGraphs > this.#nReused;
    this.#nReused = nReusedGraphs;
    this.#hasReuse ||= isReused;
    this.isSteady = this.#nAlike >= 2 && (isReused || !this.#hasReuse);
  }

  /** Compares the shape of this step with the last one's, and keeps it. */
  #isLikeLast(): boolean {
    const last = this.#lastShape;
    const { nRollback } = this.#o.backend.target.limits;
    const isLike = last.kind === this.#kind && last.nSeqs === this.#nSeqs && last.width === this.#width && last.nRollback === nRollback;
    last.kind = this.#kind;
    last.nSeqs = this.#nSeqs;
    last.width = this.#width;
    last.nRollback = nRollback;
    return isLike;
  }

  #record(trace: TraceSink): void {
    const { backend, verifyTimes, draftTimes } = this.#o;
    const { target } = backend;
    const reusedTarget = target.counters().nReusedGraphs;
    const reusedHead = backend.heads.reduce((n, head) => n + head.counters().nReusedGraphs, 0);
    const slots = this.#slots.split(",").map((slot): [number, number] => [Number(slot), this.#width]);
    const nForwards = verifyTimes.nDecodes > 1 ? verifyTimes.nDecodes : predictForwards(slots, splitOptionsOf(target.limits)).length;
    const processMs = draftTimes?.processMs ?? 0;
    const generateMs = draftTimes?.generateMs ?? 0;
    const record: StepRecord = {
      step: this.#step,
      atMs: this.#startMs + this.totalMs - this.#originMs,
      kind: this.#kind,
      nSeqs: this.#nSeqs,
      nGhosts: this.#nGhosts,
      nRowsEach: this.#width,
      nDraft: this.#kind === "prefill" ? 0 : this.nDraft,
      why: this.#why,
      nDecodes: verifyTimes.nDecodes,
      nRows: verifyTimes.nRows,
      nOutputs: verifyTimes.nOutputs,
      nForwards,
      nEmitted: this.nEmitted,
      nAccepted: this.nAccepted,
      processMs,
      generateMs,
      verifyMs: verifyTimes.decodeMs,
      ownMs: Math.max(0, this.totalMs - processMs - generateMs - verifyTimes.decodeMs),
      totalMs: this.totalMs,
      nProcessCalls: draftTimes?.nProcessCalls ?? 0,
      nGenerateCalls: draftTimes?.nGenerateCalls ?? 0,
      nReusedTarget: reusedTarget - this.#reusedTarget,
      nReusedHead: reusedHead - this.#reusedHead,
      notReused: "",
    };
    this.#reusedTarget = reusedTarget;
    this.#reusedHead = reusedHead;
    const sameSequences = this.#lastSlots === this.#slots;
    this.#lastSlots = this.#slots;
    const finished = { ...record, notReused: whyNotReused(record, this.#last, sameSequences) };
    this.#last = finished;
    trace(finished);
  }
}
