/** API fields to the engine's sampling parameters. Defaults are llama-server's. */
import { randomInt } from "node:crypto";
import { greedySampling, type SamplingParams } from "../engine/request.ts";
import { badRequest } from "./api-error.ts";
import type { GenerationRequest } from "./schemas.ts";
import type { Tokenizer } from "./tokenizer.ts";

const DEFAULT_TEMPERATURE = 0.8;

/** `serverSeed` 0: a new seed for each request that names none. */
export function samplingParams(request: GenerationRequest, tokenizer: Tokenizer, serverSeed: number): SamplingParams {
  const named = request.seed === undefined || request.seed < 0 ? serverSeed : request.seed;
  const isNamed = request.seed !== undefined && request.seed >= 0;
  return {
    temperature: request.temperature ?? DEFAULT_TEMPERATURE,
    topK: Math.max(0, request.top_k ?? greedySampling.topK),
    topP: request.top_p ?? greedySampling.topP,
    minP: request.min_p ?? greedySampling.minP,
    seed: isNamed || named !== 0 ? named >>> 0 : randomInt(2 ** 32),
    repeatPenalty: request.repeat_penalty ?? greedySampling.repeatPenalty,
    repeatLastN: request.repeat_last_n ?? greedySampling.repeatLastN,
    presencePenalty: request.presence_penalty ?? 0,
    frequencyPenalty: request.frequency_penalty ?? 0,
    logitBias: logitBias(request.logit_bias, tokenizer),
  };
}

/**
 * OpenAI's {"50256": -100} and llama-server's [[50256, -100], ["text", false]]. -100 and false ban a token, as OpenAI
 * documents; a text stands for each of its tokens.
 */
function logitBias(bias: GenerationRequest["logit_bias"], tokenizer: Tokenizer): SamplingParams["logitBias"] {
  if (bias === undefined) return [];
  const entries: readonly (readonly [number | string, number | false])[] = Array.isArray(bias) ? bias : Object.entries(bias);
  return entries.flatMap(([key, value]) => {
    const amount = value === false || value === -100 ? -Infinity : value;
    const tokens = typeof key === "number" || isNumber(key) ? [Number(key)] : [...tokenizer.tokenize(key, { addSpecial: false, parseSpecial: true })];
    return tokens.map((token): [number, number] => {
      if (token >= tokenizer.nVocab) throw badRequest(`logit_bias: token ${token} is not in the vocabulary of ${tokenizer.nVocab}`, "logit_bias");
      return [token, amount];
    });
  });
}

const isNumber = (text: string): boolean => /^\d+$/.test(text);

/** The next choice of `n` gets its own stream of random numbers. */
export function withSeedOf(sampling: SamplingParams, index: number): SamplingParams {
  return index === 0 ? sampling : { ...sampling, seed: (sampling.seed + index) >>> 0 };
}

/** max_completion_tokens, max_tokens, n_predict: the first given. Undefined or -1: up to the end of the context. */
export function maxTokensOf(request: GenerationRequest): number | undefined {
  const names = ["max_completion_tokens", "max_tokens", "n_predict"] as const;
  const name = names.find((field) => request[field] !== undefined) ?? "max_tokens";
  const value = request[name];
  if (value === 0) throw badRequest(`${name} must be at least 1`, name, "invalid_value");
  return value === undefined || value < 0 ? undefined : value;
}
