/**
 * Reads one answer of an OpenAI-compatible endpoint, streamed or whole, as its bytes arrive. No clock of its own: the
 * caller says when. A piece with content counts as a chunk; tokens are what `usage` says at the end, since one chunk may
 * hold several tokens when drafts are accepted (counting chunks is the classic error of speculative benchmarks).
 */
import { errorMessage } from "../util/errors.ts";
import type { Failure, ServerTimings } from "./record.ts";
import { SseParser } from "./sse.ts";

interface Delta {
  content?: string | null;
  reasoning_content?: string | null;
  reasoning?: string | null;
  tool_calls?: unknown[];
}

interface Choice {
  text?: string;
  delta?: Delta;
  message?: Delta;
  finish_reason?: string | null;
  token_ids?: readonly number[] | null;
}

interface Usage {
  prompt_tokens?: number;
  completion_tokens?: number;
  prompt_tokens_details?: { cached_tokens?: number | null } | null;
}

interface Body {
  choices?: Choice[];
  usage?: Usage | null;
  error?: unknown;
  timings?: Record<string, unknown>;
}

export interface Answer {
  readonly contentAtMs: readonly number[];
  readonly contentTokens: readonly number[] | undefined;
  readonly text: string;
  readonly usage: { readonly nPrompt: number | undefined; readonly nOutput: number; readonly nCached: number | undefined } | undefined;
  readonly finishReason: string | undefined;
  readonly timings: ServerTimings | undefined;
  readonly failure: Failure | undefined;
}

export class AnswerReader {
  readonly #isStream: boolean;
  readonly #contentAtMs: number[] = [];
  readonly #contentTokens: number[] = [];
  readonly #text: string[] = [];
  readonly #whole: Buffer[] = [];
  readonly #sse: SseParser;
  #nowMs = 0;
  #usage: Usage | undefined;
  #nToldTokens = 0;
  #finishReason: string | undefined;
  #timings: ServerTimings | undefined;
  #isDone = false;
  #failure: Failure | undefined;

  constructor(isStream: boolean) {
    this.#isStream = isStream;
    this.#sse = new SseParser((data) => this.#event(data));
  }

  push(bytes: Buffer, nowMs: number): void {
    this.#nowMs = nowMs;
    if (this.#isStream) this.#sse.push(bytes);
    else this.#whole.push(bytes);
  }

  end(nowMs: number): Answer {
    this.#nowMs = nowMs;
    if (this.#isStream) this.#sse.end();
    else if (this.#whole.length > 0) this.#event(Buffer.concat(this.#whole).toString("utf8"));
    return {
      contentAtMs: this.#contentAtMs,
      contentTokens: this.#contentTokens.length === this.#contentAtMs.length && this.#contentTokens.length > 0 ? this.#contentTokens : undefined,
      text: this.#text.join(""),
      usage: usageCounts(this.#usage),
      finishReason: this.#finishReason,
      timings: this.#timings,
      failure: this.#failure ?? this.#missing(),
    };
  }

  #missing(): Failure | undefined {
    if (this.#isStream && !this.#isDone && this.#finishReason === undefined)
      return { kind: "truncated", message: "the stream ended without [DONE] or a finish reason" };
    if (!this.#isStream && this.#whole.length === 0) return { kind: "truncated", message: "the answer is empty" };
    if (usageCounts(this.#usage) === undefined)
      return { kind: "no-usage", message: "the answer has no usage.completion_tokens, so its tokens cannot be counted; the server must support stream_options.include_usage" };
    return undefined;
  }

  #event(data: string): void {
    if (data === "[DONE]") {
      this.#isDone = true;
      return;
    }
    let body: Body;
    try {
      body = JSON.parse(data) as Body;
    } catch (error) {
      this.#failure ??= { kind: "bad-json", message: `${errorMessage(error)} in ${data.slice(0, 80)}` };
      return;
    }
    if (body.error !== undefined && body.error !== null) {
      this.#failure ??= { kind: "stream-error", message: errorText(body.error) };
      return;
    }
    if (body.usage) this.#usage = body.usage;
    if (body.timings !== undefined) this.#timings = serverTimings(body.timings);
    const choice = body.choices?.[0];
    if (choice === undefined) return;
    if (typeof choice.finish_reason === "string") this.#finishReason = choice.finish_reason;
    const content = contentOf(choice);
    if (content === undefined) return;
    if (content !== "") this.#text.push(content);
    if (this.#isStream) this.#chunk(choice, body.usage);
  }

  #chunk(choice: Choice, usage: Usage | null | undefined): void {
    this.#contentAtMs.push(this.#nowMs);
    const told = choice.token_ids?.length ?? (usage?.completion_tokens === undefined ? undefined : usage.completion_tokens - this.#nToldTokens);
    if (told === undefined) return;
    this.#nToldTokens += told;
    this.#contentTokens.push(told);
  }
}

/** The text of a choice; "" for a piece of a tool call, which is content without text; undefined for a piece without content. */
function contentOf(choice: Choice): string | undefined {
  const delta = choice.delta ?? choice.message;
  const text = `${delta?.reasoning_content ?? delta?.reasoning ?? ""}${delta?.content ?? choice.text ?? ""}`;
  if (text !== "") return text;
  return (delta?.tool_calls?.length ?? 0) > 0 ? "" : undefined;
}

function usageCounts(usage: Usage | undefined): Answer["usage"] {
  if (usage?.completion_tokens === undefined) return undefined;
  return { nPrompt: usage.prompt_tokens, nOutput: usage.completion_tokens, nCached: usage.prompt_tokens_details?.cached_tokens ?? undefined };
}

/** llama-server's names, and `queue_ms` which ours adds. */
export function serverTimings(timings: Record<string, unknown>): ServerTimings {
  const names = { queueMs: "queue_ms", prefillMs: "prompt_ms", decodeMs: "predicted_ms", nDrafted: "draft_n", nAccepted: "draft_n_accepted" };
  return Object.fromEntries(Object.entries(names).flatMap(([key, name]) => (typeof timings[name] === "number" ? [[key, timings[name]]] : [])));
}

/** The message of an error body in OpenAI's shape, or whatever the server sent, shortened. */
export function errorText(error: unknown): string {
  const message = typeof error === "object" && error !== null && "message" in error ? error.message : error;
  return (typeof message === "string" ? message : JSON.stringify(message)).slice(0, 300);
}
