/** An API request to engine requests: prompts, limits, sampling. What both endpoints have in common. */
import type { GenerateRequest } from "../engine/request.ts";
import { badRequest } from "./api-error.ts";
import { maxTokensOf, samplingParams, withSeedOf } from "./sampling-params.ts";
import type { GenerationRequest } from "./schemas.ts";
import type { ServerContext } from "./server-context.ts";

export interface GenerateOptions {
  readonly prompts: readonly Int32Array[];
  readonly stops: readonly string[];
  readonly nLogprobs: number | undefined;
  readonly grammar: string | undefined;
}

const NO_LIMIT = 0x7fff_ffff;

/** More parallel choices than this are more likely a slip than a wish. */
const MAX_CHOICES = 256;

/**
 * One engine request a choice: the choices of the first prompt, then of the next.
 * @throws {ApiError} 400 for a prompt that is empty or longer than the context, before anything is sent.
 */
export function toGenerateRequests(request: GenerationRequest, options: GenerateOptions, context: ServerContext): GenerateRequest[] {
  const { engine, text, settings } = context;
  const n = request.n ?? 1;
  if (n * options.prompts.length > MAX_CHOICES) throw badRequest(`${n} choices of ${options.prompts.length} prompts are more than ${MAX_CHOICES}`, "n");
  const sampling = samplingParams(request, text.tokenizer, settings.seed);
  const maxTokens = maxTokensOf(request);
  const nCtx = engine.info?.nCtxSeq ?? Infinity;
  for (const prompt of options.prompts) checkPrompt(prompt, nCtx, text.tokenizer.nVocab);
  return options.prompts.flatMap((prompt) =>
    Array.from({ length: n }, (_, index): GenerateRequest => ({
      id: context.nextId(),
      prompt,
      // The end of the context ends a request too.
      maxTokens: maxTokens ?? NO_LIMIT,
      sampling: withSeedOf(sampling, index),
      stop: options.stops,
      ignoreEos: request.ignore_eos ?? false,
      nLogprobs: options.nLogprobs,
      grammar: options.grammar,
      nMax: request.speculative?.n_max ?? request["speculative.n_max"],
      cachePrompt: request.cache_prompt ?? settings.cachePrompt,
    })),
  );
}

function checkPrompt(prompt: Int32Array, nCtx: number, nVocab: number): void {
  if (prompt.length === 0) throw badRequest("the prompt has no tokens; send at least one character", "prompt", "empty_prompt");
  if (prompt.length >= nCtx)
    throw badRequest(
      `the prompt has ${prompt.length} tokens, the context of a slot has room for ${nCtx} with the answer; shorten it or raise --ctx-size`,
      "prompt",
      "context_length_exceeded",
    );
  const wrong = prompt.find((token) => token >= nVocab);
  if (wrong !== undefined) throw badRequest(`prompt: token ${wrong} is not in the vocabulary of ${nVocab}`, "prompt");
}
