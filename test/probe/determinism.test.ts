import * as fs from "node:fs";
import * as os from "node:os";
import * as path from "node:path";
import { afterAll, describe, expect, test } from "vitest";
import type { Capture, CapturedOutput } from "../../src/probe/capture.ts";
import { captureConditions, certificateMarkdown } from "../../src/probe/certificate-document.ts";
import { certify } from "../../src/probe/certificate.ts";
import { checkCertifyPlan } from "../../src/probe/certify-plan.ts";
import { runCertificate } from "../../src/probe/certify.ts";
import { compareCaptures, summarizeForks } from "../../src/probe/compare.ts";

const folder = fs.mkdtempSync(path.join(os.tmpdir(), "foretoken-certify-"));
afterAll(() => fs.rmSync(folder, { recursive: true }));

/** Tokens with the margin of their runner-up each. */
const output = (id: string, tokens: readonly (readonly [string, number])[], finishReason = "length"): CapturedOutput => ({ id, text: tokens.map(([t]) => t).join(""), finishReason, nOutput: tokens.length, tokens: tokens.map(([text, margin]) => ({ text, logprob: -0.1, margin })) });
const captureOf = (name: string, outputs: readonly CapturedOutput[], maxTokens = 8): Capture => ({ kind: "capture", name, model: "m", concurrency: 1, maxTokens, ignoreEos: true, outputs });
const reference = output("p", [["ab", 3], ["cd", 0.01], ["e", 2]]);

describe("compareCaptures", () => {
  test("counts equal prompts with Wilson's interval", () => {
    const many = Array.from({ length: 64 }, (_, i) => ({ ...reference, id: `p${i}` }));
    const comparison = compareCaptures(captureOf("a", many), captureOf("b", many.map((o, i) => (i < 4 ? { ...o, text: "abX" } : o))));
    expect(comparison).toMatchObject({ exact: 60, prompts: 64, mode: "b", reference: "a" });
    expect(comparison.exactInterval.low).toBeCloseTo(0.8502, 3);
    expect(comparison.exactInterval.high).toBeCloseTo(0.9754, 3);
    expect(summarizeForks(comparison.forks)).toEqual({ firstForkMin: 1, firstForkMedian: 1, marginMedian: 0.01, marginMax: 0.01 });
  });

  test("captures that do not belong together are refused", () => {
    expect(() => compareCaptures(captureOf("a", [reference]), captureOf("b", []))).toThrow("different prompts");
    expect(() => compareCaptures(captureOf("a", [reference]), captureOf("b", [reference], 9))).toThrow("different lengths");
  });
});

describe("the verdict claims no more than the rows", () => {
  const rows = (exact: number, of: number, margin: number | null): ReturnType<typeof compareCaptures> => ({ mode: "K 2", reference: "plain alone", prompts: of, exact, exactInterval: { low: 0.5, high: 1 }, forks: Array.from({ length: of - exact }, (_, i) => ({ id: `${i}`, atChar: 0, atToken: 40 + i, margin, rival: null })) });

  test("all equal is a rate, not a proof", () => {
    const { verdict } = certify("t", "r", 300, [{ comparison: rows(64, 64, null), note: null, isPlain: false }]);
    expect(verdict).toBe("Equal in all 64 prompts over at most 300 tokens, against plain alone: K 2. That shows a rate of equal outputs of at least 50.0% (95%), for these prompts on this machine; it is no proof.");
  });

  test("differences are counted beside those of plain decoding", () => {
    const { verdict } = certify("t", "r", 300, [
      { comparison: rows(60, 64, 0.02), note: null, isPlain: false },
      { comparison: { ...rows(61, 64, 0.03), mode: "plain c16" }, note: null, isPlain: true },
    ]);
    expect(verdict).toContain("Different in some prompts, against plain alone: K 2 in 4 of 64 (first at token 40).");
    expect(verdict).toContain("Without any drafts, against plain alone: plain c16 in 3 of 64 (first at token 40): so much comes from batch width and kernels alone.");
    expect(verdict).toContain("Every fork was a near tie: the reference preferred its own token by at most 0.030 nats.");
    expect(verdict).not.toContain("Equal in all");
  });

  test("a fork at a clear token is pointed out", () => {
    expect(certify("t", "r", 300, [{ comparison: rows(63, 64, 1.4), note: null, isPlain: false }]).verdict).toContain("Not every fork was a near tie");
  });
});

describe("runCertificate", () => {
  const command = [process.execPath, path.join(import.meta.dirname, "..", "bench", "fake-openai.mjs"), "--port", "{port}"];
  const raw = { name: "c", prompts: 3, maxTokens: 6, reference: "plain", servers: [{ name: "one", command }, { name: "two", command }], modes: [{ name: "plain", server: "one", plain: true }, { name: "again", server: "one", restart: true, plain: true }, { name: "shorter", server: "two", body: { max_tokens: 4 } }, { name: "wide", server: "one", concurrency: 3, against: ["plain", "again"] }] };

  test("captures each mode once, compares each with what it names, and goes on where it was stopped", async () => {
    const notes: string[] = [];
    const plan = checkCertifyPlan(raw);
    const certificate = await runCertificate(plan, folder, { note: (text) => notes.push(text) });
    expect(certificate.rows.map((r) => [r.mode, r.reference, r.exact, r.prompts])).toEqual([["again", "plain", 3, 3], ["shorter", "plain", 3, 3], ["wide", "plain", 3, 3], ["wide", "again", 3, 3]]);
    expect(notes.filter((n) => n.startsWith("starting"))).toEqual(["starting one", "starting one", "starting two"]);
    fs.rmSync(path.join(folder, "captures", "shorter.json"));
    notes.length = 0;
    expect(await runCertificate(plan, folder, { note: (text) => notes.push(text) })).toEqual(certificate);
    const conditions = captureConditions(plan, folder);
    expect(conditions).toMatchObject({ nodes: [process.versions.node], libraries: ["fake 1"], devices: ["no device"] });
    const text = certificateMarkdown(plan, certificate, conditions, [{ file: "m.gguf", sha256: "ab12" }]);
    for (const part of ["3 prompts (built-in code tasks, seed 1)", "| shorter | plain | 3/3 |", certificate.verdict, "- fake 1, no device", "- m.gguf: sha256 ab12", "- two: `"]) expect(text).toContain(part);
    expect(notes.filter((n) => n.startsWith("starting"))).toEqual(["starting two"]);
  });

  test("a value of the plan may name another, which --set changes", () => {
    const plan = checkCertifyPlan({ ...raw, vars: { h1: "{head}", head: "a.gguf" }, servers: [{ name: "one", command: "serve --head {h1} --port {port}" }, { name: "two", command }] }, ["head=b.gguf"]);
    expect(plan.servers[0]?.command).toEqual(["serve", "--head", "b.gguf", "--port", "{port}"]);
  });

  test.each([
    [{ ...raw, reference: "nobody" }, "mode nobody is not defined"],
    [{ ...raw, modes: [{ name: "plain", server: "zero" }, { name: "b", server: "one" }] }, "server zero is not defined"],
    [{ ...raw, modes: [raw.modes[0], raw.modes[0]] }, "two modes have the same name"],
  ])("refuses a plan that does not add up", (plan, message) => expect(() => checkCertifyPlan(plan)).toThrow(message));
});
