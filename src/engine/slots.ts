/**
 * Who waits, who runs where, and what clients are told: the queue, the slots and the outbox of events.
 * The engine decides what to decode; this table decides who takes part and turns tokens into events.
 */
import { UserError } from "../util/errors.ts";
import { Arrivals } from "./arrivals.ts";
import type { Backend } from "./backend.ts";
import type { EngineConfig } from "./config.ts";
import type { Drafter } from "./drafters/drafter.ts";
import { noSpread, spreadOf, type EndSpread, type RunningRequest } from "./end-spread.ts";
import type { EventSink } from "./loop.ts";
import { byUrgency, chooseSlot, reusableHistory, type FreeSlot } from "./placement.ts";
import { PromptCache, restoreSlot, saveSlot } from "./prompt-cache.ts";
import { unstartedEvent, whyNot } from "./refusal.ts";
import type { EngineEvent, FinishReason, GenerateRequest } from "./request.ts";
import { Sequence, type SequencePhase, type SequenceShape } from "./sequence.ts";
import type { EngineTotals } from "./totals.ts";

export interface Waiting {
  readonly request: GenerateRequest;
  readonly atMs: number;
}

export interface SlotDependencies {
  readonly backend: Backend;
  readonly config: EngineConfig;
  readonly drafter: Drafter | undefined;
  readonly shape: SequenceShape;
  readonly totals: EngineTotals;
  readonly sink: EventSink;
  readonly clock: () => number;
}

export class Slots {
  readonly sequences: readonly Sequence[];
  readonly #d: SlotDependencies;
  readonly #isEog: (token: number) => boolean;
  readonly #bytes: (token: number) => Uint8Array;
  totals: EngineTotals;
  readonly #byPhase: Record<SequencePhase, Sequence[]> = { idle: [], prefill: [], decode: [], ghost: [] };
  readonly #running: number[] = [];
  readonly #decoded: Sequence[] = [];
  /** Whether the slot of a request that ends goes on being decoded; the engine says so each step. */
  leavesGhosts = false;
  readonly #cache: PromptCache | undefined;
  /** Undefined: not asked for since the running requests changed. */
  #endSpread: EndSpread | undefined;
  #isStale = true;
  #queue: Waiting[] = [];
  #outbox: EngineEvent[] = [];
  arrivals = new Arrivals();

  constructor(dependencies: SlotDependencies) {
    this.#d = dependencies;
    const { backend, shape } = dependencies;
    this.totals = dependencies.totals;
    const { target } = backend;
    this.sequences = Array.from({ length: target.limits.nSeq }, (_, slot) => new Sequence(slot, target.samplingOf(slot), shape));
    const { cacheRamBytes } = dependencies.config;
    this.#cache = cacheRamBytes > 0 ? new PromptCache(cacheRamBytes) : undefined;
    this.#isEog = (token) => backend.isEndOfGeneration(token);
    this.#bytes = (token) => backend.tokenBytes(token);
  }

  /** With new counters, and nothing known of arrivals. */
  startAnew(totals: EngineTotals): void {
    this.totals = totals;
    this.arrivals = new Arrivals();
  }

  get nQueued(): number {
    return this.#queue.length;
  }

  get nFree(): number {
    return this.inPhase("idle").length + this.inPhase("ghost").length;
  }

  /** What a decode step decodes, by slot: decoding sequences and ghosts. Reused like the lists of `inPhase`. */
  get decoded(): readonly Sequence[] {
    if (this.#isStale) this.#sort();
    return this.#decoded;
  }

  /** Ghosts leave their slots. */
  dropGhosts(): void {
    for (const seq of this.inPhase("ghost")) this.#dropGhost(seq);
  }

  #dropGhost(seq: Sequence): void {
    seq.phase = "idle";
    this.#empty(seq);
    this.#isStale = true;
  }

