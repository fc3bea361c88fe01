import * as fc from "fast-check";
import { describe, expect, test } from "vitest";
import type { CapturedOutput, Rival } from "../../src/probe/capture.ts";
import { findFork } from "../../src/probe/fork.ts";

/** Each token with its rivals. */
const output = (...tokens: readonly (readonly [string, ...Rival[]])[]): CapturedOutput => ({ id: "p", text: tokens.map(([t]) => t).join(""), finishReason: "length", nOutput: tokens.length, tokens: tokens.map(([text, ...rivals]) => ({ text, logprob: -0.1, rivals })) });
/** The same request answered with another text, whose tokens are not known. */
const answered = (reference: CapturedOutput, text: string): CapturedOutput => ({ ...reference, text, tokens: null });
const reference = output(["ab", ["x", 3]], ["cd", ["cX", 0.01]], ["e", ["y", 2]]);

describe("findFork", () => {
  test("equal texts that end for the same reason are equal", () => {
    expect(findFork(reference, { ...reference, tokens: null })).toBeUndefined();
    expect(findFork(reference, { ...reference, finishReason: "stop" })).toMatchObject({ atChar: 5, atToken: 3, margin: null });
  });

  test("the fork is the reference's token that holds the first differing character", () => {
    expect(findFork(reference, answered(reference, "abcXe"))).toEqual({ id: "p", atChar: 3, atToken: 1, margin: 0.01, rival: "cX" });
    expect(findFork(reference, answered(reference, "ab"))).toMatchObject({ atChar: 2, atToken: 1, rival: null });
    expect(findFork({ ...reference, tokens: null }, answered(reference, "X"))).toEqual({ id: "p", atChar: 0, atToken: null, margin: null, rival: null });
  });

  test("the margin is that of the rival which the other text has, whichever place it was in", () => {
    const one = output([" the", [" a", 0.1], [" an", 0.25], [" one", 0.7]], [" end", [" start", 1]]);
    expect(findFork(one, answered(one, " one start"))).toMatchObject({ atToken: 0, margin: 0.7, rival: " one" });
    // " a" fits as well, and is the likelier of the two.
    expect(findFork(one, answered(one, " an end"))).toMatchObject({ atToken: 0, margin: 0.1, rival: " a" });
    expect(findFork(one, answered(one, " this end"))).toMatchObject({ atToken: 0, margin: 0.7, rival: null });
  });

  test("where the third best token was taken, the tokens around it are not blamed", () => {
    const one = output(["(x", ["(y", 4]], [")", ["):", 0.2], [")\n", 0.27]], [" +", [" -", 0.69], ["\n", 5]]);
    expect(findFork(one, answered(one, "(x)\n  +"))).toEqual({ id: "p", atChar: 3, atToken: 1, margin: 0.27, rival: ")\n" });
  });

  test("a token before is the fork when a rival of it is what the other text has there", () => {
    const one = output(["x", ["y", 4]], [",", [",\n", 0.05]], [" t", ["\n", 2.5]], ["itle", ["ape", 7]]);
    expect(findFork(one, answered(one, "x,\n title"))).toMatchObject({ atChar: 2, atToken: 1, margin: 0.05 });
    // "]])" instead of "]])\n", and then "\n\n": only the token just before counts.
    const shorter = output(["]])\n", ["]])", 0.01]], ["   ", ["\t", 5.7]]);
    expect(findFork(shorter, answered(shorter, "]])\n\n   "))).toMatchObject({ atChar: 4, atToken: 0, margin: 0.01 });
    // Not the text of any rival: the token that holds the character.
    expect(findFork(one, answered(one, "x,-title"))).toMatchObject({ atToken: 2, margin: 2.5, rival: null });
    expect(findFork(one, answered(one, "x, tape"))).toMatchObject({ atToken: 3, margin: 7, rival: "ape" });
  });

  test("tokens of both sides say exactly where they part", () => {
    const one = output(["a", ["ab", 0.5], ["b", 0.9]], ["b", ["c", 0.1]], ["d", ["e", 0.2]]);
    expect(findFork(one, output(["ab"], ["e"]))).toEqual({ id: "p", atChar: 2, atToken: 0, margin: 0.5, rival: "ab" });
    expect(findFork(one, output(["zz"]))).toMatchObject({ atToken: 0, margin: 0.9, rival: null });
    expect(findFork(one, { ...output(["a"], ["b"]), text: "abe" })).toMatchObject({ atChar: 2, atToken: 2, margin: 0.2 });
  });

  test("a special token that was taken instead is in no text", () => {
    const one = output(["done", ["fine", 3]], ["\n", ["<|im_end|>", 0.3], [" ", 4]]);
    expect(findFork(one, answered(one, "doneuser"))).toMatchObject({ atToken: 1, margin: 0.3, rival: "<|im_end|>" });
    expect(findFork(one, answered(one, "done user"))).toMatchObject({ atToken: 1, margin: 4, rival: " " });
  });

  test("tokens that the text leaves out take no room", () => {
    const one: CapturedOutput = { ...output(["ab", ["a", 1]], ["<|im_end|>"], ["\uFFFD"], ["\uFFFD"], ["cd", ["cX", 5]]), text: "ab\u00e9cd" };
    expect(findFork(one, answered(one, "ab\u00e9cX"))).toMatchObject({ atToken: 4, margin: 5 });
    expect(findFork(one, answered(one, "aX"))).toMatchObject({ atToken: 0 });
  });

  test("a part of a character stands for any character beyond ASCII", () => {
    const one = output(["-", [" \uFFFD", 0.4], ["+", 0.5]]);
    expect(findFork(one, answered(one, " \u2705"))).toMatchObject({ margin: 0.4, rival: " \uFFFD" });
    expect(findFork(one, answered(one, " x"))).toMatchObject({ margin: 0.5, rival: null });
  });

  test("captures that recorded the runner-up alone are read", () => {
    const old: CapturedOutput = { ...reference, tokens: [{ text: "ab", logprob: 0, margin: 3 }, { text: "cde", logprob: 0, margin: 0.01, runnerUp: "cX" }] };
    expect(findFork(old, answered(old, "abcXe"))).toMatchObject({ atToken: 1, margin: 0.01, rival: "cX" });
    expect(findFork(old, answered(old, "X"))).toMatchObject({ atToken: 0, margin: 3, rival: null });
  });

  test("a change at any place is found there", () => {
    fc.assert(
      fc.property(fc.array(fc.string({ minLength: 1, maxLength: 3 }), { minLength: 1, maxLength: 20 }), fc.nat(), (pieces, n) => {
        const texts = pieces.map((t, i) => `${i};${t}`);
        const at = n % texts.length;
        const one = output(...texts.map((t) => [t, ["", 1]] as const));
        const start = texts.slice(0, at).join("").length;
        const text = `${one.text.slice(0, start)}\u0000${one.text.slice(start + 1)}`;
        if (text !== one.text) expect(findFork(one, answered(one, text))).toMatchObject({ atChar: start, atToken: at });
      }),
    );
  });
});
