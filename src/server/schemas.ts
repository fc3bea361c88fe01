/**
 * What clients may send. Fields of OpenAI's API and llama-server's further ones, by the same names. A field that is
 * not listed is ignored, as clients send many; a known field that would change the answer and is not offered is refused
 * unless it has the value that means "off".
 */
import * as z from "zod";
import { badRequest } from "./api-error.ts";

const optional = <T extends z.ZodType>(type: T) => type.nullish().transform((value) => value ?? undefined);
const penalty = optional(z.number().min(-2).max(2));
const stops = z.union([z.string().min(1).transform((stop) => [stop]), z.array(z.string().min(1)).max(32)]);
const biasValue = z.union([z.number().min(-100).max(100), z.literal(false)]);
const tokenOrText = z.union([z.int().min(0), z.string().min(1)]);

const generation = {
  model: optional(z.string()),
  stream: optional(z.boolean()),
  stream_options: optional(z.object({ include_usage: optional(z.boolean()) })),
  n: optional(z.int().min(1).max(128)),
  stop: optional(stops),
  max_tokens: optional(z.int().min(-1)),
  max_completion_tokens: optional(z.int().min(-1)),
  n_predict: optional(z.int().min(-1)),
  temperature: optional(z.number().min(0).max(100)),
  top_p: optional(z.number().min(0).max(1)),
  top_k: optional(z.int().min(-1)),
  min_p: optional(z.number().min(0).max(1)),
  seed: optional(z.int().min(-1)),
  presence_penalty: penalty,
  frequency_penalty: penalty,
  repeat_penalty: optional(z.number().positive().max(10)),
  repeat_last_n: optional(z.int().min(-1)),
  logit_bias: optional(z.union([z.record(z.string(), biasValue), z.array(z.tuple([tokenOrText, biasValue]))])),
  ignore_eos: optional(z.boolean()),
  cache_prompt: optional(z.boolean()),
  speculative: optional(z.object({ n_max: optional(z.int().min(0)) })),
  "speculative.n_max": optional(z.int().min(0)),
  grammar: optional(z.string()),
  json_schema: optional(z.union([z.record(z.string(), z.unknown()), z.boolean()])),
  user: optional(z.string()),
} as const;

const responseFormat = z.discriminatedUnion("type", [
  z.object({ type: z.literal("text") }),
  z.object({ type: z.literal("json_object"), schema: z.unknown().optional() }),
  z.object({
    type: z.literal("json_schema"),
    schema: z.unknown().optional(),
    json_schema: z.object({ name: optional(z.string()), schema: z.unknown().optional(), strict: optional(z.boolean()) }).optional(),
  }),
]);
export type ResponseFormat = z.output<typeof responseFormat>;

const tokenList = z.array(z.int().min(0));

export const completionRequest = z.object({
  ...generation,
  prompt: z.union([z.string(), tokenList.min(1), z.array(z.string()).min(1), z.array(tokenList.min(1)).min(1)]),
  logprobs: optional(z.union([z.boolean(), z.int().min(0).max(20)])),
  echo: optional(z.boolean()),
  response_format: optional(responseFormat),
});
export type CompletionRequest = z.output<typeof completionRequest>;

const textPart = z.object({ type: z.literal("text"), text: z.string() });
const toolCall = z.object({
  id: optional(z.string()),
  type: z.literal("function").optional(),
  function: z.object({ name: z.string(), arguments: z.union([z.string(), z.record(z.string(), z.unknown())]) }),
});
const chatMessage = z.looseObject({
  role: z.enum(["system", "developer", "user", "assistant", "tool", "function"]),
  content: z.union([z.string(), z.array(textPart)]).nullish(),
  reasoning_content: z.string().nullish(),
  tool_calls: z.array(toolCall).nullish(),
  tool_call_id: z.string().nullish(),
  name: z.string().nullish(),
});
export type ChatMessage = z.output<typeof chatMessage>;

