/** Sends one prompt to an OpenAI-compatible endpoint and returns its raw record. Never throws for a failed request. */
import { AnswerReader, errorText } from "./answer.ts";
import { HttpFailure, createConnections, type Connections } from "./http.ts";
import type { Failure, RequestRecord } from "./record.ts";
import { TurnLimiter } from "./turns.ts";
import type { Prompt } from "./workload.ts";

export interface ClientOptions {
  /** With or without a trailing /v1. */
  readonly baseUrl: string;
  readonly model: string;
  readonly apiKey?: string | undefined;
  readonly isStream: boolean;
  readonly temperature: number;
  readonly topP: number;
  /** Added to the request's index for its `seed` field; only sent when temperature > 0. */
  readonly seed: number;
  readonly ignoreEos: boolean;
  /** Further fields of the body, sent as they are. */
  readonly extraBody?: Readonly<Record<string, unknown>>;
  readonly timeoutMs: number;
  readonly keepAlive: boolean;
  readonly saveText: boolean;
  readonly signal?: AbortSignal;
  /** Milliseconds since the start of the run: the only clock. */
  readonly now: () => number;
  /** For tests: called after each piece of the answer was read. */
  readonly onBytes?: () => void;
}

export interface Client {
  send(prompt: Prompt, index: number, intendedAtMs?: number): Promise<RequestRecord>;
  close(): void;
}

const requestsPerTurn = 4;

/** Server root without trailing slash and without /v1. */
export function serverRoot(baseUrl: string): string {
  return baseUrl.replace(/\/+$/, "").replace(/\/v1$/, "");
}

export function createClient(options: ClientOptions): Client {
  const connections = createConnections({ keepAlive: options.keepAlive });
  const turns = new TurnLimiter(requestsPerTurn);
  return {
    async send(prompt, index, intendedAtMs) {
      await turns.enter();
      return send(connections, options, prompt, index, intendedAtMs);
    },
    close: () => connections.close(),
  };
}

export function requestBody(options: ClientOptions, prompt: Prompt, index: number): string {
  return JSON.stringify({
    model: options.model,
    ...("messages" in prompt ? { messages: prompt.messages } : { prompt: prompt.prompt }),
    max_tokens: prompt.maxTokens,
    temperature: options.temperature,
    ...(options.temperature > 0 ? { top_p: options.topP, seed: options.seed + index } : {}),
    ...(options.ignoreEos ? { ignore_eos: true } : {}),
    stream: options.isStream,
    ...(options.isStream ? { stream_options: { include_usage: true } } : {}),
    ...options.extraBody,
  });
}

async function send(connections: Connections, options: ClientOptions, prompt: Prompt, index: number, intendedAtMs: number | undefined): Promise<RequestRecord> {
  const { now } = options;
  const reader = new AnswerReader(options.isStream);
  const errorBody: Buffer[] = [];
  let status: number | undefined;
  let failure: Failure | undefined;
  let nReconnects = 0;
  const body = requestBody(options, prompt, index);
  const sentAtMs = now();
  try {
    nReconnects = await connections.exchange({
      method: "POST",
      url: `${serverRoot(options.baseUrl)}/v1/${"messages" in prompt ? "chat/completions" : "completions"}`,
      headers: { "content-type": "application/json", ...(options.apiKey === undefined ? {} : { authorization: `Bearer ${options.apiKey}` }) },
      body,
      timeoutMs: options.timeoutMs,
      ...(options.signal === undefined ? {} : { signal: options.signal }),
      onStatus: (code) => (status = code),
      onData: (bytes) => {
        if (status === 200) reader.push(bytes, now());
        else errorBody.push(bytes);
        options.onBytes?.();
      },
    });
  } catch (error) {
    if (!(error instanceof HttpFailure)) throw error;
    failure = { kind: error.kind, message: error.message };
  }
  const endAtMs = now();
  const answer = reader.end(endAtMs);
  if (failure === undefined && status !== 200) failure = { kind: "http", message: `status ${status}: ${errorOf(Buffer.concat(errorBody).toString("utf8"))}` };
  failure ??= answer.failure;
  return {
    kind: "request",
    index,
    promptId: prompt.id,
    intendedAtMs: round(intendedAtMs ?? sentAtMs),
    sentAtMs: round(sentAtMs),
    contentAtMs: answer.contentAtMs.map(round),
    ...(answer.contentTokens === undefined ? {} : { contentTokens: answer.contentTokens }),
    endAtMs: round(endAtMs),
    ...(status === undefined ? {} : { status }),
    ...(failure === undefined ? {} : { failure }),
    ...definedOnly({ nPrompt: answer.usage?.nPrompt, nCached: answer.usage?.nCached, nOutput: answer.usage?.nOutput }),
    ...(answer.finishReason === undefined ? {} : { finishReason: answer.finishReason }),
    ...(answer.timings === undefined ? {} : { timings: answer.timings }),
    nReconnects,
    ...(options.saveText ? { text: answer.text } : {}),
  };
}

/** Ten microseconds: finer is noise, and the raw file stays small. */
const round = (ms: number): number => Math.round(ms * 100) / 100;

function definedOnly(fields: Record<string, number | undefined>): Record<string, number> {
  return Object.fromEntries(Object.entries(fields).filter((entry): entry is [string, number] => entry[1] !== undefined));
}

function errorOf(text: string): string {
  try {
    const body = JSON.parse(text) as { error?: unknown };
    return errorText(body.error ?? body);
  } catch {
    return text.slice(0, 300);
  }
}
