/**
 * Tokens to text that can be shown at once. Three things hold text back: a character whose bytes are not all there,
 * a suffix that may become a stop string, and nothing else. The bytes shown so far never change afterwards.
 */
import type { TokenLogprob } from "../engine/request.ts";
import { StopMatcher } from "../util/stop-strings.ts";

export interface TextDelta {
  readonly text: string;
  /** Of the tokens whose bytes have all been shown, in order; empty when none were asked for. */
  readonly logprobs: readonly TokenLogprob[];
}

interface PendingLogprob {
  readonly logprob: TokenLogprob;
  /** Byte offsets of the token in the text. */
  readonly start: number;
  readonly end: number;
}

const encoder = new TextEncoder();

export class TextStream {
  readonly #tokenBytes: (token: number) => Uint8Array;
  readonly #matcher: StopMatcher;
  // ignoreBOM keeps a byte order mark as text; without `fatal` wrong bytes become U+FFFD.
  readonly #decoder = new TextDecoder("utf-8", { ignoreBOM: true });
  #held: Uint8Array = new Uint8Array();
  #pending: PendingLogprob[] = [];
  #nShown = 0;
  #nTotal = 0;
  #isEnded = false;

  constructor(tokenBytes: (token: number) => Uint8Array, stops: readonly string[]) {
    this.#tokenBytes = tokenBytes;
    this.#matcher = new StopMatcher(stops.map((stop) => encoder.encode(stop)));
  }

  /** Text that has become safe to show. After a stop string everything is dropped. */
  push(tokens: readonly number[], logprobs?: readonly TokenLogprob[]): TextDelta {
    if (this.#isEnded) return { text: "", logprobs: [] };
    const pieces = tokens.map((token) => this.#tokenBytes(token));
    for (const [i, piece] of pieces.entries()) {
      const logprob = logprobs?.[i];
      if (logprob !== undefined) this.#pending.push({ logprob, start: this.#nTotal, end: this.#nTotal + piece.length });
      this.#nTotal += piece.length;
    }
    const bytes = Buffer.concat([this.#held, ...pieces]);
    for (const piece of pieces) if (this.#matcher.push(piece) >= 0) return this.#end(bytes, this.#matcher.matchStart);
    return this.#show(bytes, this.#nTotal - this.#matcher.nHeld, false);
  }

  /** The rest, at the end of the request: what was held back, and U+FFFD for a character that will not be completed. */
  finish(): TextDelta {
    if (this.#isEnded) return { text: "", logprobs: [] };
    return this.#end(this.#held, this.#nTotal);
  }

  #end(bytes: Uint8Array, nEnd: number): TextDelta {
    this.#isEnded = true;
    // A token that begins before the cut was a part of the text, one after it was not.
    const kept = this.#pending.filter(({ start }) => start < nEnd || nEnd === this.#nTotal).map(({ logprob }) => logprob);
    const { text } = this.#show(bytes, nEnd, true);
    this.#pending = [];
    return { text, logprobs: kept };
  }

  #show(bytes: Uint8Array, nEnd: number, isLast: boolean): TextDelta {
    const text = this.#decoder.decode(bytes.subarray(0, nEnd - this.#nShown), { stream: !isLast });
    this.#held = bytes.subarray(nEnd - this.#nShown);
    this.#nShown = nEnd;
    const nReady = this.#pending.findIndex(({ end }) => end > nEnd);
    const ready = this.#pending.splice(0, nReady < 0 ? this.#pending.length : nReady);
    return { text, logprobs: ready.map(({ logprob }) => logprob) };
  }
}