const chatTool = z.object({
  type: z.literal("function"),
  function: z.looseObject({
    name: z.string().regex(/^[\w.-]{1,128}$/, "a name of letters, digits, _, . and -"),
    description: z.string().nullish(),
    parameters: z.record(z.string(), z.unknown()).nullish(),
    strict: z.boolean().nullish(),
  }),
});
export type ChatTool = z.output<typeof chatTool>;

const toolChoice = z.union([
  z.enum(["none", "auto", "required"]),
  z.object({ type: z.literal("function"), function: z.object({ name: z.string() }) }),
]);
export type ToolChoice = z.output<typeof toolChoice>;

export const chatRequest = z.object({
  ...generation,
  messages: z.array(chatMessage).min(1),
  logprobs: optional(z.boolean()),
  top_logprobs: optional(z.int().min(0).max(20)),
  response_format: optional(responseFormat),
  tools: optional(z.array(chatTool).max(256)),
  tool_choice: optional(toolChoice),
  parallel_tool_calls: optional(z.boolean()),
  chat_template_kwargs: optional(z.record(z.string(), z.unknown())),
  reasoning_effort: optional(z.string()),
  reasoning_format: optional(z.enum(["none", "auto", "deepseek"])),
  add_generation_prompt: optional(z.boolean()),
});
export type ChatRequest = z.output<typeof chatRequest>;

export type GenerationRequest = z.output<z.ZodObject<typeof generation>>;

/** Known fields that are not offered, with the values that ask for nothing. */
const neutralValues: Readonly<Record<string, readonly unknown[]>> = {
  best_of: [1],
  suffix: [""],
  functions: [],
  function_call: ["none"],
  audio: [],
  web_search_options: [],
  mirostat: [0],
  typical_p: [1],
  dry_multiplier: [0],
  xtc_probability: [0],
  dynatemp_range: [0],
  top_n_sigma: [-1],
  lora: [],
  image_data: [],
};

/** @throws {ApiError} 400 for a known field that would change the answer and is not offered. */
export function refuseUnsupported(body: Readonly<Record<string, unknown>>): void {
  for (const [name, neutral] of Object.entries(neutralValues)) {
    const value = body[name];
    if (value === undefined || value === null || neutral.includes(value) || (Array.isArray(value) && value.length === 0)) continue;
    throw badRequest(`${name} is not supported by this server; leave it out`, name, "unsupported_parameter");
  }
}

/**
 * Checks a body against a schema.
 * @throws {ApiError} 400 that names the first wrong field, as in messages[0].role.
 */
export function parseBody<S extends z.ZodType>(schema: S, body: unknown): z.output<S> {
  if (typeof body !== "object" || body === null || Array.isArray(body)) throw badRequest("the body must be a JSON object");
  refuseUnsupported(body as Record<string, unknown>);
  const result = schema.safeParse(body);
  if (result.success) return result.data;
  const issue = deepest(result.error.issues[0] as z.core.$ZodIssue);
  const path = issue.path.reduce<string>((text, key) => (typeof key === "number" ? `${text}[${key}]` : text === "" ? String(key) : `${text}.${String(key)}`), "");
  throw badRequest(path === "" ? issue.message : `${path}: ${issue.message}`, path === "" ? undefined : path, "invalid_value");
}

/** A union reports all of its branches: the one that got furthest is what the client meant. */
function deepest(issue: z.core.$ZodIssue): { readonly path: readonly PropertyKey[]; readonly message: string } {
  if (issue.code !== "invalid_union") return issue;
  const inner = issue.errors.flatMap((branch) => branch.map(deepest));
  const best = inner.toSorted((a, b) => b.path.length - a.path.length)[0];
  if (best === undefined || best.path.length === 0) return { path: issue.path, message: best === undefined ? issue.message : inner.map((i) => i.message).join(", or ") };
  return { path: [...issue.path, ...best.path], message: best.message };
}
