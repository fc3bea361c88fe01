import { describe, expect, test } from "vitest";
import { startFakeServer } from "../bench/fake-server.ts";
import { incoherence, judge, missingPatterns, probeCorrectness, type CorrectnessCase } from "../../src/probe/correctness.ts";

const chat: CorrectnessCase = { name: "add", endpoint: "chat", prompt: "add", maxTokens: 9, expect: ["def add(", "/return \\w+ \\+ \\w+/"] };

test("patterns are text, or regular expressions between slashes", () => {
  expect(missingPatterns("def add(x, y):\n    return x + y", ["def add(", "/return (\\w) \\+ \\w/", "return a + b", "/RETURN/i", "/RETURN/"])).toEqual(["return a + b", "/RETURN/"]);
});

test.each([
  ["", "empty"],
  ["   \n", "empty"],
  ["good \uFFFD", "broken character"],
  ["a\u0001b", "control"],
  ["the the the the the the the the the the end now", "one word"],
  ["def f(): pass; ab ab ab ab ab ab ab ab ab ab ab x", "one word"],
  ["(((((((((((((((((((((((", "repeats"],
])("%j is incoherent", (text, reason) => expect(incoherence(text)).toContain(reason));

test("code is coherent", () => {
  expect(incoherence("```python\ndef add(a, b):\n    return a + b\n```\n\nThis function can add two numbers. Call it as add(1, 2).")).toBeUndefined();
});

test("a failed request, an incoherent answer and a wrong one fail with their reason", () => {
  expect(judge(chat, "", "status 503: loading")).toMatchObject({ ok: false, detail: "status 503: loading" });
  expect(judge(chat, "\uFFFD", undefined).ok).toBe(false);
  expect(judge(chat, "def add(a, b):\n    return a * b", undefined)).toMatchObject({ ok: false, detail: "not in the answer: /return \\w+ \\+ \\w+/" });
  expect(judge(chat, "def add(a, b):\n    return a + b", undefined).ok).toBe(true);
});

describe("against a server", () => {
  const answer = (text: string): string => JSON.stringify({ choices: [{ text, message: { content: text }, finish_reason: "stop" }], usage: { prompt_tokens: 1, completion_tokens: 2 } });

  test("the model must be listed and every case must hold", async () => {
    const server = await startFakeServer((index, path) => ({ steps: [{ atMs: 0, raw: path === "/v1/models" ? '{"data":[{"id":"tiny"}]}' : answer(index === 0 ? "def add(a, b):\n    return a + b" : "oh no") }] }), { isPaced: false });
    const cases: CorrectnessCase[] = [chat, { name: "plain", endpoint: "completions", prompt: "p", maxTokens: 4, expect: ["a + b"] }];
    const options = { timeoutMs: 30_000 };
    const report = await probeCorrectness({ baseUrl: server.url, model: "tiny" }, cases, options);
    const other = await probeCorrectness({ baseUrl: server.url, model: "huge" }, [], options);
    await server.close();
    expect(report.checks.map((c) => c.ok)).toEqual([true, true, false]);
    expect(report.ok).toBe(false);
    expect(other.checks).toEqual([{ name: "/v1/models lists the model", ok: false, detail: "huge is not among tiny" }]);
  });
});
