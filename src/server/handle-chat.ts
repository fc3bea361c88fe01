import type { Context } from "hono";
import type { HttpBindings } from "@hono/node-server";
import { badRequest } from "./api-error.ts";
import { apiId } from "./api-id.ts";
import { ChatFormat } from "./chat-format.ts";
import type { ChatParserOptions } from "./chat-parser.ts";
import type { RenderedPrompt } from "./chat-template.ts";
import { toGenerateRequests } from "./generate-request.ts";
import { grammarOf } from "./grammar-of.ts";
import { readJson } from "./read-body.ts";
import { reply } from "./reply.ts";
import { Envelope } from "./reply-format.ts";
import { chatRequest, parseBody, type ChatRequest } from "./schemas.ts";
import type { ServerContext } from "./server-context.ts";
import { toolsInUse, type ToolsInUse } from "./tools-in-use.ts";

/** The model stops after the first call: the parser takes the end of the text for the end of the call. */
const CALL_END = "</tool_call>";

export async function handleChat(c: Context<{ Bindings: HttpBindings }>, context: ServerContext): Promise<Response> {
  const { incoming, outgoing } = c.env;
  const request = parseBody(chatRequest, await readJson(c.env, context.settings.maxBodyBytes));
  const { tokenizer, template } = context.text;
  const tools = toolsInUse(request, template.toolCallStyle);
  if (tools !== undefined && !template.knowsTools) throw badRequest("the chat template of this model has no place for tools; leave them out or give another with --chat-template-file", "tools", "unsupported_parameter");
  const prompt = renderPrompt(request, tools, context);
  const tokens = tokenizePrompt(prompt.text, context);
  if (request.top_logprobs !== undefined && request.logprobs !== true) throw badRequest("top_logprobs needs logprobs: true", "top_logprobs");
  const nLogprobs = request.logprobs === true ? (request.top_logprobs ?? 0) : undefined;
  const userStops = request.stop ?? [];
  const stops = tools?.isParallel === false ? [...userStops, CALL_END] : userStops;
  const grammar = grammarOf(request, { tools, isReasoning: prompt.reasoning === "open" });
  const requests = toGenerateRequests(request, { prompts: [tokens], stops, nLogprobs, grammar }, context);
  const id = apiId("chatcmpl");
  const isStream = request.stream ?? false;
  const envelope = new Envelope({
    id,
    objects: ["chat.completion.chunk", "chat.completion"],
    model: context.settings.modelName,
    nPrompt: tokens.length,
    wantsUsage: isStream && (request.stream_options?.include_usage ?? false),
    isSynthetic: context.engine.snapshot().isSynthetic,
  });
  const parser: ChatParserOptions = { reasoning: reasoningMode(request, prompt, context), tools };
  const format = new ChatFormat(envelope, { nChoices: requests.length, stops, parser, wantsLogprobs: nLogprobs !== undefined, tokenizer });
  return reply({ context, requests, format, isStream, endpoint: "chat", apiId: id, incoming, outgoing });
}

/** The server's variables, then the client's; `enable_thinking` is Qwen's name, which other templates took over. */
export function renderPrompt(request: ChatRequest, tools: ToolsInUse | undefined, context: ServerContext): RenderedPrompt {
  const { reasoning, templateVariables } = context.settings;
  const isOff = request.reasoning_effort === "none" || (request.reasoning_effort === undefined && reasoning === "off");
  const thinking = isOff ? { enable_thinking: false } : reasoning === "on" ? { enable_thinking: true } : {};
  return context.text.template.render({
    messages: request.messages,
    tools: tools?.list ?? [],
    addGenerationPrompt: request.add_generation_prompt ?? true,
    variables: {
      ...thinking,
      ...(request.reasoning_effort === undefined ? {} : { reasoning_effort: request.reasoning_effort }),
      ...templateVariables,
      ...request.chat_template_kwargs,
    },
  });
}

/** A template that writes the beginning-of-sequence text itself must not get it twice. */
export function tokenizePrompt(text: string, context: ServerContext): Int32Array {
  const { tokenizer } = context.text;
  const hasBos = tokenizer.bosText !== "" && text.startsWith(tokenizer.bosText);
  return tokenizer.tokenize(text, { addSpecial: !hasBos, parseSpecial: true });
}

function reasoningMode(request: ChatRequest, prompt: RenderedPrompt, context: ServerContext): ChatParserOptions["reasoning"] {
  if (request.reasoning_format === "none") return "no";
  if (prompt.reasoning === "open") return "open";
  return context.text.template.knowsReasoning && prompt.reasoning === "none" ? "closed" : "no";
}
