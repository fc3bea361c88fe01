/**
 * A vocabulary without weights: token b is byte b, a few pieces of several characters, and ChatML's specials.
 * Every character beyond ASCII is split over tokens, and pieces reach over the borders of stop strings.
 */
import type { Tokenizer } from "../../src/server/tokenizer.ts";

const encoder = new TextEncoder();

export const specialTexts = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"] as const;
export const FIRST_SPECIAL = 256;
export const END_OF_TEXT = 256;
export const IM_END = 258;

const pieces = [" the", "ing", "END.", "\n\n", "tool", "</think>", "1. ", "sto", "ps", "\":"].map((text) => encoder.encode(text));
const FIRST_PIECE = FIRST_SPECIAL + specialTexts.length;

const chatMl = `{%- if tools %}<|im_start|>system
tools: {{ tools | tojson }}<|im_end|>
{% endif %}{%- for m in messages %}<|im_start|>{{ m.role }}
{{ m.content }}{%- if m.tool_calls %}{{ m.tool_calls | tojson }}{%- endif %}<|im_end|>
{% endfor %}{%- if add_generation_prompt %}<|im_start|>assistant
{% if enable_thinking is defined and enable_thinking is false %}<think>

</think>

{% endif %}{% endif %}`;

/** The longest piece at `at`, else the byte. */
function tokenAt(bytes: Uint8Array, at: number): { token: number; length: number } {
  let best = { token: bytes[at] as number, length: 1 };
  for (const [i, piece] of pieces.entries()) {
    if (piece.length > best.length && piece.every((byte, j) => bytes[at + j] === byte)) best = { token: FIRST_PIECE + i, length: piece.length };
  }
  return best;
}

function plain(text: string): number[] {
  const bytes = encoder.encode(text);
  const tokens: number[] = [];
  for (let at = 0; at < bytes.length; ) {
    const { token, length } = tokenAt(bytes, at);
    tokens.push(token);
    at += length;
  }
  return tokens;
}

export const byteTokenizer: Tokenizer = {
  nVocab: FIRST_PIECE + pieces.length,
  chatTemplate: chatMl,
  bosText: "",
  eosText: "<|im_end|>",
  tokenize(text, { parseSpecial }) {
    if (!parseSpecial) return Int32Array.from(plain(text));
    const parts = text.split(/(<\|endoftext\|>|<\|im_start\|>|<\|im_end\|>)/);
    return Int32Array.from(parts.flatMap((part) => (specialTexts.includes(part as never) ? [FIRST_SPECIAL + specialTexts.indexOf(part as never)] : plain(part))));
  },
  tokenBytes(token, special) {
    if (token < FIRST_SPECIAL) return Uint8Array.of(token);
    if (token < FIRST_PIECE) return special ? encoder.encode(specialTexts[token - FIRST_SPECIAL]) : new Uint8Array();
    return pieces[token - FIRST_PIECE] ?? new Uint8Array();
  },
  isEndOfGeneration: (token) => token === END_OF_TEXT || token === IM_END,
};

/** Text of tokens, specials left out. */
export function textOf(tokens: Iterable<number>): string {
  return Buffer.concat([...tokens].map((token) => byteTokenizer.tokenBytes(token, false))).toString();
}
