/**
 * The model's own chat template, a Jinja source in its file (Hugging Face's convention), rendered by
 * @huggingface/jinja. Also tells what the template knows: reasoning and the way it writes tool calls.
 */
import { Template } from "@huggingface/jinja";
import { UserError, errorMessage } from "../util/errors.ts";
import { badRequest } from "./api-error.ts";
import type { ChatMessage, ChatTool } from "./schemas.ts";
import type { ToolCallStyle } from "./tool-call-parser.ts";

/** ChatML: what llama-server falls back to as well. */
const fallbackTemplate = `{% for message in messages %}<|im_start|>{{ message.role }}
{{ message.content }}<|im_end|>
{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant
{% endif %}`;

export interface RenderInput {
  readonly messages: readonly ChatMessage[];
  readonly tools: readonly ChatTool[];
  /** False ends the prompt after the last message. */
  readonly addGenerationPrompt: boolean;
  /** Further variables: enable_thinking and what the client sent as chat_template_kwargs. */
  readonly variables: Readonly<Record<string, unknown>>;
}

export interface RenderedPrompt {
  readonly text: string;
  /** The prompt ends inside <think>, after a whole block of it, or without one. */
  readonly reasoning: "open" | "done" | "none";
}

export class ChatTemplate {
  readonly source: string;
  readonly toolCallStyle: ToolCallStyle;
  /** The template has a place for tools. */
  readonly knowsTools: boolean;
  /** The template knows <think>, so an answer may begin with it. */
  readonly knowsReasoning: boolean;
  readonly #template: Template;
  readonly #texts: { readonly bos_token: string; readonly eos_token: string };
  readonly #knowsDeveloper: boolean;

  /** @throws {UserError} when the source is no Jinja template. */
  constructor(source: string | undefined, texts: { readonly bosText: string; readonly eosText: string }) {
    this.source = source ?? fallbackTemplate;
    this.toolCallStyle = this.source.includes("<function=") ? "xml" : "hermes";
    this.knowsTools = /\btools\b/.test(this.source);
    this.knowsReasoning = this.source.includes("</think>") || this.source.includes("enable_thinking");
    this.#knowsDeveloper = this.source.includes("developer");
    this.#texts = { bos_token: texts.bosText, eos_token: texts.eosText };
    try {
      this.#template = new Template(this.source);
    } catch (error) {
      throw new UserError(`the chat template cannot be parsed: ${errorMessage(error)}; give another with --chat-template-file`);
    }
  }

  /**
   * A last message of the assistant is continued instead of answered, as llama-server does.
   * @throws {ApiError} 400 when the template refuses the messages.
   */
  render({ messages, tools, addGenerationPrompt, variables }: RenderInput): RenderedPrompt {
    const last = messages.at(-1);
    const prefill = addGenerationPrompt && last?.role === "assistant" && (last.tool_calls ?? []).length === 0 ? last : undefined;
    const shown = prefill === undefined ? messages : messages.slice(0, -1);
    const values = {
      ...variables,
      ...this.#texts,
      messages: shown.map((message) => this.#normalize(message)),
      add_generation_prompt: addGenerationPrompt,
      // Hugging Face's renderer passes none, not undefined: templates are written for that.
      tools: tools.length === 0 ? null : tools,
    };
    let text: string;
    try {
      text = this.#template.render(values);
    } catch (error) {
      throw badRequest(`the chat template refused these messages: ${errorMessage(error)}`, "messages");
    }
    if (prefill !== undefined) text += textOfContent(prefill.content);
    return { text, reasoning: reasoningAtEnd(text) };
  }

  #normalize(message: ChatMessage): Record<string, unknown> {
    const { role, content, tool_calls: calls, ...rest } = message;
    const name = role === "function" ? "tool" : role === "developer" && !this.#knowsDeveloper ? "system" : role;
    const plain = Object.fromEntries(Object.entries(rest).filter(([, value]) => value !== null && value !== undefined));
    const toolCalls = (calls ?? []).map((call) => ({ ...call, type: "function", function: { ...call.function, arguments: argumentsOf(call.function.arguments) } }));
    return { role: name, content: textOfContent(content), ...plain, ...(toolCalls.length === 0 ? {} : { tool_calls: toolCalls }) };
  }
}

function textOfContent(content: ChatMessage["content"]): string {
  if (typeof content === "string") return content;
  return (content ?? []).map((part) => part.text).join("\n");
}

/** Templates iterate over arguments as a mapping; OpenAI sends them as JSON text. */
function argumentsOf(given: string | Record<string, unknown>): unknown {
  if (typeof given !== "string") return given;
  try {
    const value: unknown = JSON.parse(given);
    return typeof value === "object" && value !== null ? value : given;
  } catch {
    return given;
  }
}

function reasoningAtEnd(text: string): RenderedPrompt["reasoning"] {
  const end = text.trimEnd();
  if (end.endsWith("<think>")) return "open";
  return end.endsWith("</think>") ? "done" : "none";
}
