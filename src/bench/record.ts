/** What one request leaves behind: raw times and counts. Everything else is computed from these later. */

/**
 * connect: no connection. reset: the connection broke. timeout: over the time limit. http: a status that is not 2xx.
 * stream-error: an error event inside the stream. truncated: the stream ended without its end mark.
 * no-usage: the server gave no token counts. bad-json: an answer that does not parse. aborted: we stopped it.
 */
export type FailureKind = "connect" | "reset" | "timeout" | "http" | "stream-error" | "truncated" | "no-usage" | "bad-json" | "aborted";

export interface Failure {
  readonly kind: FailureKind;
  readonly message: string;
}

/** Times the server tells about a request, where it does (`timings` of llama-server and of ours). */
export interface ServerTimings {
  readonly queueMs?: number;
  readonly prefillMs?: number;
  readonly decodeMs?: number;
  readonly nDrafted?: number;
  readonly nAccepted?: number;
}

/** One line of the raw JSONL. Times are milliseconds after the start of the run, read on the client. */
export interface RequestRecord {
  readonly kind: "request";
  readonly index: number;
  readonly promptId: string;
  /** When the request should have been sent: the open loop's schedule; in a closed loop the same as `sentAtMs`. */
  readonly intendedAtMs: number;
  /** Just before the connection is opened. */
  readonly sentAtMs: number;
  /** Arrival of each piece of content; empty without streaming. */
  readonly contentAtMs: readonly number[];
  /** Tokens in each piece, when the server says so in the piece itself; never guessed. */
  readonly contentTokens?: readonly number[];
  /** End of the answer, or of the failed attempt. */
  readonly endAtMs: number;
  /** HTTP status; absent when no answer began. */
  readonly status?: number;
  readonly failure?: Failure;
  /** From `usage`; absent when the request failed before it. */
  readonly nPrompt?: number;
  readonly nCached?: number;
  readonly nOutput?: number;
  readonly finishReason?: string;
  readonly timings?: ServerTimings;
  /** Times a reused connection had died and the request was sent again on a new one. */
  readonly nReconnects: number;
  readonly text?: string;
}
