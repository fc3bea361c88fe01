/**
 * The engine: many sequences, one step at a time.
 *
 *   schedule -> draft -> decode -> verify -> rollback -> emit
 *
 * Plain decoding is a draft of length 0 by the same verifier. Decisions are pure functions (scheduler, gate, verify,
 * placement, prefill plan); this file makes the parts and calls them in order, `decode-step.ts` for a step of decoding.
 * `slots.ts` knows who takes part and what clients are told.
 */
import { Rng } from "../util/rng.ts";
import { DecodeError, type Backend, type DecodeContext } from "./backend.ts";
import type { EngineConfig } from "./config.ts";
import { ContextChoice } from "./context-choice.ts";
import { Crowd } from "./crowd.ts";
import { DecodeStep } from "./decode-step.ts";
import { createDrafter } from "./drafters/create.ts";
import type { Drafter } from "./drafters/drafter.ts";
import { Gate, minPromise } from "./gate.ts";
import type { FreshHidden } from "./head-feed.ts";
import { HiddenReading } from "./hidden-reading.ts";
import type { EngineDependencies } from "./dependencies.ts";
import type { EngineLoop } from "./loop.ts";
import type { PrefillChunk } from "./prefill-plan.ts";
import type { EngineInfo, EngineSnapshot, GenerateRequest } from "./request.ts";
import { checkIntegrity, snapshotOf } from "./inspection.ts";
import { Planner } from "./planner.ts";
import type { Sequence } from "./sequence.ts";
import { ShapeHold } from "./shape-hold.ts";
import { Slots } from "./slots.ts";
import { StepMeter } from "./step-meter.ts";
import { TargetPair } from "./target-pair.ts";
import { TargetSampler } from "./target-sampler.ts";
import { Tier } from "./tier.ts";
import { EngineTotals } from "./totals.ts";
import { Verifier } from "./verifier.ts";

export class Engine implements EngineLoop {
  readonly info: EngineInfo;
  readonly gate: Gate;
  readonly slots: Slots;
  totals: EngineTotals;
  readonly meter: StepMeter;
  readonly planner: Planner;
  readonly tier: Tier;
  readonly shape = new ShapeHold();
  readonly #backend: Backend;
  readonly #target: DecodeContext;
  readonly #config: EngineConfig;
  readonly #drafter: Drafter | undefined;
  readonly #verifier: Verifier;
  readonly #sampler: TargetSampler;
  readonly #clock: () => number;
  readonly #memory: NonNullable<EngineDependencies["memory"]>;
  readonly #hasHead: boolean;
  readonly #choosesContext: boolean;
  readonly #rng: Rng;
  readonly #crowd: Crowd;
  readonly #contextChoice: ContextChoice;
  readonly #decodeStep: DecodeStep;

  /** The device works: time to send what the last step produced. */
  readonly #launched = (): void => {
    if (this.#backend.description.isAsynchronous) this.slots.flush();
  };

