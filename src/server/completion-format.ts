/** /v1/completions: text chunks and OpenAI's older shape of log probabilities. */
import type { FinishEvent, TokensEvent } from "../engine/request.ts";
import { appendLegacy, legacyLogprobs, type LegacyLogprobs } from "./logprobs.ts";
import type { Envelope, ReplyFormat } from "./reply-format.ts";
import { TextStream, type TextDelta } from "./text-stream.ts";
import type { Tokenizer } from "./tokenizer.ts";
import { timingsOf } from "./usage.ts";

export interface CompletionChoiceOptions {
  readonly stops: readonly string[];
  /** Sent before the answer: the prompt, when the client wants its echo. */
  readonly echo: string;
}

interface Choice {
  readonly stream: TextStream;
  readonly logprobs: LegacyLogprobs;
  text: string;
  finishReason: string | null;
}

export class CompletionFormat implements ReplyFormat {
  readonly #envelope: Envelope;
  readonly #namedBytes: (token: number) => Uint8Array;
  readonly #wantsLogprobs: boolean;
  readonly #choices: readonly Choice[];

  constructor(envelope: Envelope, tokenizer: Tokenizer, choices: readonly CompletionChoiceOptions[], wantsLogprobs: boolean) {
    this.#envelope = envelope;
    this.#namedBytes = (token) => tokenizer.tokenBytes(token, true);
    this.#wantsLogprobs = wantsLogprobs;
    this.#choices = choices.map(({ stops, echo }) => ({
      stream: new TextStream((token) => tokenizer.tokenBytes(token, false), stops),
      logprobs: { tokens: [], token_logprobs: [], top_logprobs: [], text_offset: [] },
      text: echo,
      finishReason: null,
    }));
  }

  opening(): readonly object[] {
    return this.#choices.flatMap((choice, index) => (choice.text === "" ? [] : [this.#chunk(index, choice.text, null, null)]));
  }

  tokens(index: number, event: TokensEvent): readonly object[] {
    const choice = this.#choices[index] as Choice;
    return this.#show(index, choice.stream.push(event.tokens, event.logprobs));
  }

  finish(index: number, event: FinishEvent): readonly object[] {
    const choice = this.#choices[index] as Choice;
    const rest = this.#show(index, choice.stream.finish());
    choice.finishReason = event.reason;
    return [...rest, this.#chunk(index, "", null, event.reason, { timings: timingsOf([event]) })];
  }

  closing(finishes: readonly FinishEvent[]): readonly object[] {
    return this.#envelope.closing(finishes);
  }

  body(finishes: readonly FinishEvent[]): object {
    const choices = this.#choices.map(({ text, logprobs, finishReason }, index) => ({
      index,
      text,
      logprobs: this.#wantsLogprobs ? logprobs : null,
      finish_reason: finishReason,
    }));
    return this.#envelope.body(choices, finishes);
  }

  #show(index: number, delta: TextDelta): readonly object[] {
    if (delta.text === "" && delta.logprobs.length === 0) return [];
    const choice = this.#choices[index] as Choice;
    const logprobs = this.#wantsLogprobs ? legacyLogprobs(delta.logprobs, this.#namedBytes, choice.text.length) : null;
    if (logprobs !== null) appendLegacy(choice.logprobs, logprobs);
    choice.text += delta.text;
    return [this.#chunk(index, delta.text, logprobs, null)];
  }

  #chunk(index: number, text: string, logprobs: LegacyLogprobs | null, reason: string | null, more: object = {}): object {
    return this.#envelope.chunk([{ index, text, logprobs, finish_reason: reason }], more);
  }
}
