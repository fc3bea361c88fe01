import type { Context } from "hono";
import type { HttpBindings } from "@hono/node-server";
import { apiId } from "./api-id.ts";
import { badRequest } from "./api-error.ts";
import { CompletionFormat } from "./completion-format.ts";
import { toGenerateRequests } from "./generate-request.ts";
import { grammarOf } from "./grammar-of.ts";
import { readJson } from "./read-body.ts";
import { reply } from "./reply.ts";
import { Envelope } from "./reply-format.ts";
import { completionRequest, parseBody, type CompletionRequest } from "./schemas.ts";
import type { ServerContext } from "./server-context.ts";
import type { Tokenizer } from "./tokenizer.ts";

export async function handleCompletion(c: Context<{ Bindings: HttpBindings }>, context: ServerContext): Promise<Response> {
  const { incoming, outgoing } = c.env;
  const request = parseBody(completionRequest, await readJson(c.env, context.settings.maxBodyBytes));
  const { tokenizer } = context.text;
  const prompts = promptsOf(request.prompt, tokenizer);
  const nLogprobs = request.logprobs === undefined || request.logprobs === false ? undefined : Number(request.logprobs);
  if (request.echo === true && nLogprobs !== undefined) throw badRequest("echo together with logprobs is not supported; leave one out", "echo", "unsupported_parameter");
  const stops = request.stop ?? [];
  const requests = toGenerateRequests(request, { prompts: prompts.map((p) => p.tokens), stops, nLogprobs, grammar: grammarOf(request) }, context);
  const n = request.n ?? 1;
  const choices = prompts.flatMap((prompt) => Array.from({ length: n }, () => ({ stops, echo: request.echo === true ? prompt.text : "" })));
  const id = apiId("cmpl");
  const isStream = request.stream ?? false;
  const envelope = new Envelope({
    id,
    objects: ["text_completion", "text_completion"],
    model: context.settings.modelName,
    nPrompt: prompts.reduce((sum, { tokens }) => sum + tokens.length, 0),
    wantsUsage: isStream && (request.stream_options?.include_usage ?? false),
    isSynthetic: context.engine.snapshot().isSynthetic,
  });
  const format = new CompletionFormat(envelope, tokenizer, choices, nLogprobs !== undefined);
  return reply({ context, requests, format, isStream, endpoint: "completion", apiId: id, incoming, outgoing });
}

interface Prompt {
  readonly text: string;
  readonly tokens: Int32Array;
}

/** A text, tokens, or a list of either. A text may name special tokens, as llama-server allows. */
function promptsOf(prompt: CompletionRequest["prompt"], tokenizer: Tokenizer): readonly Prompt[] {
  const ofText = (text: string): Prompt => ({ text, tokens: tokenizer.tokenize(text, { addSpecial: true, parseSpecial: true }) });
  const ofTokens = (tokens: readonly number[]): Prompt => ({
    text: Buffer.concat(tokens.filter((token) => token < tokenizer.nVocab).map((token) => tokenizer.tokenBytes(token, true))).toString(),
    tokens: Int32Array.from(tokens),
  });
  if (typeof prompt === "string") return [ofText(prompt)];
  if (prompt.every((part) => typeof part === "number")) return [ofTokens(prompt)];
  return prompt.map((part) => (typeof part === "string" ? ofText(part) : ofTokens(part as readonly number[])));
}