  constructor(dependencies: EngineDependencies) {
    const { backend, config } = dependencies;
    const pair = backend.plainTarget === undefined ? undefined : new TargetPair(backend.target, backend.plainTarget, backend.staging);
    this.#target = pair ?? backend.target;
    this.#backend = { ...backend, target: this.#target };
    this.#config = config;
    const hiddenReading = new HiddenReading(backend.description.isAsynchronous);
    this.#clock = dependencies.clock ?? (() => performance.now());
    this.#crowd = new Crowd(dependencies.crowd, this.#clock);
    this.#memory = dependencies.memory ?? (() => ({ rssBytes: 0, deviceUsedBytes: undefined }));
    this.#drafter = dependencies.drafter ?? createDrafter(backend, config, this.#clock);
    this.#rng = new Rng(config.seed);
    this.#hasHead = this.#drafter !== undefined && backend.heads.length > 0;
    const { limits, nEmbd } = this.#target;
    const nMax = this.#drafter === undefined ? 0 : config.nMax;
    // Unified KV would let one slot take all cells; an equal share each means that no decode ever lacks room.
    const nCtxSeq = Math.min(limits.nCtxSeq, Math.floor(limits.nCells / limits.nSeq));
    this.totals = new EngineTotals(nMax);
    this.gate = new Gate({ mode: config.gate, nMax, nMin: config.nMin });
    this.gate.samplesCost = !backend.description.isAsynchronous;
    this.#choosesContext = this.#drafter !== undefined && config.gate === "adaptive";
    this.slots = new Slots({
      backend: this.#backend,
      config,
      drafter: this.#drafter,
      shape: { nCtxSeq, nMax, nRingRows: this.#hasHead ? Math.min(config.nRingRows, nCtxSeq) : 0, nEmbd },
      totals: this.totals,
      sink: dependencies.sink,
      clock: this.#clock,
    });
    this.gate.value.endSpread = () => this.slots.endSpread;
    this.tier = new Tier(pair, dependencies.costClock ?? this.#clock);
    this.planner = new Planner({ slots: this.slots, gate: this.gate, target: this.#target, config, clock: this.#clock });
    if (this.#hasHead) this.#target.setHiddenOutput(true);
    this.#sampler = new TargetSampler(this.#target);
    this.#verifier = this.#createVerifier();
    this.#contextChoice = new ContextChoice({
      slots: this.slots,
      gate: this.gate,
      tier: this.tier,
      hiddenReading,
      readHidden: (isRead) => {
        if (!this.#hasHead) return;
        this.#target.setHiddenOutput(isRead);
        this.#verifier.keepsHidden = isRead;
      },
      clock: this.#clock,
    });
    this.meter = new StepMeter({
      backend: this.#backend,
      clock: this.#clock,
      verifyTimes: this.#verifier.times,
      draftTimes: this.#drafter?.times,
      trace: dependencies.trace,
      costClock: dependencies.costClock ?? this.#clock,
    });
    this.#decodeStep = new DecodeStep({
      slots: this.slots,
      gate: this.gate,
      tier: this.tier,
      meter: this.meter,
      planner: this.planner,
      shape: this.shape,
      verifier: this.#verifier,
      drafter: this.#drafter,
      heads: backend.heads,
      hasHead: this.#hasHead,
      hiddenReading,
      contextChoice: this.#contextChoice,
      crowd: this.#crowd,
      rng: this.#rng,
      syntheticRates: config.syntheticRates,
      launched: this.#launched,
      refused: (seqs, error) => this.#refused(seqs, error),
    });
    const { device, library, modelPath, headPaths } = backend.description;
    const { loadMs = 0, loadedBytes = 0 } = dependencies;
    this.info = { nSlots: limits.nSeq, nCtxSeq, nVocab: this.#target.nVocab, nMax, device, library, modelPath, headPaths, loadMs, loadedBytes };
  }

  submit(request: GenerateRequest): boolean {
    return this.slots.submit(request);
  }

  cancel(id: number): void {
    this.slots.cancel(id);
  }

  step(): boolean {
    const isBatched = this.#config.verify === "batched";
    const leavesLast = this.#config.decodeLast && isBatched;
    if (this.slots.inPhase("ghost").length === 0) this.slots.admit();
    this.#crowd.look(this.slots.running.length > 0);
    this.gate.isCrowded = this.#crowd.isCrowded;
    this.gate.value.companyPromise = this.#crowd.othersRest ? minPromise : 0;
    this.gate.changePromise = this.#crowd.othersDraft ? 0 : minPromise;
    this.gate.othersLength = this.#crowd.othersLength;
    if (this.#choosesContext && !this.#isResting()) this.#contextChoice.choose();
    if (this.#config.holdShape && isBatched) this.shape.holdGhosts(this.slots, this.#clock(), this.info.nMax);
    if (leavesLast) this.shape.leaveLast(this.slots);
    const { nBehindGhosts } = this.slots;
    let plan = this.planner.plan(nBehindGhosts);
    if (plan.kind === "prefill" && nBehindGhosts > 0) {
      this.slots.admit();
      if (leavesLast) this.shape.leaveLast(this.slots);
      plan = this.planner.plan();
    }
    switch (plan.kind) {
      case "idle":
        this.slots.flush();
        return false;
      case "gather":
        // Whoever is waited for must know that the request before has ended.
        this.slots.flush();
        return true;
      case "prefill":
        this.#prefill(plan.chunk);
        break;
      case "decode":
        this.#decodeStep.run();
        break;
      default:
        plan satisfies never;
    }
    // On a device that runs on its own the next decode is launched first (`launched` below).
    if (!this.#backend.description.isAsynchronous) this.slots.flush();
    return true;
  }

  /** The gate rests, and no prompt is about to be read, for which a change of contexts would be free. */
  #isResting(): boolean {
    return this.gate.isResting(this.slots.decoded.length) && this.slots.inPhase("prefill").length === 0;
  }

  /** Reads `chunk.length` prompt rows of each member; a member whose prompt is complete gets its first token. */
  #prefill(chunk: PrefillChunk): void {
    const prefilling = this.slots.inPhase("prefill");
    const nStreaming = this.planner.nStreaming();
    const nWaiting = prefilling.length;
    const seqs = chunk.members.map((i) => prefilling[i] as Sequence);
    this.meter.begin("prefill", seqs, chunk.length, 0, "prompt");
    this.#crowd.reads();
    let fresh: ReadonlyMap<Sequence, FreshHidden>;
    try {
      fresh = this.#verifier.readPrompt(seqs, chunk.length);
    } catch (error) {
      this.#refused(seqs, error);
      return;
    }
    this.slots.noteServed(seqs, this.totals.nSteps + 1);
    for (const [i, seq] of seqs.entries()) {
      const { position } = fresh.get(seq) as FreshHidden;
      this.totals.nPromptTokens += seq.nPast - position;
      if (seq.nPrefillLeft > 0 || seq.readUntil < seq.nPrompt) continue;
      this.slots.startDecoding(seq);
      if (seq.leavesLast) {
        this.totals.nPromptTokens++;
        continue;
      }
      this.slots.push(seq, this.#sampler.sample(seq, i * chunk.length + seq.nPrompt - 1 - position));
    }
    // First tokens leave before the head reads the prompts.
    for (const seq of seqs) this.slots.emit(seq);
    this.slots.flush();
    const hasRows = this.#verifier.keepsHidden || !this.#hasHead;
    if (hasRows) this.#drafter?.afterPrefill(seqs.filter((s) => s.phase !== "idle"), fresh, this.gate.isDrafting);
    for (const seq of seqs) if (seq.phase === "prefill" && seq.nPrefillLeft === 0) this.slots.checkpoint(seq);
    this.meter.end();
    this.totals.nSteps++;
    this.totals.prefillMs += this.meter.totalMs;
    if (!seqs.some((seq) => seq.leavesLast)) this.gate.noteBreak();
    this.planner.notePrefill(this.meter.totalMs, nStreaming, nWaiting);
  }

  #createVerifier(): Verifier {
    const rates = this.#config.syntheticRates;
    return new Verifier(
      this.#target,
      this.#config.verify,
      {
        sample: (seq, row) => this.#sampler.sample(seq, row),
        push: (seq, token) => {
          this.meter.nEmitted++;
          return this.slots.push(seq, token);
        },
        launched: this.#launched,
        verified: (seq, nDraft, nAccepted) => {
          this.meter.nAccepted += nAccepted;
          seq.counts.add(nDraft, nAccepted);
          this.totals.draft.add(nDraft, nAccepted);
          this.gate.note(nDraft, nAccepted);
        },
        synthetic: rates === undefined ? undefined : { rates, uniform: () => this.#rng.uniform() },
        clock: this.#clock,
      },
      this.#hasHead,
    );
  }

  /** Native work of a step failed. A decode that libllama refuses ends its requests with an error, after what was written; a lost backend is thrown on. */
  #refused(seqs: readonly Sequence[], error: unknown): void {
    if (!(error instanceof DecodeError) || error.code < -1) throw error;
    this.slots.leavesGhosts = false;
    this.slots.dropGhosts();
    for (const seq of seqs) {
      if (seq.request === undefined) continue;
      this.slots.emit(seq);
      // The step may have ended it before the refusal.
      if (seq.request !== undefined) this.slots.finish(seq, "error", error.message);
    }
    this.slots.flush();
  }

  /** Starts the counters anew, after calibration. */
  resetTotals(): void {
    this.totals = new EngineTotals(this.info.nMax);
    this.slots.startAnew(this.totals);
    this.planner.reset();
  }

  snapshot(): EngineSnapshot {
    return { ...snapshotOf(this.slots, this.totals, this.gate.reason), ...this.#memory(), isSynthetic: this.#config.syntheticRates !== undefined };
  }

  checkIntegrity(): void {
    checkIntegrity(this.slots.sequences, this.#target, this.#backend.heads, this.#config.nMax);
  }

  close(): void {
    this.#backend.close();
  }
}
