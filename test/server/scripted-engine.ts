/**
 * An EngineLoop driven by the prompt itself: the text after the last "@@" says what to answer. It accepts several
 * tokens a step in a fixed pattern, and has no clock: a step is a millisecond of the timings.
 *
 *   @@say TEXT        answers TEXT and ends          @@repeat N TEXT   N times TEXT
 *   @@forever TEXT    ends with the context          @@request         answers the request it got, as JSON
 *   @@hold TEXT       answers TEXT and goes on without a token until it is cancelled
 *   @@grammar         answers the grammar it got, as base64
 *   @@error TEXT      answers "partial" and fails    @@abort, @@hang, @@lost   end the process in three ways
 */
import type { EngineLoop, EventSink } from "../../src/engine/loop.ts";
import type { DraftStats, EngineEvent, EngineInfo, EngineSnapshot, FinishReason, GenerateRequest } from "../../src/engine/request.ts";
import { StopMatcher } from "../../src/util/stop-strings.ts";
import { request } from "../request.ts";
import { byteTokenizer, FIRST_SPECIAL, IM_END, specialTexts } from "./byte-tokenizer.ts";

/** A request whose prompt is the script. */
export function scriptRequest(id: number, script: string, more: Partial<GenerateRequest> = {}): GenerateRequest {
  return request(id, byteTokenizer.tokenize(`@@${script}`, { addSpecial: false, parseSpecial: false }), { maxTokens: 1000, ...more });
}

export interface ScriptedOptions {
  readonly nSlots?: number;
  readonly nCtxSeq?: number;
  readonly nMax?: number;
  readonly maxQueue?: number;
  /** Drafts accepted in step i of a request, before cutting to the draft length. */
  readonly accepts?: readonly number[];
}

/** What a script gives instead of a token: the end by an error, or no token in this step. */
const FAILS = -1;
const HOLDS = -2;

interface Sequence {
  readonly request: GenerateRequest;
  readonly slot: number;
  readonly script: Iterator<number>;
  readonly stops: StopMatcher;
  phase: "prefill" | "decode";
  nOutput: number;
  nSteps: number;
  readonly draft: { nDrafts: number; nDrafted: number; nAccepted: number; acceptedAt: number[]; reachedAt: number[] };
}

const emptyDraft = (nMax: number): Sequence["draft"] => ({
  nDrafts: 0,
  nDrafted: 0,
  nAccepted: 0,
  acceptedAt: Array.from({ length: nMax }, () => 0),
  reachedAt: Array.from({ length: nMax }, () => 0),
});

export class ScriptedEngine implements EngineLoop {
  readonly info: EngineInfo;
  readonly #options: Required<ScriptedOptions>;
  readonly #sink: EventSink;
  readonly #queue: GenerateRequest[] = [];
  readonly #slots: (Sequence | undefined)[];
  readonly #totals = { nSteps: 0, nPromptTokens: 0, nOutputTokens: 0, nRequests: 0 };
  readonly #stepsAtK: number[];
  readonly #draft: Sequence["draft"];
  #events: EngineEvent[] = [];
  #rowShape = "";
  #nDraftNow = 0;

  constructor(options: ScriptedOptions, sink: EventSink) {
    this.#options = { nSlots: 4, nCtxSeq: 4096, nMax: 3, maxQueue: 10_000, accepts: [3, 0, 2, 1], ...options };
    this.#sink = sink;
    this.#slots = Array.from({ length: this.#options.nSlots }, () => undefined);
    this.#stepsAtK = Array.from({ length: this.#options.nMax + 1 }, () => 0);
    this.#draft = emptyDraft(this.#options.nMax);
    const { nSlots, nCtxSeq, nMax } = this.#options;
    this.info = { nSlots, nCtxSeq, nVocab: byteTokenizer.nVocab, nMax, device: "script", library: "scripted", modelPath: "scripted.gguf", headPaths: [], loadMs: 0, loadedBytes: 0 };
  }

