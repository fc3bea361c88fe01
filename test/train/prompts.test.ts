/** The committed prompt files, and what keeps held-out material out of a capture. */
import * as fs from "node:fs";
import * as os from "node:os";
import * as path from "node:path";
import { describe, expect, test } from "vitest";
import { createDocumentSource, startsFromFolder } from "../../src/train/document-source.ts";
import { heldOutOf, textOf } from "../../src/train/held-out.ts";
import { isPrompt, readPromptFile, type PromptLine } from "../../src/train/prompts.ts";
import { UserError } from "../../src/util/errors.ts";
import { packageRoot } from "../../src/util/paths.ts";

const file = (name: string): string => path.join(packageRoot, "recipes", "prompts", name);
const training = readPromptFile(file("train.jsonl"));
const evaluation = readPromptFile(file("eval.jsonl")).filter(isPrompt);
const source = { seed: 1, sampledShare: 0.25, temperature: 0.7, chatShare: 0.7, heldOutShare: 0.05, startTokens: [8, 96] as const };

describe("committed prompts", () => {
  test("evaluation: at least 64, half chat and half code, none twice", () => {
    expect(evaluation.length).toBeGreaterThanOrEqual(64);
    expect(evaluation.filter((p) => p.half === "chat")).toHaveLength(evaluation.length / 2);
    expect(new Set(evaluation.map(textOf)).size).toBe(evaluation.length);
  });

  test("no template, task or text of the evaluation is in the training prompts", () => {
    const heldOut = heldOutOf(evaluation);
    const plans = createDocumentSource(training, source);
    const given = Array.from({ length: 800 }, (_, i) => plans.plan(i).opening).flatMap((o) => (o.kind === "given" ? [textOf(o.prompt)] : o.kind === "start" ? [o.text] : []));
    expect(given.length).toBeGreaterThan(300);
    for (const text of given) expect(heldOut.matches(text), text).toBe(false);
    const used = new Set(training.flatMap((line) => (line.kind === "template" ? [line.template] : line.kind === "task" ? [line.task] : [])));
    for (const { template, task } of evaluation) for (const part of [template, task]) if (part !== undefined) expect(used.has(part)).toBe(false);
  });

  test("every evaluation prompt matches itself, also inside chat markup", () => {
    const heldOut = heldOutOf(evaluation);
    for (const prompt of evaluation) expect(heldOut.matches(`<|im_start|>user\n${textOf(prompt)}<|im_end|>\n`), textOf(prompt)).toBe(true);
  });
});

test("a template or a task of the held-out prompts is enough to match, other text is not", () => {
  const heldOut = heldOutOf([
    { kind: "prompt", half: "chat", messages: [{ role: "user", content: "How do I sort a list in Python?" }], template: "How do I {task} in Python?", task: "sort a list" },
    { kind: "prompt", half: "code", prompt: "def area(radius):\n    return 3.14159 * radius ** 2\n\ndef volume(radius):" },
  ]);
  expect(heldOut.matches("<|im_start|>user\nHow do I reverse a string in Python?")).toBe(true);
  expect(heldOut.matches("Write code to SORT a   list.")).toBe(true);
  expect(heldOut.matches("x = 1\ndef area(radius):\n    return 3.14159 * radius")).toBe(true);
  expect(heldOut.matches("Write a function that sorts lists")).toBe(false);
  expect(heldOut.matches("How do I do it? In Python or C?")).toBe(false);
});

test("documents are a function of seed and index, and share the halves out", () => {
  const [a, b] = [createDocumentSource(training, source), createDocumentSource(training, source)];
  const other = createDocumentSource(training, { ...source, seed: 2 });
  const plans = Array.from({ length: 60 }, (_, i) => a.plan(i));
  expect(plans.toReversed().map((p) => b.plan(p.index)).toReversed()).toEqual(plans);
  expect(Array.from({ length: 60 }, (_, i) => other.plan(i))).not.toEqual(plans);
  expect(plans.filter((p) => p.half === "chat")).toHaveLength(42);
  expect(new Set(plans.map((p) => p.opening.kind))).toEqual(new Set(["given", "user-turn", "start"]));
});

test("prompt files say where they are wrong", () => {
  const folder = fs.mkdtempSync(path.join(os.tmpdir(), "prompts-"));
  const write = (text: string): string => {
    const name = path.join(folder, "p.jsonl");
    fs.writeFileSync(name, text);
    return name;
  };
  expect(() => readPromptFile(write('{"prompt":"x"}\n{"prompt":'))).toThrow(/p\.jsonl:2: not JSON/);
  expect(() => readPromptFile(write('{"kind":"poem"}'))).toThrow(/kind "poem" is not one of/);
  expect(() => readPromptFile(write('{"half":"chat"}'))).toThrow(/needs either prompt or messages/);
  expect(() => readPromptFile(path.join(folder, "none.jsonl"))).toThrow(UserError);
  expect(() => createDocumentSource([] as PromptLine[], source)).toThrow(UserError);
  fs.mkdirSync(path.join(folder, "texts"));
  expect(() => startsFromFolder(path.join(folder, "texts"))).toThrow(/no text file/);
  fs.writeFileSync(path.join(folder, "texts", "a.py"), "def f(x):\n    return x + 1\n".repeat(100));
  fs.writeFileSync(path.join(folder, "texts", "b.bin"), new Uint8Array(500));
  const pieces = startsFromFolder(path.join(folder, "texts")).filter(isPrompt);
  expect(pieces.map(textOf).join("")).toBe("def f(x):\n    return x + 1\n".repeat(100));
  fs.rmSync(folder, { recursive: true });
});
