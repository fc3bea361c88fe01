/**
 * Greedy outputs of a server, kept for comparison: text per prompt and, where asked, the tokens with their rivals and how
 * far behind each was. Works against any OpenAI-compatible server; text decides, since not every server tells its tokens.
 */
import { runClosedLoop } from "../bench/arrivals.ts";
import { errorText } from "../bench/answer.ts";
import { serverRoot } from "../bench/client.ts";
import { HttpFailure, createConnections, type Connections } from "../bench/http.ts";
import type { Target } from "../bench/run.ts";
import type { Prompt } from "../bench/workload.ts";
import { UserError } from "../util/errors.ts";
import { createProgress } from "../util/progress.ts";

/** Text of a token that was not taken, and the log probability of the best minus its own, in nats. */
export type Rival = readonly [text: string, nats: number];

export interface CapturedToken {
  readonly text: string;
  readonly logprob: number;
  /** Of the best `nBest` tokens those that were not taken, nearest first; none where the server tells but one. */
  readonly rivals?: readonly Rival[];
  /** In captures that recorded one rival only: how far behind it was, and its text where the server told it. */
  readonly margin?: number | null;
  readonly runnerUp?: string;
}

export function rivalsOf({ rivals, margin, runnerUp }: CapturedToken): readonly Rival[] {
  return rivals ?? (typeof margin === "number" ? [[runnerUp ?? "", margin]] : []);
}

export interface CapturedOutput {
  readonly id: string;
  readonly text: string;
  readonly finishReason: string;
  readonly nOutput: number;
  readonly tokens: readonly CapturedToken[] | null;
}

export interface Capture {
  readonly kind: "capture";
  readonly name: string;
  readonly model: string;
  readonly concurrency: number;
  readonly maxTokens: number;
  readonly ignoreEos: boolean;
  readonly outputs: readonly CapturedOutput[];
}

export interface CaptureOptions {
  readonly name: string;
  readonly prompts: readonly Prompt[];
  readonly concurrency: number;
  readonly maxTokens: number;
  readonly ignoreEos: boolean;
  /** Ask for the `nBest` best log probabilities. Can change how a server samples, so only a reference should have it. */
  readonly margins: boolean;
  readonly extraBody: Readonly<Record<string, unknown>>;
  readonly timeoutMs: number;
  readonly signal?: AbortSignal;
}

/** Log probabilities asked of each token: what another way of decoding takes instead may be the third best. OpenAI's limit for completions. */
export const nBest = 5;

/** @throws {UserError} when a request fails: a comparison with holes would mislead. */
export async function capture(target: Target, options: CaptureOptions): Promise<Capture> {
  const connections = createConnections();
  const progress = createProgress(`capture ${options.name}`, { total: options.prompts.length });
  let nDone = 0;
  try {
    const outputs = await runClosedLoop(options.prompts.length, options.concurrency, async (i) => {
      const output = await complete(connections, target, options.prompts[i] as Prompt, options);
      progress.update(++nDone);
      return output;
    });
    const { name, concurrency, maxTokens, ignoreEos } = options;
    return { kind: "capture", name, model: target.model, concurrency, maxTokens, ignoreEos, outputs };
  } finally {
    progress.end();
    connections.close();
  }
}

async function complete(connections: Connections, target: Target, prompt: Prompt, options: CaptureOptions): Promise<CapturedOutput> {
  const isChat = "messages" in prompt;
  const body = {
    model: target.model,
    ...(isChat ? { messages: prompt.messages } : { prompt: prompt.prompt }),
    max_tokens: options.maxTokens,
    temperature: 0,
    ...(options.ignoreEos ? { ignore_eos: true } : {}),
    ...(!options.margins ? {} : isChat ? { logprobs: true, top_logprobs: nBest } : { logprobs: nBest }),
    ...options.extraBody,
  };
  const pieces: Buffer[] = [];
  let status = 0;
  const fail = (message: string): UserError => new UserError(`${target.baseUrl}: prompt ${prompt.id} failed: ${message}`);
  try {
    await connections.exchange({
      method: "POST",
      url: `${serverRoot(target.baseUrl)}/v1/${isChat ? "chat/completions" : "completions"}`,
      headers: { "content-type": "application/json", ...(target.apiKey === undefined ? {} : { authorization: `Bearer ${target.apiKey}` }) },
      body: JSON.stringify(body),
      timeoutMs: options.timeoutMs,
      ...(options.signal === undefined ? {} : { signal: options.signal }),
      onStatus: (code) => (status = code),
      onData: (bytes) => pieces.push(bytes),
    });
  } catch (error) {
    options.signal?.throwIfAborted();
    throw error instanceof HttpFailure ? fail(error.message) : error;
  }
  const text = Buffer.concat(pieces).toString("utf8");
  if (status !== 200) throw fail(`status ${status}: ${text.slice(0, 200)}`);
  return parseOutput(prompt.id, text, fail);
}

interface Completion {
  error?: unknown;
  choices?: { text?: string; message?: { content?: string | null; reasoning_content?: string | null }; finish_reason?: string | null; logprobs?: Logprobs | null }[];
  usage?: { completion_tokens?: number };
}

/** The chat form, and the older one of /v1/completions. */
interface Logprobs {
  content?: { token: string; logprob: number; top_logprobs?: { token?: string; logprob: number }[] }[] | null;
  tokens?: string[];
  token_logprobs?: (number | null)[];
  top_logprobs?: (Record<string, number> | null)[];
}

export function parseOutput(id: string, text: string, fail: (message: string) => Error): CapturedOutput {
  let body: Completion;
  try {
    body = JSON.parse(text) as Completion;
  } catch {
    throw fail(`not JSON: ${text.slice(0, 100)}`);
  }
  if (body.error !== undefined && body.error !== null) throw fail(errorText(body.error));
  const choice = body.choices?.[0];
  if (choice === undefined) throw fail("the answer has no choice");
  return {
    id,
    text: choice.text ?? `${choice.message?.reasoning_content ?? ""}${choice.message?.content ?? ""}`,
    finishReason: choice.finish_reason ?? "",
    nOutput: body.usage?.completion_tokens ?? 0,
    tokens: tokensOf(choice.logprobs),
  };
}

function tokensOf(logprobs: Logprobs | null | undefined): CapturedToken[] | null {
  if (logprobs === null || logprobs === undefined) return null;
  if (logprobs.content) return logprobs.content.map((t) => tokenOf(t.token, t.logprob, t.top_logprobs ?? []));
  const { tokens, token_logprobs: values, top_logprobs: tops } = logprobs;
  return tokens?.map((token, i) => tokenOf(token, values?.[i] ?? 0, Object.entries(tops?.[i] ?? {}).map(([text, logprob]) => ({ token: text, logprob })))) ?? null;
}

function tokenOf(text: string, logprob: number, best: readonly { token?: string; logprob: number }[]): CapturedToken {
  const sorted = best.toSorted((a, b) => b.logprob - a.logprob);
  const taken = Math.max(0, sorted.findIndex((t) => t.token === text));
  const top = sorted[0]?.logprob ?? logprob;
  return { text, logprob, rivals: sorted.flatMap((t, i): Rival[] => (i === taken ? [] : [[t.token ?? "", roundNats(top - t.logprob)]])) };
}

/** Servers give no more digits than that. */
const roundNats = (nats: number): number => Math.round(nats * 1e5) / 1e5;