  submit(request: GenerateRequest): boolean {
    if (this.#queue.length >= this.#options.maxQueue) return false;
    this.#queue.push(request);
    return true;
  }

  cancel(id: number): void {
    const waiting = this.#queue.findIndex((request) => request.id === id);
    if (waiting >= 0) this.#finishWaiting(this.#queue.splice(waiting, 1)[0] as GenerateRequest);
    const sequence = this.#slots.find((s) => s?.request.id === id);
    if (sequence !== undefined) this.#finish(sequence, "abort");
  }

  step(): boolean {
    this.#totals.nSteps++;
    this.#admit();
    const decoding = this.#slots.filter((s) => s?.phase === "decode") as Sequence[];
    this.#nDraftNow = decoding.length === 0 ? 0 : Math.max(...decoding.map((s) => this.#nMaxOf(s)));
    if (decoding.length > 0) {
      this.#rowShape = `${decoding.length} seq x ${this.#nDraftNow + 1} rows`;
      this.#stepsAtK[this.#nDraftNow] = (this.#stepsAtK[this.#nDraftNow] ?? 0) + 1;
    }
    for (const sequence of this.#slots) if (sequence !== undefined) this.#advance(sequence);
    const events = this.#events;
    this.#events = [];
    this.#sink(events);
    return this.#queue.length > 0 || this.#slots.some((s) => s !== undefined);
  }

  #admit(): void {
    for (let slot = 0; slot < this.#slots.length && this.#queue.length > 0; slot++) {
      if (this.#slots[slot] !== undefined) continue;
      const request = this.#queue.shift() as GenerateRequest;
      const stops = new StopMatcher(request.stop.map((text) => new TextEncoder().encode(text)));
      this.#slots[slot] = { request, slot, script: scriptOf(request), stops, phase: "prefill", nOutput: 0, nSteps: 0, draft: emptyDraft(this.#options.nMax) };
      this.#totals.nRequests++;
      this.#totals.nPromptTokens += request.prompt.length;
      this.#events.push({ kind: "start", id: request.id, slot, nCached: 0 });
    }
  }

  #nMaxOf(sequence: Sequence): number {
    return Math.min(this.#options.nMax, sequence.request.nMax ?? this.#options.nMax);
  }

  #advance(sequence: Sequence): void {
    if (sequence.phase === "prefill") {
      sequence.phase = "decode";
      return;
    }
    const { accepts, nCtxSeq } = this.#options;
    const nDrafted = this.#nMaxOf(sequence);
    const nAccepted = Math.min(nDrafted, accepts[sequence.nSteps++ % accepts.length] ?? 0);
    const tokens: number[] = [];
    let end: { reason: FinishReason; stopString?: string; message?: string } | undefined;
    while (tokens.length <= nAccepted && end === undefined) {
      const nPast = sequence.request.prompt.length + sequence.nOutput + tokens.length;
      if (nPast >= nCtxSeq) end = { reason: "length" };
      else {
        const token = this.#nextToken(sequence);
        if (token === HOLDS) break;
        if (token === FAILS) end = { reason: "error", message: "the script says so" };
        else if (byteTokenizer.isEndOfGeneration(token) && !sequence.request.ignoreEos) end = { reason: "stop" };
        else {
          tokens.push(token);
          const stop = sequence.stops.push(byteTokenizer.tokenBytes(token, false));
          if (stop >= 0) end = { reason: "stop", stopString: sequence.request.stop[stop] as string };
          else if (sequence.nOutput + tokens.length >= sequence.request.maxTokens) end = { reason: "length" };
        }
      }
    }
    this.#count(sequence, nDrafted, Math.min(nAccepted, tokens.length));
    this.#emit(sequence, tokens);
    if (end !== undefined) this.#finish(sequence, end.reason, end.stopString, end.message);
  }

  /** After the end of generation a script that must go on says dots. */
  #nextToken(sequence: Sequence): number {
    const next = sequence.script.next();
    return next.done === true ? (sequence.request.ignoreEos ? 46 : IM_END) : next.value;
  }

  #count(sequence: Sequence, nDrafted: number, nAccepted: number): void {
    if (nDrafted === 0) return;
    for (const draft of [sequence.draft, this.#draft]) {
      draft.nDrafts++;
      draft.nDrafted += nDrafted;
      draft.nAccepted += nAccepted;
      for (let i = 0; i < nDrafted && i <= nAccepted; i++) draft.reachedAt[i] = (draft.reachedAt[i] ?? 0) + 1;
      for (let i = 0; i < nAccepted; i++) draft.acceptedAt[i] = (draft.acceptedAt[i] ?? 0) + 1;
    }
  }

