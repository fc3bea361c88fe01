import * as fs from "node:fs";
import * as os from "node:os";
import * as path from "node:path";
import { afterAll, describe, expect, test } from "vitest";
import { nCodePrompts } from "../../src/bench/prompts.ts";
import { createWorkload, type WorkloadOptions } from "../../src/bench/workload.ts";

const folder = fs.mkdtempSync(path.join(os.tmpdir(), "foretoken-workload-"));
afterAll(() => fs.rmSync(folder, { recursive: true }));

const base: WorkloadOptions = { n: 8, nWarmup: 4, maxTokens: 16, seed: 1, endpoint: "auto", randomRangeRatio: 0, randomVocab: 4000, sharedPrefixLen: 0 };
const texts = (prompts: ReturnType<typeof createWorkload>["measured"]): string[] => prompts.map((p) => ("messages" in p ? (p.messages[0]?.content ?? "") : JSON.stringify(p.prompt)));

describe("createWorkload", () => {
  test("built-in prompts are distinct, also past the end of the set and between warm-up and measurement", () => {
    const { measured, warmup } = createWorkload({ ...base, n: 2 * nCodePrompts, nWarmup: 64 });
    expect(new Set([...texts(measured), ...texts(warmup)]).size).toBe(2 * nCodePrompts + 64);
    expect(createWorkload(base)).toEqual(createWorkload(base));
    expect(texts(createWorkload(base).measured)).not.toEqual(texts(createWorkload({ ...base, seed: 2 }).measured));
  });

  test("random prompts have exactly the length asked, or the spread asked, and share only what is asked", () => {
    const lengths = createWorkload({ ...base, randomInputLen: 145 }).measured.map((p) => ("prompt" in p ? p.prompt.length : 0));
    expect(new Set(lengths)).toEqual(new Set([145]));
    const spread = createWorkload({ ...base, n: 200, randomInputLen: 100, randomRangeRatio: 0.5 }).measured.map((p) => ("prompt" in p ? p.prompt.length : 0));
    expect(Math.min(...spread)).toBeGreaterThanOrEqual(50);
    expect(Math.max(...spread)).toBeLessThanOrEqual(150);
    expect(new Set(spread).size).toBeGreaterThan(50);
    const shared = createWorkload({ ...base, randomInputLen: 40, sharedPrefixLen: 30 }).measured.map((p) => ("prompt" in p ? (p.prompt as readonly number[]) : []));
    expect(new Set(shared.map((p) => p.slice(0, 30).join())).size).toBe(1);
    expect(new Set(shared.map((p) => p.join())).size).toBe(8);
    for (const id of shared.flat()) expect(id >= 100 && id < 4000).toBe(true);
  });

  test("token limits have the spread asked, whatever the prompts, which do not depend on it; a file's own limits stay", () => {
    const file = path.join(folder, "limits.jsonl");
    fs.writeFileSync(file, '{"prompt":"x","max_tokens":3}\n{"prompt":"y"}\n');
    for (const source of [{}, { randomInputLen: 4 }, { promptFile: file }]) {
      const make = (maxTokensRangeRatio: number) => createWorkload({ ...base, n: 100, ...source, maxTokensRangeRatio }).measured.map(({ maxTokens, ...rest }, i) => ({ maxTokens: "promptFile" in source && i % 2 === 0 ? maxTokens + 13 : maxTokens, rest }));
      const [equal, spread] = [make(0), make(0.5)];
      expect(new Set(equal.map((p) => p.maxTokens))).toEqual(new Set([16]));
      expect(Math.min(...spread.map((p) => p.maxTokens))).toBe(8);
      expect(Math.max(...spread.map((p) => p.maxTokens))).toBe(24);
      expect(spread.map((p) => p.rest)).toEqual(equal.map((p) => p.rest));
    }
  });

  test("a prompt file is used in order and over again; its max_tokens counts", () => {
    const file = path.join(folder, "p.jsonl");
    fs.writeFileSync(file, '{"id":"a","prompt":"x","max_tokens":3}\n{"messages":[{"role":"user","content":"y"}]}\n\n{"prompt":[1,2]}\n');
    const { measured } = createWorkload({ ...base, n: 4, nWarmup: 0, promptFile: file });
    expect(measured).toEqual([
      { id: "a", maxTokens: 3, prompt: "x" },
      { id: "line-2", maxTokens: 16, messages: [{ role: "user", content: "y" }] },
      { id: "line-3", maxTokens: 16, prompt: [1, 2] },
      { id: "a", maxTokens: 3, prompt: "x" },
    ]);
  });

  test.each([
    ["", "has no line"],
    ["{oops", "line 1"],
    ['{"prompt":"x","messages":[]}', "needs either"],
    ['{"max_tokens":4}', "needs either"],
  ])("a bad prompt file %j is refused", (content, message) => {
    const file = path.join(folder, "bad.jsonl");
    fs.writeFileSync(file, content);
    expect(() => createWorkload({ ...base, promptFile: file })).toThrow(message);
  });

  test("an endpoint that cannot take the prompts is refused", () => {
    expect(() => createWorkload({ ...base, endpoint: "chat", randomInputLen: 4 })).toThrow("leave --endpoint out");
    expect(() => createWorkload({ ...base, promptFile: path.join(folder, "none.jsonl") })).toThrow("does not exist");
  });
});
