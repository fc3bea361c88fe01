import * as readline from "node:readline/promises";
import * as z from "zod";
import { SseParser } from "../bench/sse.ts";
import { defineCommand, type Io } from "../config/command.ts";
import { UserError, errorMessage } from "../util/errors.ts";

const options = z.strictObject({
  message: z.string().optional().meta({ description: "one question; without it a conversation begins", placeholder: "TEXT" }),
  baseUrl: z.string().default("http://127.0.0.1:8080").meta({ short: "u", description: "server to talk to", placeholder: "URL" }),
  model: z.string().optional().meta({ short: "m", description: "model name; default: the first that the server lists", placeholder: "NAME" }),
  apiKey: z.string().optional().meta({ description: "key of the server", placeholder: "KEY", env: "FORETOKEN_API_KEY" }),
  system: z.string().optional().meta({ description: "first message, from the system", placeholder: "TEXT" }),
  temperature: z.number().min(0).default(0).meta({ description: "0 is greedy", placeholder: "T" }),
  maxTokens: z.int().min(1).default(512).meta({ short: "n", description: "most tokens of an answer", placeholder: "N" }),
  drafts: z.boolean().default(true).meta({ description: "speculation, where the server has it" }),
});
type ChatOptions = z.output<typeof options>;

export const command = defineCommand({
  name: "chat",
  summary: "talk to a server in the terminal",
  details: "In a conversation: /clear forgets it, /exit or Ctrl-D ends it, Ctrl-C stops an answer. Lines from a pipe are questions.",
  options,
  positionals: ["message"],
  async run(given, io) {
    const chat = new Conversation(given, given.model ?? (await firstModel(given)), io);
    if (given.message === undefined) await converse(chat, io);
    else await chat.ask(given.message, io.signal);
  },
});

interface Timings {
  readonly predicted_per_second?: number;
  readonly draft_n?: number;
  readonly draft_n_accepted?: number;
}

interface Chunk {
  readonly choices?: readonly { readonly delta?: { readonly content?: string | null; readonly reasoning_content?: string } }[];
  readonly usage?: { readonly completion_tokens: number } | null;
  readonly timings?: Timings;
  readonly error?: { readonly message: string };
}

const dim = (text: string): string => (process.stdout.isTTY ? `\x1b[2m${text}\x1b[22m` : text);

class Conversation {
  readonly #options: ChatOptions;
  readonly #model: string;
  readonly #io: Io;
  readonly #messages: { readonly role: string; readonly content: string }[] = [];

  constructor(given: ChatOptions, model: string, io: Io) {
    this.#options = given;
    this.#model = model;
    this.#io = io;
    this.clear();
  }

  clear(): void {
    this.#messages.length = 0;
    if (this.#options.system !== undefined) this.#messages.push({ role: "system", content: this.#options.system });
  }

  /** Streams the answer to stdout. An answer that is stopped stays in the conversation as far as it came. */
  async ask(text: string, signal: AbortSignal): Promise<void> {
    this.#messages.push({ role: "user", content: text });
    let answer = "";
    let last: Chunk = {};
    try {
      for await (const chunk of this.#stream(signal)) {
        if (chunk.error !== undefined) throw new UserError(`the server ended the answer: ${chunk.error.message}`);
        const delta = chunk.choices?.[0]?.delta;
        if (delta?.reasoning_content !== undefined && !this.#io.json) process.stdout.write(dim(delta.reasoning_content));
        if (delta?.content !== undefined && delta.content !== null && delta.content !== "") {
          answer += delta.content;
          if (!this.#io.json) process.stdout.write(delta.content);
        }
        if (chunk.usage !== undefined && chunk.usage !== null) last = chunk;
      }
    } catch (error) {
      if (!signal.aborted) throw error;
    }
    this.#messages.push({ role: "assistant", content: answer });
    if (this.#io.json) this.#io.out(JSON.stringify({ answer, usage: last.usage ?? null, timings: last.timings ?? null }));
    else process.stdout.write("\n");
    this.#io.note(dim(speedLine(last)));
  }

  async *#stream(signal: AbortSignal): AsyncGenerator<Chunk> {
    const { temperature, maxTokens, drafts } = this.#options;
    const body = {
      model: this.#model,
      messages: this.#messages,
      temperature,
      max_tokens: maxTokens,
      stream: true,
      stream_options: { include_usage: true },
      ...(drafts ? {} : { speculative: { n_max: 0 } }),
    };
    const response = await request(this.#options, "/v1/chat/completions", { method: "POST", body: JSON.stringify(body), signal });
    const chunks: Chunk[] = [];
    const parser = new SseParser((data) => {
      if (data !== "[DONE]") chunks.push(JSON.parse(data) as Chunk);
    });
    for await (const part of response.body as unknown as AsyncIterable<Uint8Array>) {
      parser.push(Buffer.from(part));
      yield* chunks.splice(0);
    }
  }
}

function speedLine({ usage, timings }: Chunk): string {
  const parts = [usage === undefined || usage === null ? "stopped" : `${usage.completion_tokens} tokens`];
  if ((timings?.predicted_per_second ?? 0) > 0) parts.push(`${timings?.predicted_per_second?.toFixed(1)} tok/s`);
  if (timings?.draft_n !== undefined) parts.push(`${timings.draft_n_accepted} of ${timings.draft_n} drafts accepted`);
  return parts.join(", ");
}

async function converse(chat: Conversation, io: Io): Promise<void> {
  const isTerminal = process.stdin.isTTY;
  const lines = readline.createInterface({ input: process.stdin, output: isTerminal ? process.stderr : undefined, terminal: isTerminal, prompt: "> " });
  let stop = new AbortController();
  let isAnswering = false;
  lines.on("SIGINT", () => (isAnswering ? stop.abort() : lines.close()));
  io.signal.addEventListener("abort", () => {
    stop.abort();
    lines.close();
  });
  if (isTerminal) lines.prompt();
  for await (const line of lines) {
    const text = line.trim();
    if (text === "/exit") break;
    if (text === "/clear") chat.clear();
    else if (text !== "") {
      stop = new AbortController();
      isAnswering = true;
      try {
        await chat.ask(text, stop.signal);
      } catch (error) {
        if (!isTerminal) throw error;
        io.note(errorMessage(error));
      }
      isAnswering = false;
    }
    if (isTerminal) lines.prompt();
  }
  lines.close();
}

async function firstModel(given: ChatOptions): Promise<string> {
  const response = await request(given, "/v1/models", {});
  const { data } = (await response.json()) as { data?: readonly { readonly id?: string }[] };
  const id = data?.[0]?.id;
  if (id === undefined) throw new UserError(`${given.baseUrl} lists no model; name one with --model`);
  return id;
}

/** @throws {UserError} when nobody answers, or with an error. */
async function request({ baseUrl, apiKey }: ChatOptions, path: string, init: RequestInit): Promise<Response> {
  const root = baseUrl.replace(/\/(v1\/?)?$/, "");
  const headers = { "content-type": "application/json", ...(apiKey === undefined ? {} : { authorization: `Bearer ${apiKey}` }) };
  let response: Response;
  try {
    response = await fetch(root + path, { ...init, headers });
  } catch (error) {
    if (init.signal?.aborted === true) throw error;
    throw new UserError(`nobody answers at ${root}; start a server with foretoken serve, or name one with --base-url`, { cause: error });
  }
  if (response.ok) return response;
  const body = (await response.json().catch(() => ({}))) as Chunk;
  throw new UserError(`${root}${path} answers ${response.status}: ${body.error?.message ?? response.statusText}`);
}