  #emit(sequence: Sequence, tokens: readonly number[]): void {
    if (tokens.length === 0) return;
    sequence.nOutput += tokens.length;
    this.#totals.nOutputTokens += tokens.length;
    const { id, nLogprobs } = sequence.request;
    const logprobs = nLogprobs === undefined ? {} : { logprobs: tokens.map((token) => logprobOf(token, nLogprobs)) };
    this.#events.push({ kind: "tokens", id, tokens, ...logprobs });
  }

  #finish(sequence: Sequence, reason: FinishReason, stopString?: string, message?: string): void {
    this.#slots[sequence.slot] = undefined;
    const { id, prompt } = sequence.request;
    this.#events.push({
      kind: "finish",
      id,
      reason,
      ...(stopString === undefined ? {} : { stopString }),
      ...(message === undefined ? {} : { message }),
      usage: { nPrompt: prompt.length, nCached: 0, nOutput: sequence.nOutput },
      draft: sequence.draft,
      timings: { queueMs: 0, prefillMs: 1, decodeMs: sequence.nSteps },
    });
  }

  #finishWaiting(request: GenerateRequest): void {
    const draft: DraftStats = emptyDraft(0);
    this.#events.push({ kind: "finish", id: request.id, reason: "abort", usage: { nPrompt: request.prompt.length, nCached: 0, nOutput: 0 }, draft, timings: { queueMs: 0, prefillMs: 0, decodeMs: 0 } });
  }

  snapshot(): EngineSnapshot {
    return {
      slots: this.#slots.map((s, slot) => ({
        slot,
        requestId: s?.request.id,
        phase: s?.phase ?? "idle",
        nPrompt: s?.request.prompt.length ?? 0,
        nPast: (s?.request.prompt.length ?? 0) + (s?.nOutput ?? 0),
        nOutput: s?.nOutput ?? 0,
      })),
      nQueued: this.#queue.length,
      ...this.#totals,
      nCachedTokens: 0,
      prefillMs: this.#totals.nRequests,
      decodeMs: this.#totals.nSteps,
      draft: structuredClone(this.#draft),
      nDraftNow: this.#nDraftNow,
      gateReason: "scripted",
      stepsAtK: [...this.#stepsAtK],
      rowShape: this.#rowShape,
      rssBytes: process.memoryUsage.rss(),
      deviceUsedBytes: undefined,
      isSynthetic: false,
    };
  }

  checkIntegrity(): void {
    const nBusy = this.#slots.filter((s) => s !== undefined).length;
    if (nBusy > 0 || this.#queue.length > 0) throw new Error(`${nBusy} slots busy, ${this.#queue.length} requests waiting`);
  }

  close(): void {}
}

/** Made up, but a function of the token alone, so that K cannot change it. */
function logprobOf(token: number, n: number): { token: number; logprob: number; top: [number, number][] } {
  const logprob = -(1 + (token % 7)) / 8;
  const others = Array.from({ length: Math.max(0, n - 1) }, (_, i): [number, number] => [(token + i + 1) % 256, logprob - 1 - i]);
  return { token, logprob, top: n === 0 ? [] : [[token, logprob], ...others] };
}

function promptText(prompt: Int32Array): string {
  const parts = Array.from(prompt, (token) =>
    token >= FIRST_SPECIAL && token < FIRST_SPECIAL + specialTexts.length ? Uint8Array.of(0) : byteTokenizer.tokenBytes(token, false),
  );
  return Buffer.concat(parts).toString();
}

function scriptOf(request: GenerateRequest): Iterator<number> {
  const text = promptText(request.prompt);
  const at = text.lastIndexOf("@@");
  const line = at < 0 ? "say nothing to say" : (text.slice(at + 2).split("\0")[0] as string);
  const [, verb = "", rest = ""] = /^(\w+) ?([\s\S]*)$/.exec(line) ?? [];
  return tokensOf(verb, rest, request);
}

function* tokensOf(verb: string, rest: string, request: GenerateRequest): Generator<number, undefined> {
  const encode = (text: string): Int32Array => byteTokenizer.tokenize(text, { addSpecial: false, parseSpecial: true });
  const [count = "", text = ""] = /^(\d+) ?([\s\S]*)$/.exec(rest)?.slice(1) ?? [];
  switch (verb) {
    case "say":
      yield* encode(rest);
      return;
    case "repeat":
      for (let i = 0; i < Number(count); i++) yield* encode(text);
      return;
    case "forever":
      for (;;) yield* encode(rest);
    case "hold":
      yield* encode(rest);
      for (;;) yield HOLDS;
    case "request":
      yield* encode(JSON.stringify({ ...request, prompt: promptText(request.prompt).replaceAll("\0", "|") }));
      return;
    case "grammar":
      yield* encode(Buffer.from(request.grammar ?? "none").toString("base64"));
      return;
    case "error":
      yield* encode("partial");
      yield FAILS;
      return;
    case "abort":
      yield* encode("partial");
      process.abort();
      break;
    case "hang":
      for (;;);
    case "lost":
      throw new Error("device lost");
    default:
      yield* encode(`unknown script ${verb}`);
  }
  return;
}