  /** Sequences in a phase, by slot. The array is reused: do not keep it over a change of phase. */
  inPhase(phase: SequencePhase): readonly Sequence[] {
    if (this.#isStale) this.#sort();
    return this.#byPhase[phase];
  }

  /** Ids of the slots that have a request. Reused like the lists of `inPhase`. */
  get running(): readonly number[] {
    if (this.#isStale) this.#sort();
    return this.#running;
  }

  /** Which running requests would end together if nothing were drafted. */
  get endSpread(): EndSpread {
    if (this.#isStale) this.#sort();
    return (this.#endSpread ??= this.#spread());
  }

  #sort(): void {
    for (const list of Object.values(this.#byPhase)) list.length = 0;
    this.#running.length = 0;
    this.#decoded.length = 0;
    for (const seq of this.sequences) {
      const { phase, slot } = seq;
      this.#byPhase[phase].push(seq);
      if (phase === "prefill" || phase === "decode") this.#running.push(slot);
      if (phase === "decode" || phase === "ghost") this.#decoded.push(seq);
    }
    const { nSteps } = this.totals;
    this.#byPhase.prefill.sort((a, b) => byUrgency(a, b, nSteps));
    this.#endSpread = undefined;
    this.#isStale = false;
  }

  /** Tokens that the running requests may still have, on average. */
  meanTokensLeft(): number {
    let left = 0;
    for (const slot of this.running) {
      const { request, nOutput, nTokens } = this.sequences[slot] as Sequence;
      left += Math.max(0, Math.min((request?.maxTokens ?? 0) - nOutput, this.#d.shape.nCtxSeq - nTokens));
    }
    return this.running.length === 0 ? 0 : left / this.running.length;
  }

  #spread(): EndSpread {
    if (this.#d.drafter === undefined) return noSpread;
    const running = this.#running.map((slot): RunningRequest => {
      const { request, firstStep } = this.sequences[slot] as Sequence;
      return { maxTokens: (request as GenerateRequest).maxTokens, firstStep };
    });
    return spreadOf(running, this.arrivals.lengthShare);
  }

  submit(request: GenerateRequest): boolean {
    const now = this.#d.clock();
    const problem = whyNot(request, this.#d.shape, this.#d.config, this.sequences);
    if (problem !== undefined) {
      this.#outbox.push(unstartedEvent(request, "error", problem));
      return true;
    }
    if (this.#queue.length >= this.#d.config.maxQueue) return false;
    this.arrivals.noteArrival(now);
    this.#queue.push({ request, atMs: now });
    return true;
  }

  cancel(id: number): void {
    const at = this.#queue.findIndex((w) => w.request.id === id);
    if (at >= 0) {
      const [waiting] = this.#queue.splice(at, 1);
      this.#outbox.push(unstartedEvent((waiting as Waiting).request, "abort"));
      return;
    }
    const seq = this.sequences.find((s) => s.request?.id === id);
    if (seq !== undefined) this.finish(seq, "abort");
  }

  /** Requests that could have a slot but let its ghost go on until their prompts are read. */
  get nBehindGhosts(): number {
    return this.inPhase("ghost").length === 0 ? 0 : Math.min(this.#queue.length, this.nFree);
  }

  queued(i: number): Waiting {
    return this.#queue[i] as Waiting;
  }

  /** Gives free slots to waiting requests, in order; one whose kind of slot is busy does not hold up those behind it. */
  admit(): void {
    for (let i = 0; i < this.#queue.length && this.nFree > 0; ) {
      const waiting = this.#queue[i] as Waiting;
      if (this.#place(waiting)) this.#queue.splice(i, 1);
      else i++;
    }
  }

  #place({ request, atMs }: Waiting): boolean {
    const { totals } = this;
    const { clock, backend } = this.#d;
    const free = [...this.inPhase("ghost"), ...this.inPhase("idle")].map((s) => this.#freeSlot(s, request));
    const kept = chooseSlot(free, request);
    if (kept === undefined) return false;
    const isCaching = this.#d.config.cachePrompt && request.cachePrompt;
    const saved = isCaching ? this.#cache?.find(request.prompt, kept.nCached) : undefined;
    const slot = saved === undefined ? kept : (chooseSlot(free.map((s) => ({ ...s, nCached: 0 })), request) as FreeSlot);
    const seq = this.sequences[slot.slot] as Sequence;
    let grammar;
    try {
      grammar = request.grammar === undefined ? undefined : backend.createGrammar(request.grammar);
    } catch (error) {
      if (!(error instanceof UserError)) throw error;
      this.#outbox.push(unstartedEvent(request, "error", error.message));
      return true;
    }
    if (seq.phase === "ghost") this.#dropGhost(seq);
    let { nCached } = slot;
    if (nCached === 0 || saved !== undefined) {
      this.#vacate(seq);
      nCached = saved !== undefined && restoreSlot(saved, seq, backend.target, this.#d.drafter) ? saved.tokens.length : 0;
    }
    seq.begin(request, atMs, clock(), nCached, grammar);
    if (isCaching) seq.readUntil = this.#cache?.branchPoint(request.prompt, nCached) ?? seq.nPrompt;
    this.#isStale = true;
    totals.nRequests++;
    totals.nCachedTokens += nCached;
    this.#outbox.push({ kind: "start", id: request.id, slot: slot.slot, nCached });
    return true;
  }

  #freeSlot(seq: Sequence, request: GenerateRequest): FreeSlot {
    const isReuse = this.#d.config.cachePrompt && request.cachePrompt;
    // A ghost holds no text worth keeping, and counts as empty so that it is preferred: the shape stays.
    if (seq.phase === "ghost") return { slot: seq.slot, sampling: seq.sampling, nCached: 0, isEmpty: true };
    return { slot: seq.slot, sampling: seq.sampling, nCached: isReuse ? reusableHistory(seq.tokens, seq.nPast, request.prompt) : 0, isEmpty: seq.nPast === 0 };
  }

  /** A prompt chunk of these sequences was read. */
  noteServed(seqs: readonly Sequence[], step: number): void {
    for (const seq of seqs) seq.servedStep = step;
    this.#isStale = true;
  }

  /** Takes one token of a sequence. Hot. */
  push(seq: Sequence, token: number): boolean {
    if (seq.firstTokenMs === 0) seq.firstTokenMs = this.#d.clock();
    return seq.push(token, this.#isEog(token), this.#bytes);
  }

  /** The prompt is read: from now on the sequence decodes, unless its first token ended it. */
  startDecoding(seq: Sequence): void {
    seq.decodingSinceMs = this.#d.clock();
    seq.phase = "decode";
    this.#isStale = true;
  }

  /** Puts the step's tokens of a sequence into the outbox and ends it when it is done. */
  emit(seq: Sequence): void {
    if (seq.emitted.length > 0) {
      const { id } = seq.request as GenerateRequest;
      const tokens = seq.emitted;
      this.totals.nOutputTokens += tokens.length;
      this.#outbox.push(seq.logprobs.length > 0 ? { kind: "tokens", id, tokens, logprobs: seq.logprobs.slice(0, tokens.length) } : { kind: "tokens", id, tokens });
      seq.emitted = [];
      if (seq.logprobs.length > 0) seq.logprobs = [];
    }
    if (seq.finish !== undefined) this.finish(seq, seq.finish);
  }

  /** Ends a request in any phase, frees the slot and tells the client. */
  finish(seq: Sequence, reason: FinishReason, message?: string): void {
    const request = seq.request as GenerateRequest;
    const now = this.#d.clock();
    this.arrivals.noteFinish(now, reason === "length");
    const firstTokenMs = seq.firstTokenMs === 0 ? now : seq.firstTokenMs;
    this.#outbox.push({
      kind: "finish",
      id: request.id,
      reason,
      ...(seq.stopIndex >= 0 ? { stopString: request.stop[seq.stopIndex] as string } : {}),
      ...(message === undefined ? {} : { message }),
      usage: { nPrompt: seq.nPrompt, nCached: seq.nCached, nOutput: seq.nOutput },
      draft: seq.counts.snapshot(),
      timings: { queueMs: seq.startMs - seq.submittedMs, prefillMs: firstTokenMs - seq.startMs, decodeMs: now - firstTokenMs },
    });
    const isKept = this.#d.config.cachePrompt && request.cachePrompt && (reason === "stop" || reason === "length") && this.#keepHistory(seq);
    const isGhost = !isKept && this.leavesGhosts && seq.firstStep !== undefined && reason !== "error" && this.#keepHistory(seq);
    seq.end();
    if (isGhost) seq.haunt();
    else if (!isKept) this.#empty(seq);
    this.#isStale = true;
  }

  /** Rolls the contexts back to what is known text, so that a prompt that extends it can go on from here. */
  #keepHistory(seq: Sequence): boolean {
    const nKnown = Math.min(seq.nPast, seq.nTokens);
    const { target } = this.#d.backend;
    if (target.lastPosition(seq.slot) >= nKnown && !target.removeFrom(seq.slot, nKnown)) return false;
    seq.nPast = nKnown;
    seq.headPast = Math.min(seq.headPast, nKnown);
    return nKnown > 0;
  }

  /** The prompt is read up to a point worth keeping: saves the state there; the rest is read next. */
  checkpoint(seq: Sequence): void {
    this.#save(seq);
    seq.readUntil = seq.nPrompt;
  }

  #save(seq: Sequence): void {
    const cache = this.#cache;
    if (cache !== undefined && !cache.has(seq.tokens.subarray(0, seq.nPast))) cache.add(saveSlot(seq, this.#d.backend.target, this.#d.drafter));
  }

  /** Makes room for another text; the history that was kept here is saved where there is a cache. */
  #vacate(seq: Sequence): void {
    if (seq.nPast === 0) return;
    this.#save(seq);
    this.#empty(seq);
  }

  #empty(seq: Sequence): void {
    this.#d.backend.target.clear(seq.slot);
    this.#d.drafter?.release(seq);
    seq.nPast = 0;
    seq.headPast = 0;
    seq.ring?.reset();
  }

  /** Sends the outbox. */
  flush(): void {
    if (this.#outbox.length === 0) return;
    const events = this.#outbox;
    this.#outbox = [];
    this.#d.sink(events);
  }
}
