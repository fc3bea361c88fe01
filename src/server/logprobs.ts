/** Log probabilities in the two shapes of OpenAI. They are the verifier's, before sampling filters. */
import type { TokenLogprob } from "../engine/request.ts";

type TokenBytes = (token: number) => Uint8Array;

const decoder = new TextDecoder("utf-8", { ignoreBOM: true });
const strict = new TextDecoder("utf-8", { ignoreBOM: true, fatal: true });

/** Chat: {token, logprob, bytes, top_logprobs}. `bytes` is right where a token is a part of a character. */
export function chatLogprobs(logprobs: readonly TokenLogprob[], tokenBytes: TokenBytes): readonly object[] {
  const entry = (token: number, logprob: number): object => {
    const bytes = tokenBytes(token);
    return { token: decoder.decode(bytes), logprob: finite(logprob), bytes: [...bytes] };
  };
  return logprobs.map(({ token, logprob, top }) => ({ ...entry(token, logprob), top_logprobs: top.map(([t, l]) => entry(t, l)) }));
}

export interface LegacyLogprobs {
  readonly tokens: string[];
  readonly token_logprobs: number[];
  readonly top_logprobs: Record<string, number>[];
  readonly text_offset: number[];
}

/** Completions: parallel arrays. `offset` is where the first of these tokens begins in the text, in UTF-16 units. */
export function legacyLogprobs(logprobs: readonly TokenLogprob[], tokenBytes: TokenBytes, offset: number): LegacyLogprobs {
  const tokens = logprobs.map(({ token }) => tokenText(tokenBytes(token)));
  let at = offset;
  return {
    tokens,
    token_logprobs: logprobs.map(({ logprob }) => finite(logprob)),
    top_logprobs: logprobs.map(({ top }) => Object.fromEntries(top.map(([t, l]) => [tokenText(tokenBytes(t)), finite(l)]))),
    text_offset: logprobs.map(({ token }) => {
      const start = at;
      at += decoder.decode(tokenBytes(token)).length;
      return start;
    }),
  };
}

export function appendLegacy(to: LegacyLogprobs, more: LegacyLogprobs): void {
  to.tokens.push(...more.tokens);
  to.token_logprobs.push(...more.token_logprobs);
  to.top_logprobs.push(...more.top_logprobs);
  to.text_offset.push(...more.text_offset);
}

/** OpenAI writes a part of a character as bytes:\xe2\x80. */
function tokenText(bytes: Uint8Array): string {
  try {
    return strict.decode(bytes);
  } catch {
    return `bytes:${[...bytes].map((byte) => `\\x${byte.toString(16).padStart(2, "0")}`).join("")}`;
  }
}

/** JSON has no -Infinity; OpenAI sends -9999 for "practically impossible". */
function finite(logprob: number): number {
  return Number.isFinite(logprob) ? logprob : -9999;
}
