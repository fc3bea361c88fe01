/** /v1/chat/completions: content, reasoning_content and tool calls, as deltas or as one message. */
import { randomBytes } from "node:crypto";
import type { FinishEvent, TokenLogprob, TokensEvent } from "../engine/request.ts";
import { ChatParser, type ChatDelta, type ChatParserOptions } from "./chat-parser.ts";
import { chatLogprobs } from "./logprobs.ts";
import type { Envelope, ReplyFormat } from "./reply-format.ts";
import { TextStream, type TextDelta } from "./text-stream.ts";
import type { Tokenizer } from "./tokenizer.ts";
import { timingsOf } from "./usage.ts";

export interface ChatFormatOptions {
  readonly nChoices: number;
  readonly stops: readonly string[];
  readonly parser: ChatParserOptions;
  readonly wantsLogprobs: boolean;
  readonly tokenizer: Tokenizer;
}

interface Call {
  readonly id: string;
  readonly name: string;
  arguments: string;
}

class ChatChoice {
  readonly stream: TextStream;
  readonly parser: ChatParser;
  readonly calls: Call[] = [];
  readonly logprobs: object[] = [];
  /** Of tokens whose text the parser still holds back. */
  unsentLogprobs: object[] = [];
  reasoning = "";
  content = "";
  finishReason: string | null = null;

  constructor({ tokenizer, stops, parser }: ChatFormatOptions) {
    this.stream = new TextStream((token) => tokenizer.tokenBytes(token, false), stops);
    this.parser = new ChatParser(parser);
  }

  /** Adds a delta to the message; returns it in OpenAI's shape, undefined when it is empty. */
  apply(delta: ChatDelta): Record<string, unknown> | undefined {
    const shown: Record<string, unknown> = {};
    if (delta.reasoning !== "") shown["reasoning_content"] = delta.reasoning;
    if (delta.content !== "") shown["content"] = delta.content;
    this.reasoning += delta.reasoning;
    this.content += delta.content;
    if (delta.toolCalls.length > 0) shown["tool_calls"] = delta.toolCalls.map((call) => this.#applyCall(call));
    return Object.keys(shown).length === 0 ? undefined : shown;
  }

  #applyCall({ index, name, arguments: part = "" }: ChatDelta["toolCalls"][number]): object {
    if (name !== undefined) {
      const call: Call = { id: `call_${randomBytes(12).toString("hex")}`, name, arguments: part };
      this.calls[index] = call;
      return { index, id: call.id, type: "function", function: { name, arguments: part } };
    }
    (this.calls[index] as Call).arguments += part;
    return { index, function: { arguments: part } };
  }

  get message(): object {
    const calls = this.calls.map(({ id, name, arguments: text }) => ({ id, type: "function", function: { name, arguments: text } }));
    return {
      role: "assistant",
      content: this.content === "" && calls.length > 0 ? null : this.content,
      ...(this.reasoning === "" ? {} : { reasoning_content: this.reasoning }),
      ...(calls.length === 0 ? {} : { tool_calls: calls }),
    };
  }
}

export class ChatFormat implements ReplyFormat {
  readonly #envelope: Envelope;
  readonly #options: ChatFormatOptions;
  readonly #choices: readonly ChatChoice[];

  constructor(envelope: Envelope, options: ChatFormatOptions) {
    this.#envelope = envelope;
    this.#options = options;
    this.#choices = Array.from({ length: options.nChoices }, () => new ChatChoice(options));
  }

  opening(): readonly object[] {
    return this.#choices.map((_, index) => this.#chunk(index, { role: "assistant", content: "" }, null));
  }

  tokens(index: number, event: TokensEvent): readonly object[] {
    const choice = this.#choices[index] as ChatChoice;
    return this.#show(index, choice.stream.push(event.tokens, event.logprobs));
  }

  finish(index: number, event: FinishEvent): readonly object[] {
    const choice = this.#choices[index] as ChatChoice;
    const chunks = [...this.#show(index, choice.stream.finish())];
    const last = choice.apply(choice.parser.finish());
    if (last !== undefined || choice.unsentLogprobs.length > 0) chunks.push(this.#chunk(index, last ?? {}, null));
    choice.finishReason = event.reason === "stop" && choice.parser.nToolCalls > 0 ? "tool_calls" : event.reason;
    chunks.push(this.#chunk(index, {}, choice.finishReason, { timings: timingsOf([event]) }));
    return chunks;
  }

  closing(finishes: readonly FinishEvent[]): readonly object[] {
    return this.#envelope.closing(finishes);
  }

  body(finishes: readonly FinishEvent[]): object {
    const choices = this.#choices.map((choice, index) => ({
      index,
      message: choice.message,
      logprobs: this.#options.wantsLogprobs ? { content: choice.logprobs } : null,
      finish_reason: choice.finishReason,
    }));
    return this.#envelope.body(choices, finishes);
  }

  #show(index: number, { text, logprobs }: TextDelta): readonly object[] {
    const choice = this.#choices[index] as ChatChoice;
    this.#keepLogprobs(choice, logprobs);
    if (text === "") return [];
    const delta = choice.apply(choice.parser.push(text));
    return delta === undefined ? [] : [this.#chunk(index, delta, null)];
  }

  #keepLogprobs(choice: ChatChoice, logprobs: readonly TokenLogprob[]): void {
    if (!this.#options.wantsLogprobs || logprobs.length === 0) return;
    const entries = chatLogprobs(logprobs, (token) => this.#options.tokenizer.tokenBytes(token, true));
    choice.logprobs.push(...entries);
    choice.unsentLogprobs.push(...entries);
  }

  #chunk(index: number, delta: object, finishReason: string | null, more: object = {}): object {
    const choice = this.#choices[index] as ChatChoice;
    const logprobs = choice.unsentLogprobs.length === 0 ? null : { content: choice.unsentLogprobs };
    choice.unsentLogprobs = [];
    return this.#envelope.chunk([{ index, delta, logprobs, finish_reason: finishReason }], more);
  }
}
