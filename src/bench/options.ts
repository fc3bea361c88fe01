/** The load of a run as flags; `bench`, `bench sweep` (plan file) and the lab (recipe) share them. */
import * as z from "zod";
import { usageError } from "../util/errors.ts";
import type { Limits } from "./summarize.ts";

export const loadShape = {
  requests: z.int().min(1).default(32).meta({ short: "n", description: "requests in the measured part", placeholder: "N", aliases: ["num-prompts"] }),
  concurrency: z.int().min(1).default(1).meta({ short: "c", description: "closed loop: requests in flight", placeholder: "C", aliases: ["max-concurrency"] }),
  rate: z.number().positive().optional().meta({ description: "open loop: requests per second on average, sent whether or not earlier ones ended", placeholder: "R", aliases: ["request-rate"] }),
  maxInFlight: z.int().min(1).optional().meta({ description: "open loop: wait above this many in flight; the wait counts as latency", placeholder: "N" }),
  burstiness: z.number().positive().default(1).meta({ description: "open loop: gamma shape of the gaps; 1 is Poisson, below 1 bursts", placeholder: "B" }),
  maxTokens: z.int().min(1).default(128).meta({ description: "new tokens of a request at most", placeholder: "T" }),
  maxTokensRangeRatio: z.number().min(0).max(1).default(0).meta({ description: "spread of max-tokens: uniform within T * (1 +- ratio), so that requests do not end together", placeholder: "X" }),
  temperature: z.number().min(0).default(0).meta({ description: "0 is greedy", placeholder: "X" }),
  topP: z.number().gt(0).max(1).default(1).meta({ description: "sent when the temperature is above 0", placeholder: "X" }),
  seed: z.int().min(0).default(1).meta({ description: "of prompts, arrivals and sampling", placeholder: "N" }),
  stream: z.boolean().default(true).meta({ description: "stream answers; without it there is no TTFT" }),
  ignoreEos: z.boolean().default(false).meta({ description: "ask the server to write max-tokens past the end of the answer" }),
  endpoint: z.enum(["auto", "chat", "completions"]).default("auto").meta({ description: "/v1/chat/completions or /v1/completions; auto: what the prompts are" }),
  promptFile: z.string().optional().meta({ description: `JSONL of {"prompt"} or {"messages"}, with id and max_tokens if wanted; default: built-in code tasks`, placeholder: "F" }),
  randomInputLen: z.int().min(1).optional().meta({ description: "prompts of exactly this many random token ids instead", placeholder: "N" }),
  randomRangeRatio: z.number().min(0).max(1).default(0).meta({ description: "spread of random lengths: uniform within len * (1 +- ratio)", placeholder: "X" }),
  randomVocab: z.int().min(101).default(4000).meta({ description: "random token ids are below this", placeholder: "N" }),
  sharedPrefixLen: z.int().min(0).default(0).meta({ description: "tokens (random prompts) or words that all prompts begin with, to measure a prefix cache on purpose", placeholder: "N" }),
  warmup: z.int().min(0).optional().meta({ description: "requests before the measured part, discarded; default: one burst of the concurrency", placeholder: "N" }),
  warmupMaxTokens: z.int().min(1).default(32).meta({ description: "new tokens of a warm-up request at most", placeholder: "N" }),
  timeout: z.number().positive().default(600).meta({ description: "seconds for one request", placeholder: "S" }),
  keepAlive: z.boolean().default(false).meta({ description: "reuse connections; a reused one that died is replaced once" }),
  goodput: z.array(z.string()).default([]).meta({ description: "limit in ms that a good request meets: ttft:MS, tpot:MS, e2el:MS", placeholder: "KEY:MS" }),
  extraBody: z.string().optional().meta({ description: "JSON object merged into each request's body", placeholder: "JSON" }),
  saveText: z.boolean().default(false).meta({ description: "keep the answers' text in the raw file" }),
};

export const LoadOptions = z.strictObject(loadShape);
export type LoadOptions = z.output<typeof LoadOptions>;

const { concurrency: _concurrency, ...withoutConcurrency } = loadShape;
/** Without defaults: a field that is not given must not hide what an outer level says. */
const bareFields = Object.fromEntries(Object.entries(withoutConcurrency).map(([key, field]) => [key, (field instanceof z.ZodDefault ? field.unwrap() : field) as z.ZodType])) as {
  [K in keyof typeof withoutConcurrency]: z.ZodType<z.output<(typeof withoutConcurrency)[K]>>;
};

/** A part of a load, for plans and recipes, which set the concurrency themselves and merge several levels. */
export const PartialLoad = z.strictObject(bareFields).partial();

/** @throws {UserError} for a key or number that is not one. */
export function parseLimits(texts: readonly string[]): Limits | undefined {
  if (texts.length === 0) return undefined;
  const limits: { ttftMs?: number; tpotMs?: number; e2elMs?: number } = {};
  for (const text of texts) {
    const match = /^(ttft|tpot|e2el):(\d+(?:\.\d+)?)$/.exec(text);
    if (match === null) throw usageError(`--goodput ${text}: must be ttft:MS, tpot:MS or e2el:MS`);
    limits[`${match[1] as "ttft" | "tpot" | "e2el"}Ms`] = Number(match[2]);
  }
  return limits;
}

/** "ttft 300 ms, tpot 30 ms" */
export function describeLimits(limits: Limits): string {
  return Object.entries(limits).map(([key, ms]) => `${key.replace("Ms", "")} ${ms} ms`).join(", ");
}

/** @throws {UserError} when the text is not a JSON object. */
export function parseExtraBody(text: string | undefined): Record<string, unknown> {
  if (text === undefined) return {};
  try {
    const value: unknown = JSON.parse(text);
    if (typeof value === "object" && value !== null && !Array.isArray(value)) return value as Record<string, unknown>;
  } catch {
    // Falls through to the one message for both cases.
  }
  throw usageError(`--extra-body: must be a JSON object such as {"top_k": 1}`);
}
