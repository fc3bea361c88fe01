/** Where two captures part: per prompt the first differing token, and how near a tie the reference was there. Pure. */
import { usageError } from "../util/errors.ts";
import { median, wilsonInterval, type Interval } from "../util/stats.ts";
import type { Capture, CapturedOutput } from "./capture.ts";

export interface Fork {
  readonly id: string;
  /** First differing character of the text. */
  readonly atChar: number;
  /** Token of the reference where the outputs part; null without tokens. */
  readonly atToken: number | null;
  /** The reference's margin at that token, in nats. */
  readonly margin: number | null;
}

export interface Comparison {
  readonly mode: string;
  readonly reference: string;
  readonly prompts: number;
  readonly exact: number;
  readonly exactInterval: Interval;
  readonly forks: readonly Fork[];
}

/** @throws {UserError} when the captures are of other prompts or lengths. */
export function compareCaptures(reference: Capture, other: Capture): Comparison {
  const byId = new Map(other.outputs.map((o) => [o.id, o]));
  if (reference.outputs.length !== other.outputs.length || reference.outputs.some((o) => !byId.has(o.id))) throw usageError(`${reference.name} and ${other.name} hold different prompts and cannot be compared`);
  if (reference.maxTokens !== other.maxTokens || reference.ignoreEos !== other.ignoreEos) throw usageError(`${reference.name} and ${other.name} were captured with different lengths (${reference.maxTokens} and ${other.maxTokens} tokens) and cannot be compared`);
  const forks = reference.outputs.flatMap((o) => findFork(o, byId.get(o.id) as CapturedOutput) ?? []);
  const exact = reference.outputs.length - forks.length;
  return { mode: other.name, reference: reference.name, prompts: reference.outputs.length, exact, exactInterval: wilsonInterval(exact, reference.outputs.length), forks };
}

/** Undefined when the outputs are equal: same text, same reason to end. */
export function findFork(reference: CapturedOutput, other: CapturedOutput): Fork | undefined {
  const [a, b] = [reference.text, other.text];
  let atChar = 0;
  while (atChar < a.length && atChar < b.length && a[atChar] === b[atChar]) atChar++;
  if (atChar === a.length && atChar === b.length && reference.finishReason === other.finishReason) return undefined;
  const atToken = forkToken(reference, b, atChar);
  return { id: reference.id, atChar, atToken, margin: atToken === null ? null : (reference.tokens?.[atToken]?.margin ?? null) };
}

/** A longer runner-up is searched for this many tokens before the character that differs. */
const nLookBack = 8;

/**
 * The token that holds the first differing character, or one shortly before it: "," and ",\n" begin alike, so texts that
 * part at the character after the comma may have parted at the comma. A token before is a candidate when its runner-up
 * is what the other text has there, past the differing character; the one just before also when its runner-up is shorter
 * ("]]" for "]])\n", or the other way round), after which the texts may have gone on alike for a while. Of the candidates
 * the nearest tie is taken.
 */
function forkToken(reference: CapturedOutput, other: string, atChar: number): number | null {
  const { tokens } = reference;
  if (tokens === null || tokens.length === 0) return null;
  const { starts, holder } = layOut(reference, atChar);
  let [best, margin] = [holder, tokens[holder]?.margin ?? Infinity];
  for (let i = holder - 1; i >= Math.max(0, holder - nLookBack); i--) {
    const [start, runnerUp, own] = [starts[i] as number, tokens[i]?.runnerUp ?? "", tokens[i]?.margin ?? Infinity];
    const fits = runnerUp !== "" && other.startsWith(runnerUp, start);
    if (fits && (start + runnerUp.length > atChar || i === holder - 1) && own < margin) [best, margin] = [i, own];
  }
  return best;
}

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

export interface ForkSummary {
  readonly firstForkMin: number | null;
  readonly firstForkMedian: number | null;
  readonly marginMedian: number | null;
  readonly marginMax: number | null;
}

export function summarizeForks(forks: readonly Fork[]): ForkSummary {
  const tokens = forks.flatMap((f) => (f.atToken === null ? [] : [f.atToken]));
  const margins = forks.flatMap((f) => (f.margin === null ? [] : [f.margin]));
  return {
    firstForkMin: tokens.length === 0 ? null : Math.min(...tokens),
    firstForkMedian: tokens.length === 0 ? null : median(tokens),
    marginMedian: margins.length === 0 ? null : median(margins),
    marginMax: margins.length === 0 ? null : Math.max(...margins),
  };
}
