/** How the events of a job become the JSON of an endpoint: chunks while streaming, one body otherwise. */
import type { FinishEvent, TokensEvent } from "../engine/request.ts";
import { packageVersion } from "../util/paths.ts";
import { timingsOf, usageOf } from "./usage.ts";

export interface ReplyFormat {
  /** Chunks before any text. */
  opening(): readonly object[];
  tokens(index: number, event: TokensEvent): readonly object[];
  finish(index: number, event: FinishEvent): readonly object[];
  /** Chunks after the last choice ended. */
  closing(finishes: readonly FinishEvent[]): readonly object[];
  /** The reply of a request that does not stream; call it after the last `finish`. */
  body(finishes: readonly FinishEvent[]): object;
}

export interface EnvelopeOptions {
  readonly id: string;
  /** Of a chunk and of a whole reply. */
  readonly objects: readonly [chunk: string, whole: string];
  readonly model: string;
  readonly nPrompt: number;
  /** Undefined: not streaming, or no usage wanted. */
  readonly wantsUsage: boolean;
  /** True when the engine accepts by set rates: the text is not the model's. */
  readonly isSynthetic: boolean;
}

/** The fields around the choices, the same for both endpoints. */
export class Envelope {
  readonly #options: EnvelopeOptions;
  readonly #created = Math.floor(Date.now() / 1000);

  constructor(options: EnvelopeOptions) {
    this.#options = options;
  }

  chunk(choices: readonly object[], more: object = {}): object {
    return { ...this.#fields(0), choices, ...(this.#options.wantsUsage ? { usage: null } : {}), ...more };
  }

  closing(finishes: readonly FinishEvent[]): readonly object[] {
    if (!this.#options.wantsUsage) return [];
    return [this.chunk([], { usage: usageOf(finishes, this.#options.nPrompt), timings: timingsOf(finishes) })];
  }

  body(choices: readonly object[], finishes: readonly FinishEvent[]): object {
    return { ...this.#fields(1), choices, usage: usageOf(finishes, this.#options.nPrompt), timings: timingsOf(finishes) };
  }

  #fields(which: 0 | 1): object {
    const { id, objects, model, isSynthetic } = this.#options;
    return { id, object: objects[which], created: this.#created, model, system_fingerprint: fingerprint, ...(isSynthetic ? { synthetic: true } : {}) };
  }
}

export const fingerprint = `foretoken-${packageVersion}`;
