/** Which prompts a run sends: built-in code tasks, a JSONL file, or random token ids of exact length. All seeded. */
import * as fs from "node:fs";
import * as z from "zod";
import { usageError } from "../util/errors.ts";
import { statFile } from "../util/files.ts";
import { Rng } from "../util/rng.ts";
import { codePrompt, preambleWords } from "./prompts.ts";

export type ChatMessage = { readonly role: string; readonly content: string };

export type Prompt = { readonly id: string; readonly maxTokens: number } & (
  | { readonly messages: readonly ChatMessage[] }
  | { readonly prompt: string | readonly number[] }
);

export interface WorkloadOptions {
  /** Prompts of the measured part; `nWarmup` more are made for the warm-up. */
  readonly n: number;
  readonly nWarmup: number;
  readonly maxTokens: number;
  /** Limits are drawn uniformly from maxTokens * (1 - ratio) to maxTokens * (1 + ratio), but for lines of a file that have their own. */
  readonly maxTokensRangeRatio?: number | undefined;
  readonly seed: number;
  /** chat sends messages, completions plain text or tokens; auto: what the prompts are. */
  readonly endpoint: "auto" | "chat" | "completions";
  readonly promptFile?: string | undefined;
  /** Prompts of random token ids, this many each; needs an endpoint that takes token arrays. */
  readonly randomInputLen?: number | undefined;
  /** Lengths are drawn uniformly from len * (1 - ratio) to len * (1 + ratio). */
  readonly randomRangeRatio: number;
  /** Token ids are drawn from [100, randomVocab): low ids are often control tokens. */
  readonly randomVocab: number;
  /** Tokens (random prompts) or words (text) that all prompts begin with. */
  readonly sharedPrefixLen: number;
}

export interface Workload {
  readonly warmup: readonly Prompt[];
  readonly measured: readonly Prompt[];
}

const firstRandomToken = 100;

const PromptLine = z
  .object({
    id: z.string().optional(),
    prompt: z.union([z.string(), z.array(z.int().min(0))]).optional(),
    messages: z.array(z.object({ role: z.string(), content: z.string() })).optional(),
    max_tokens: z.int().min(1).optional(),
  })
  .refine((line) => (line.prompt === undefined) !== (line.messages === undefined), "needs either `prompt` or `messages`");

/** @throws {UserError} for a prompt file that is missing, empty or malformed, or an endpoint that cannot take the prompts. */
export function createWorkload(options: WorkloadOptions): Workload {
  const n = options.n + options.nWarmup;
  const limits = drawLimits(options, n);
  const prompts = options.promptFile !== undefined ? filePrompts(options.promptFile, options, limits) : options.randomInputLen !== undefined ? randomPrompts(options, limits) : codePrompts(options, limits);
  return { measured: prompts.slice(0, options.n), warmup: prompts.slice(options.n) };
}

/** Token limits by place in the run: from a generator of their own, so that the prompts do not depend on them. */
function drawLimits({ maxTokens, maxTokensRangeRatio = 0, seed }: WorkloadOptions, n: number): number[] {
  const rng = new Rng(seed ^ 0x5eed);
  const spread = Math.floor(maxTokens * maxTokensRangeRatio);
  return Array.from({ length: n }, () => Math.max(1, maxTokens - spread + rng.below(2 * spread + 1)));
}

function codePrompts(options: WorkloadOptions, limits: readonly number[]): Prompt[] {
  const order = new Rng(options.seed).shuffle(limits.map((_, i) => i));
  const prefix = options.sharedPrefixLen > 0 ? `${preambleWords(options.sharedPrefixLen)} ` : "";
  return order.map((i, at) => {
    const { id, text } = codePrompt(i);
    return textPrompt(id, prefix + text, limits[at] as number, options.endpoint === "completions" ? "completions" : "chat");
  });
}

function textPrompt(id: string, text: string, maxTokens: number, endpoint: "chat" | "completions"): Prompt {
  return endpoint === "chat" ? { id, maxTokens, messages: [{ role: "user", content: text }] } : { id, maxTokens, prompt: text };
}

function randomPrompts(options: WorkloadOptions, limits: readonly number[]): Prompt[] {
  if (options.endpoint === "chat") throw usageError("--random-input-len makes token arrays, which only /v1/completions takes; leave --endpoint out");
  if (options.randomVocab <= firstRandomToken) throw usageError(`--random-vocab ${options.randomVocab}: must be above ${firstRandomToken}`);
  const rng = new Rng(options.seed);
  const draw = (length: number): number[] => Array.from({ length }, () => firstRandomToken + rng.below(options.randomVocab - firstRandomToken));
  const length = options.randomInputLen ?? 0;
  const shared = new Rng(1);
  const prefix = Array.from({ length: options.sharedPrefixLen }, () => firstRandomToken + shared.below(options.randomVocab - firstRandomToken));
  return limits.map((maxTokens, i) => {
    const spread = Math.floor(length * options.randomRangeRatio);
    const own = length - spread + rng.below(2 * spread + 1);
    return { id: `random-${i}`, maxTokens, prompt: [...prefix, ...draw(Math.max(1, own - prefix.length))] };
  });
}

function filePrompts(file: string, options: WorkloadOptions, limits: readonly number[]): Prompt[] {
  statFile(file, "--prompt-file");
  const lines = fs.readFileSync(file, "utf8").split("\n").filter((line) => line.trim() !== "");
  if (lines.length === 0) throw usageError(`--prompt-file: ${file} has no line; each line is {"prompt": ...} or {"messages": [...]}`);
  const prompts = lines.map((line, i) => filePrompt(line, i, file, options));
  return limits.map((limit, i) => (prompts[i % prompts.length] as (limit: number) => Prompt)(limit));
}

/** @returns the prompt, given a limit for a line that has none */
function filePrompt(line: string, i: number, file: string, options: WorkloadOptions): (limit: number) => Prompt {
  const parsed = PromptLine.safeParse(parseJson(line));
  if (!parsed.success) throw usageError(`${file} line ${i + 1}: ${parsed.error.issues[0]?.message ?? "not valid"}`);
  const { messages, prompt = "", max_tokens: own, id = `line-${i + 1}` } = parsed.data;
  if (messages !== undefined) {
    if (options.endpoint !== "completions") return (limit) => ({ id, maxTokens: own ?? limit, messages });
    throw usageError(`${file} line ${i + 1}: has messages, which /v1/completions does not take; leave --endpoint out`);
  }
  if (options.endpoint !== "chat") return (limit) => ({ id, maxTokens: own ?? limit, prompt });
  if (typeof prompt === "string") return (limit) => textPrompt(id, prompt, own ?? limit, "chat");
  throw usageError(`${file} line ${i + 1}: is a token array, which /v1/chat/completions does not take; leave --endpoint out`);
}

function parseJson(line: string): unknown {
  try {
    return JSON.parse(line);
  } catch {
    return undefined;
  }
}
