import { describe, expect, test } from "vitest";
import { parseOutput, rivalsOf } from "../../src/probe/capture.ts";

const fail = (message: string): Error => new Error(`prompt x: ${message}`);
const parse = (choice: object): ReturnType<typeof parseOutput> => parseOutput("x", JSON.stringify({ choices: [choice], usage: { completion_tokens: 2 } }), fail);

describe("parseOutput", () => {
  test("reads the rivals of the chat form, nearest first, without the token itself", () => {
    const content = [
      { token: "a", logprob: -0.1, top_logprobs: [{ token: "d", logprob: -3.1 }, { token: "a", logprob: -0.1 }, { token: "c", logprob: -2.6 }] },
      { token: "b", logprob: -0.2 },
    ];
    expect(parse({ message: { content: "ab" }, finish_reason: "stop", logprobs: { content } })).toEqual({
      id: "x",
      text: "ab",
      finishReason: "stop",
      nOutput: 2,
      tokens: [{ text: "a", logprob: -0.1, rivals: [["c", 2.5], ["d", 3]] }, { text: "b", logprob: -0.2, rivals: [] }],
    });
  });

  test("reads those of the older form", () => {
    const { tokens } = parse({ text: "a", finish_reason: "length", logprobs: { tokens: ["a"], token_logprobs: [-0.5], top_logprobs: [{ a: -0.5, b: -0.75, c: -1.5 }] } });
    expect(tokens).toEqual([{ text: "a", logprob: -0.5, rivals: [["b", 0.25], ["c", 1]] }]);
  });

  test("of two equally likely tokens the other one is the rival; of two that look alike one is kept", () => {
    const top = (...tokens: string[]): object => ({ message: { content: "b" }, finish_reason: "stop", logprobs: { content: [{ token: "b", logprob: -0.7, top_logprobs: tokens.map((token) => ({ token, logprob: -0.7 })) }] } });
    expect(parse(top("a", "b")).tokens?.[0]?.rivals).toEqual([["a", 0]]);
    expect(parse(top("b", "b")).tokens?.[0]?.rivals).toEqual([["b", 0]]);
  });

  test("a failed answer names its prompt", () => {
    expect(() => parseOutput("x", '{"error":{"message":"loading"}}', fail)).toThrow("prompt x: loading");
  });
});

test("captures that recorded the runner-up alone have one rival", () => {
  expect(rivalsOf({ text: "a", logprob: -0.1, margin: 0.5, runnerUp: "b" })).toEqual([["b", 0.5]]);
  expect(rivalsOf({ text: "a", logprob: -0.1, margin: 0.5 })).toEqual([["", 0.5]]);
  expect(rivalsOf({ text: "a", logprob: -0.1, margin: null })).toEqual([]);
});
