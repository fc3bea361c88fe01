/**
 * A slot and the request that runs in it. All arrays are made once per slot; a request only resets counters.
 *
 * Positions: `tokens[p]` is the token at position p. The target has decoded positions 0..nPast-1. In the decode phase one
 * token more is known than decoded: tokens[nPast], sampled but not yet decoded. The head holds positions 0..headPast-1.
 */
import { StopMatcher } from "../util/stop-strings.ts";
import type { Grammar, SlotSampling } from "./backend.ts";
import { DraftCounts } from "./draft-counts.ts";
import { HiddenRing } from "./hidden-ring.ts";
import type { FinishReason, GenerateRequest, TokenLogprob } from "./request.ts";
import { createSamplerState, isPlainGreedy, noteToken, type SamplerState } from "./sampler.ts";

/** "ghost": without a request, decoded on to keep the batch's shape (shape-hold.ts). */
export type SequencePhase = "idle" | "prefill" | "decode" | "ghost";

/** What a slot needs to know about the engine that owns it. */
export interface SequenceShape {
  readonly nCtxSeq: number;
  readonly nMax: number;
  /** Hidden rows kept for the head; 0 without a head. */
  readonly nRingRows: number;
  readonly nEmbd: number;
}

const encoder = new TextEncoder();

export class Sequence {
  readonly slot: number;
  readonly sampling: SlotSampling;
  readonly tokens: Int32Array;
  readonly draft: Int32Array;
  readonly ring: HiddenRing | undefined;
  readonly #shape: SequenceShape;

  request: GenerateRequest | undefined;
  phase: SequencePhase = "idle";
  nPrompt = 0;
  nCached = 0;
  /** Prompt rows are read up to here; below nPrompt when a state is to be saved on the way. */
  readUntil = 0;
  /** The prompt's last token is not read but left to the first decode step as its pending token. */
  leavesLast = false;
  /** The step that decoded it first: since then it is part of the batch's shape. */
  firstStep: number | undefined;
  /** What decoding on as a ghost has cost. */
  ghostMs = 0;
  nPast = 0;
  nTokens = 0;
  headPast = 0;
  nOutput = 0;
  /** Most drafts that may be accepted a step. */
  nMax = 0;
  isPlainGreedy = true;
  sampler: SamplerState | undefined;
  grammar: Grammar | undefined;
  stops: StopMatcher | undefined;
  counts: DraftCounts;
  finish: FinishReason | undefined;
  stopIndex = -1;
  /** Tokens of the running step, taken by the event of that step. */
  emitted: number[] = [];
  logprobs: TokenLogprob[] = [];
  /** Step in which a prompt chunk was read last; 0 before the first. */
  servedStep = 0;
  submittedMs = 0;
  startMs = 0;
  decodingSinceMs = 0;
  firstTokenMs = 0;

  constructor(slot: number, sampling: SlotSampling, shape: SequenceShape) {
    this.slot = slot;
    this.sampling = sampling;
    this.#shape = shape;
    this.tokens = new Int32Array(shape.nCtxSeq + shape.nMax + 2);
    this.draft = new Int32Array(Math.max(1, shape.nMax));
    this.ring = shape.nRingRows > 0 ? new HiddenRing(shape.nRingRows, shape.nEmbd) : undefined;
    this.counts = new DraftCounts(shape.nMax);
  }

  /** Takes a request. `nCached` positions of its prompt are in the contexts already. */
  begin(request: GenerateRequest, submittedMs: number, nowMs: number, nCached: number, grammar: Grammar | undefined): void {
    this.request = request;
    this.phase = "prefill";
    this.tokens.set(request.prompt);
    this.nPrompt = request.prompt.length;
    this.nTokens = this.nPrompt;
    this.nCached = nCached;
    this.readUntil = this.nPrompt;
    this.leavesLast = false;
    this.firstStep = undefined;
    this.nPast = nCached;
    if (nCached === 0) {
      this.headPast = 0;
      this.ring?.reset();
    }
    this.nOutput = 0;
    this.nMax = Math.min(this.#shape.nMax, request.nMax ?? this.#shape.nMax);
    this.isPlainGreedy = isPlainGreedy(request.sampling) && request.grammar === undefined && request.nLogprobs === undefined;
    this.sampler = createSamplerState(request.sampling);
    for (const token of request.prompt) noteToken(this.sampler, token);
    this.grammar = grammar;
    this.stops = request.stop.length > 0 ? new StopMatcher(request.stop.map((s) => encoder.encode(s))) : undefined;
    this.counts = new DraftCounts(this.#shape.nMax);
    this.finish = undefined;
    this.stopIndex = -1;
    this.emitted = [];
    this.logprobs = [];
    this.servedStep = 0;
    this.submittedMs = submittedMs;
    this.startMs = nowMs;
    this.decodingSinceMs = 0;
    this.firstTokenMs = 0;
  }

  /** Leaves the slot without a request. What the contexts hold is the caller's matter. */
  end(): void {
    this.grammar?.close();
    this.grammar = undefined;
    this.request = undefined;
    this.sampler = undefined;
    this.phase = "idle";
  }

  /** After its end: decoded on from what the contexts hold, with any token. */
  haunt(): void {
    this.phase = "ghost";
    this.ghostMs = 0;
    this.tokens[this.nPast] = this.tokens[this.nPast - 1] as number;
    this.nTokens = this.nPast + 1;
    this.emitted = [];
  }

  /** A ghost's step: one row is kept. */
  drift(): void {
    this.nPast++;
    this.tokens[this.nPast] = this.tokens[this.nPast - 1] as number;
    this.nTokens++;
  }

  /** Prompt rows to read before the next thing happens; > 0 in the prefill phase. */
  get nPrefillLeft(): number {
    return this.readUntil - this.nPast - (this.leavesLast && this.readUntil === this.nPrompt ? 1 : 0);
  }

  /** Drafts for which the context still has positions: the pending token and k drafts need k + 1. */
  get draftRoom(): number {
    return this.#shape.nCtxSeq - this.nPast - 1;
  }

  /**
   * Takes the next token of the text and decides whether the request goes on. Hot.
   * @returns false when this token ends the request
   */
  push(token: number, isEndOfGeneration: boolean, tokenBytes: (token: number) => Uint8Array): boolean {
    const request = this.request as GenerateRequest;
    if (isEndOfGeneration && !request.ignoreEos) {
      this.finish = "stop";
      return false;
    }
    this.tokens[this.nTokens++] = token;
    this.nOutput++;
    this.emitted.push(token);
    noteToken(this.sampler as SamplerState, token);
    this.grammar?.accept(token);
    if (this.stops !== undefined) {
      this.stopIndex = this.stops.push(tokenBytes(token));
      if (this.stopIndex >= 0) {
        this.finish = "stop";
        return false;
      }
    }
    // The token at index nCtxSeq would need a position that does not exist.
    if (this.nOutput >= request.maxTokens || this.nTokens > this.#shape.nCtxSeq) {
      this.finish = "length";
      return false;
    }
    return true;
  }
}
