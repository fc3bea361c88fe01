/** Where one output parts from its reference, and how near a tie the reference was between the two tokens there. Pure. */
import { type CapturedOutput, type CapturedToken, type Rival, rivalsOf } from "./capture.ts";

export interface Fork {
  readonly id: string;
  /** First differing character of the text. */
  readonly atChar: number;
  /** Token of the reference where the outputs part; null without tokens. */
  readonly atToken: number | null;
  /** Log probability of the reference's token minus that of the rival taken instead, in nats; the least it can be where `rival` is null. */
  readonly margin: number | null;
  /** What the other output has in the token's place; null when that is none of the recorded rivals. */
  readonly rival: string | null;
}

type Place = Pick<Fork, "atToken" | "margin" | "rival">;

/** Undefined when the outputs are equal: same text, same reason to end. */
export function findFork(reference: CapturedOutput, other: CapturedOutput): Fork | undefined {
  const [a, b] = [reference.text, other.text];
  let atChar = 0;
  while (atChar < a.length && atChar < b.length && a[atChar] === b[atChar]) atChar++;
  if (atChar === a.length && atChar === b.length && reference.finishReason === other.finishReason) return undefined;
  return { id: reference.id, atChar, ...(placeByTokens(reference, other) ?? placeByText(reference, b, atChar)) };
}

/** Undefined when one side has no tokens or they show no difference (parts of characters look alike). */
function placeByTokens({ tokens }: CapturedOutput, other: CapturedOutput): Place | undefined {
  const atToken = tokens?.findIndex((token, i) => other.tokens?.[i] !== undefined && other.tokens[i].text !== token.text) ?? -1;
  if (atToken < 0) return undefined;
  const taken = other.tokens?.[atToken]?.text;
  return placeOf(tokens, atToken, rivalsAt(tokens, atToken).find(([text]) => text === taken));
}

/** A longer rival is searched for this many tokens before the character that differs. */
const nLookBack = 8;

/**
 * The token that holds the first differing character, or one shortly before it: "," and ",\n" begin alike, so texts that
 * part at the character after the comma may have parted at the comma. A token is a candidate when one of its rivals is
 * what the other text has there, past the differing character; of the holder and the one just before also when the rival
 * is shorter ("]]" for "]])\n"), after which the texts may have gone on alike for a while, and of the holder when it is a
 * special token. Of all such rivals the nearest tie is taken: it is the likeliest to have tipped.
 */
function placeByText(reference: CapturedOutput, other: string, atChar: number): Place {
  const { tokens } = reference;
  if (tokens === null || tokens.length === 0) return { atToken: null, margin: null, rival: null };
  const { starts, holder } = layOut(reference, atChar);
  const candidates: Place[] = [];
  for (let i = holder; i >= Math.max(0, holder - nLookBack); i--) {
    const start = starts[i] ?? atChar;
    const written = rivalsAt(tokens, i).find(([text]) => isTextAt(text, other, start) && (start + text.length > atChar || i >= holder - 1));
    const taken = written ?? (i === holder ? rivalsAt(tokens, i).find(([text]) => isUnwritten(text)) : undefined);
    if (taken !== undefined) candidates.push(placeOf(tokens, i, taken));
  }
  if (candidates.length === 0) return placeOf(tokens, holder, undefined);
  return candidates.reduce((a, b) => ((b.margin ?? Infinity) < (a.margin ?? Infinity) ? b : a));
}

const rivalsAt = (tokens: readonly CapturedToken[] | null, i: number): readonly Rival[] => (tokens?.[i] === undefined ? [] : rivalsOf(tokens[i]));

/** A token that is no recorded rival is at least as far behind as the last of them. */
function placeOf(tokens: readonly CapturedToken[] | null, atToken: number, taken: Rival | undefined): Place {
  return { atToken, margin: (taken ?? rivalsAt(tokens, atToken).at(-1))?.[1] ?? null, rival: taken?.[0] ?? null };
}

/** A token that ends within a character is shown with a replacement mark, in whose place the text has any character beyond ASCII. */
function isTextAt(token: string, text: string, start: number): boolean {
  const mark = token.indexOf("\uFFFD");
  if (mark < 0) return token !== "" && text.startsWith(token, start);
  return text.startsWith(token.slice(0, mark), start) && text.charCodeAt(start + mark) > 0x7f;
}

/** Special tokens, such as <|im_end|>, which a text leaves out. */
const isUnwritten = (token: string): boolean => /^<\|.+\|>$|^<\/s>$|^<(eos|end_of_turn)>$/.test(token);

/**
 * Where tokens start, up to the one that holds a character (past the end: the one after the last). A token whose text is
 * not the text's next piece (a special token, which the text leaves out, or a part of a character) takes no room.
 */
function layOut({ tokens, text }: CapturedOutput, atChar: number): { starts: number[]; holder: number } {
  const starts: number[] = [];
  let end = 0;
  for (const [i, token] of (tokens ?? []).entries()) {
    const start = token.text === "" ? -1 : text.indexOf(token.text, end);
    // Parts of one character come as replacement marks: the next whole token is found a few characters on.
    const hasRoom = start >= end && start <= end + 2;
    starts.push(hasRoom ? start : end);
    if (hasRoom) end = start + token.text.length;
    if (atChar < end) return { starts, holder: i };
  }
  return { starts, holder: starts.length };
}
