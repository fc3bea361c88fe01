/**
 * The contract between the server and the engine: what a request asks, and what comes back.
 * Plain data only: it crosses a process border (structured clone).
 */

export interface SamplingParams {
  /** 0 is greedy. */
  readonly temperature: number;
  /** 0: all tokens. */
  readonly topK: number;
  readonly topP: number;
  readonly minP: number;
  /** 32-bit; the engine derives one stream of random numbers a request from it. */
  readonly seed: number;
  readonly repeatPenalty: number;
  readonly repeatLastN: number;
  readonly presencePenalty: number;
  readonly frequencyPenalty: number;
  /** Added to the logits: [token, bias]; -Infinity bans. */
  readonly logitBias: readonly (readonly [number, number])[];
}

export const greedySampling: SamplingParams = {
  temperature: 0,
  topK: 40,
  topP: 0.95,
  minP: 0.05,
  seed: 0,
  repeatPenalty: 1,
  repeatLastN: 64,
  presencePenalty: 0,
  frequencyPenalty: 0,
  logitBias: [],
};

export interface GenerateRequest {
  readonly id: number;
  readonly prompt: Int32Array;
  /** Most new tokens; the end of the context ends a request too. */
  readonly maxTokens: number;
  readonly sampling: SamplingParams;
  /** Strings that end the text. The engine ends the request at the token that completes one. */
  readonly stop: readonly string[];
  readonly ignoreEos: boolean;
  /** Log probabilities wanted: undefined none, 0 the chosen token's, n the n best too. From the verifier's logits before sampling filters. */
  readonly nLogprobs: number | undefined;
  /** GBNF grammar that the text must follow. */
  readonly grammar: string | undefined;
  /** Most accepted draft tokens a step for this request; undefined: the server's n_max. 0 turns speculation off for it. */
  readonly nMax: number | undefined;
  readonly cachePrompt: boolean;
}

/** stop: end-of-generation token or stop string. length: maxTokens or end of context. abort: the client left. error: see `message`. */
export type FinishReason = "stop" | "length" | "abort" | "error";

export interface TokenLogprob {
  readonly token: number;
  readonly logprob: number;
  readonly top: readonly (readonly [token: number, logprob: number])[];
}

/** Tokens of one step for one request, in order. The end-of-generation token is not among them. */
export interface TokensEvent {
  readonly kind: "tokens";
  readonly id: number;
  readonly tokens: readonly number[];
  readonly logprobs?: readonly TokenLogprob[];
}

export interface FinishEvent {
  readonly kind: "finish";
  readonly id: number;
  readonly reason: FinishReason;
  /** The stop string that ended the text, when one did: the text is cut before its first byte. */
  readonly stopString?: string;
  readonly message?: string;
  /** With reason "error": the request itself cannot run here, sending it again will not help. */
  readonly isRefusal?: boolean;
  readonly usage: { readonly nPrompt: number; readonly nCached: number; readonly nOutput: number };
  readonly draft: DraftStats;
  readonly timings: RequestTimings;
}

/** The request has a slot and its prompt is being read: the queue wait is over. */
export interface StartEvent {
  readonly kind: "start";
  readonly id: number;
  readonly slot: number;
  readonly nCached: number;
}

export type EngineEvent = StartEvent | TokensEvent | FinishEvent;

/**
 * Draft counts of a request or a server. Tokens after a stop are not counted.
 * acceptedAt[i] counts the drafts whose position i was accepted: acceptedAt[i] / nDrafts is unconditional,
 * acceptedAt[i] / reachedAt[i] conditional on the positions before it.
 */
export interface DraftStats {
  /** Verify steps that had a draft. */
  readonly nDrafts: number;
  /** Tokens proposed. */
  readonly nDrafted: number;
  /** Tokens accepted; bonus and correction tokens excluded. */
  readonly nAccepted: number;
  readonly acceptedAt: readonly number[];
  readonly reachedAt: readonly number[];
}

export interface RequestTimings {
  /** From submission to the first prefill decode. */
  readonly queueMs: number;
  /** From the first prefill decode to the first token. */
  readonly prefillMs: number;
  /** From the first token to the end. */
  readonly decodeMs: number;
}

/** The engine as the server sees it. One implementation talks to the child process, one is a script for tests. */
export interface EngineClient {
  readonly state: "loading" | "ready" | "restarting" | "stopped";
  /** Why `state` is what it is, for people. */
  readonly stateReason: string;
  /**
   * Queues requests, all or none; `index` says whose event it is. Events of each arrive in order and end with exactly one FinishEvent, also after `cancel` and when
   * the engine process dies (reason "error"). `onEvent` must not throw and is never awaited.
   * @throws {EngineUnavailable} when the engine is not ready or its queue is full.
   */
  submit(requests: readonly GenerateRequest[], onEvent: (index: number, event: EngineEvent) => void): void;
  /** Frees the slot at the next step. Unknown and finished ids are ignored. */
  cancel(id: number): void;
  /** What the engine does now: slots, queue, gate, memory. The last snapshot it sent. */
  snapshot(): EngineSnapshot;
  /** Refuses new requests, waits for running ones up to `graceMs`, then ends the engine. */
  close(graceMs: number): Promise<void>;
}

export class EngineUnavailable extends Error {
  override readonly name: string = "EngineUnavailable";
  readonly reason: "loading" | "restarting" | "stopped" | "queue-full";
  readonly retryAfterMs: number;

  constructor(reason: EngineUnavailable["reason"], message: string, retryAfterMs: number) {
    super(message);
    this.reason = reason;
    this.retryAfterMs = retryAfterMs;
  }
}

export interface SlotSnapshot {
  readonly slot: number;
  readonly requestId: number | undefined;
  readonly phase: "idle" | "prefill" | "decode";
  readonly nPrompt: number;
  readonly nPast: number;
  readonly nOutput: number;
}

export interface EngineSnapshot {
  readonly slots: readonly SlotSnapshot[];
  readonly nQueued: number;
  /** Totals since start. */
  readonly nSteps: number;
  readonly nPromptTokens: number;
  readonly nCachedTokens: number;
  readonly nOutputTokens: number;
  readonly nRequests: number;
  readonly prefillMs: number;
  readonly decodeMs: number;
  readonly draft: DraftStats;
  /** Draft length of the last step and the gate's reason. */
  readonly nDraftNow: number;
  readonly gateReason: string;
  /** Steps by draft length chosen: stepsAtK[k]. */
  readonly stepsAtK: readonly number[];
  /** "16 seq x 3 rows" of the last decode step. */
  readonly rowShape: string;
  /** Resident memory of the engine process and device memory where known. */
  readonly rssBytes: number;
  readonly deviceUsedBytes: number | undefined;
  /** True when acceptance is drawn from set rates: the output is then not model text. */
  readonly isSynthetic: boolean;
}

/** What the engine process tells once, when it is ready. */
export interface EngineInfo {
  readonly nSlots: number;
  readonly nCtxSeq: number;
  readonly nVocab: number;
  readonly nMax: number;
  readonly device: string;
  readonly library: string;
  readonly modelPath: string;
  readonly headPaths: readonly string[];
  readonly loadMs: number;
  /** Bytes that loading the model and making the contexts added. */
  readonly loadedBytes: number;
}
