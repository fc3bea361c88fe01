import * as fc from "fast-check";
import { describe, expect, test } from "vitest";
import { TextStream } from "../../src/server/text-stream.ts";
import { byteTokenizer } from "./byte-tokenizer.ts";

const tokenBytes = (token: number): Uint8Array => byteTokenizer.tokenBytes(token, false);
const encode = (text: string): number[] => [...byteTokenizer.tokenize(text, { addSpecial: false, parseSpecial: false })];

/** Pushes tokens in groups of the given sizes, as a server that accepts several tokens a step does. */
function stream(tokens: readonly number[], stops: readonly string[], sizes: readonly number[]): string[] {
  const text = new TextStream(tokenBytes, stops);
  const deltas: string[] = [];
  for (let at = 0, i = 0; at < tokens.length; i++) {
    const n = sizes[i % sizes.length] as number;
    deltas.push(text.push(tokens.slice(at, at + n)).text);
    at += n;
  }
  deltas.push(text.finish().text);
  return deltas;
}

const sizes = fc.array(fc.integer({ min: 1, max: 5 }), { minLength: 1, maxLength: 8 });

describe("TextStream", () => {
  test("any text comes out whole, no character is ever split", () => {
    fc.assert(
      fc.property(fc.string({ unit: "grapheme", maxLength: 30 }), sizes, (text, n) => {
        const deltas = stream(encode(text), [], n);
        expect(deltas.join("")).toBe(text);
        for (const delta of deltas) if (!text.includes("�")) expect(delta).not.toContain("�");
      }),
    );
  });

  test("with stops, the deltas join to the text before the first stop, however the steps fall", () => {
    const unit = fc.constantFrom("a", "b", "é", "🙂", "\n");
    fc.assert(
      fc.property(fc.string({ unit, maxLength: 30 }), fc.array(fc.string({ unit, minLength: 1, maxLength: 4 }), { maxLength: 3 }), sizes, (text, stops, n) => {
        const ends = stops.map((stop) => ({ start: text.indexOf(stop), end: text.indexOf(stop) + stop.length })).filter(({ start }) => start >= 0);
        ends.sort((a, b) => a.end - b.end || a.start - b.start);
        const want = ends[0] === undefined ? text : text.slice(0, ends[0].start);
        expect(stream(encode(text), stops, n).join("")).toBe(want);
      }),
    );
  });

  test("a half character at the end becomes U+FFFD only there", () => {
    expect(stream([0x61, 0xf0, 0x9f], [], [1])).toEqual(["a", "", "", "�"]);
  });

  test("text is shown as soon as it cannot become a stop", () => {
    expect(stream(encode("a\nb\n\nc"), ["\n\n"], [1])).toEqual(["a", "", "\nb", "", "", ""]);
  });

  test("log probabilities go with the text of their token, and end where the text is cut", () => {
    const text = new TextStream(tokenBytes, ["END"]);
    const logprob = (token: number) => ({ token, logprob: -1, top: [] });
    const push = (tokens: number[]) => text.push(tokens, tokens.map(logprob)).logprobs.map((l) => l.token);
    expect(push([0x61, 0xc3])).toEqual([0x61, 0xc3]);
    expect(push([0xa9, ...encode("E")])).toEqual([0xa9]);
    // "END." is one token of the vocabulary: the cut falls on its first byte.
    expect(push(encode("xEND."))).toEqual([...encode("Ex")]);
  });
});
