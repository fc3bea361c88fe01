import * as fs from "node:fs";
import * as os from "node:os";
import * as path from "node:path";
import { afterAll, describe, expect, test } from "vitest";
import { checkRecipe } from "../../src/lab/recipe.ts";
import { readExtras } from "../../src/lab/results.ts";
import { metadataTable } from "../../src/report/tables.ts";
import type { StepRecord } from "../../src/lab/step-record.ts";

const folder = fs.mkdtempSync(path.join(os.tmpdir(), "foretoken-results-"));
afterAll(() => fs.rmSync(folder, { recursive: true }));

const head = path.join(folder, "head.gguf");
const recipe = checkRecipe({
  name: "r",
  title: "R",
  artifacts: { head: { file: head, label: "Trained head", type: "BF16" }, run: { file: path.join(folder, "train"), label: "Run" } },
  steps: [
    { id: "train", title: "Train", run: ["train"], outputs: ["run"], report: "training" },
    { id: "judge", title: "Judge", run: ["train"], report: "evaluation" },
    { id: "trace", title: "Drafts of two", run: ["trace", "-n", "8"], report: "shapes" },
    { id: "verify", title: "Read back", run: ["inspect"], report: "inspect" },
    { id: "det", title: "Equal outputs", run: ["probe"], report: "determinism" },
  ],
});

function done(id: string, result: unknown, outputs: StepRecord["outputs"] = []): Parameters<typeof readExtras>[1][number] {
  const step = recipe.steps.find((s) => s.id === id);
  if (step === undefined) throw new Error(id);
  return { step, record: { id, key: "", title: step.title, command: "", date: "", seconds: 1, exitCode: 0, log: null, outputs, result } };
}

describe("readExtras", () => {
  test("a training run is its log's curve and its end", () => {
    const run = path.join(folder, "train");
    fs.mkdirSync(run);
    const lines = [
      { event: "start", nParameters: 9, nTrainable: 5, nDocuments: 1, nTokens: 1234, device: "CPU", computeType: "f32", resumedAt: 0 },
      ...[50, 100, 150].map((step) => ({ event: "validate", step, stage: 0, elapsedMs: 1, tokensPerDraft: 1.5, nll: [2, 3], acceptance: [0.5, 0.2], nRows: 3 })),
    ];
    fs.writeFileSync(path.join(run, "train.jsonl"), `${lines.map((l) => JSON.stringify(l)).join("\n")}\n{"cut`);
    const end = { event: "end", step: 150, elapsedMs: 61_000, reason: "done", heads: [head], medianStepMs: 210.4 };
    const { training } = readExtras(recipe, [done("train", end, [{ id: "run", file: run, sizeBytes: 1, sha256: "" }])]);
    expect(training[0]?.points.map((p) => [p.step, p.loss, p.acceptance])).toEqual([50, 100, 150].map((step) => [step, 2, [0.5, 0.2]]));
    expect(training[0]?.detail).toBe("5 parameters on 1,234 captured tokens, on CPU in f32. 150 steps in 1 min 01 s (done), 210 ms a step.");
  });

  test("an evaluation names heads by their artifacts, a half a row", () => {
    const acceptance = { nPrompts: 32, nTokens: 1, nDrafts: 1, nDrafted: 3, nAccepted: 1, rates: [0.8, 0.6, 0.4], tokensPerDraft: 2.8 };
    const { training } = readExtras(recipe, [done("judge", [{ headPaths: [head], nMax: 3, maxTokens: 60, temperature: 0, seed: 1, wallMs: 1, halves: { chat: acceptance, code: { ...acceptance, tokensPerDraft: 2.1 } } }])]);
    expect(training[0]?.snapshots.map((s) => [s.label, s.promptSet, s.tokensPerRound])).toEqual([["Trained head BF16", "chat, 32 prompts", 2.8], ["Trained head BF16", "code, 32 prompts", 2.1]]);
  });

  test("a trace gives row shapes, the gate's costs, and time by phase", () => {
    const times = { total: 40, process: 0, generate: 8, verify: 30, own: 2 };
    const summary = { nDecodeSteps: 4, nDecodes: 5, nForwards: 6, nRows: 70, nOutputs: 50, nEmitted: 40, steadyShape: "2 seq x 3 rows", steadyShare: 0.75, decodeMs: times, nProcessCalls: 1, nGenerateCalls: 8 };
    const extras = readExtras(recipe, [done("trace", [{ concurrency: 2, tokPerSec: 100, summary, costTable: { nSeqs: [1, 2], stepMs: [[1, 2, 3], [2, 3, 4]], changeMs: 0, moveMs: 5, prefillBaseMs: 0, prefillRowMs: 0 } }])]);
    expect(extras.shapes).toEqual([{ profile: "Drafts of two, c2", requests: 8, outputTokens: 40, tokPerSec: 100, decodeCalls: 5, forwards: 6, rows: 70, logitRows: 50, shape: "`2 seq x 3 rows` (75% of decode steps)" }]);
    expect(extras.costs[0]?.cells).toHaveLength(6);
    expect(extras.costs[0]?.cells[4]).toEqual({ context: "step", sequences: 2, rows: 2, ms: 3 });
    expect(extras.extra[0]?.rows).toEqual([["Drafts of two, c2", 4, 1, 8, 10, 7.5, 2, 0, 0.5]]);
  });

  test("a file's own words: block count, advertised heads, types of the head's tensors", () => {
    const inspected = { file: "a/graft.gguf", architecture: "qwen35moe", fileType: "IQ4_XS", nTensors: 169, bitsPerWeight: 4.9, mtp: { verdict: "complete", blocks: [40] }, keys: { "general.file_type": 30, "qwen35moe.block_count": 41, "qwen35moe.nextn_predict_layers": 1 }, tensors: [{ type: "Q6_K" }, { type: "F32" }, { type: "Q6_K" }] };
    const { metadata } = readExtras(recipe, [done("verify", inspected)]);
    expect(metadata).toEqual([{ file: "graft.gguf", architecture: "qwen35moe", fileType: "IQ4_XS (30)", blockCount: 41, nextnPredictLayers: 1, nTensors: 169, bitsPerWeight: 4.9, headTypes: "2 Q6_K, 1 F32", head: "complete: blk.40" }]);
    expect(metadataTable(metadata).rows).toEqual([["graft.gguf", "qwen35moe", "IQ4_XS (30)", "41", "1", "169", "4.90", "2 Q6_K, 1 F32", "complete: blk.40"]]);
  });

  test("what a verb reports in the report's own form is taken as it is; nothing gives nothing", () => {
    const certificate = { title: "t", reference: "r", maxTokens: 1, rows: [], verdict: "v" };
    expect(readExtras(recipe, [done("det", { folder: "x", report: certificate })]).determinism).toEqual([certificate]);
    expect(readExtras(recipe, [done("det", undefined), done("trace", undefined), done("judge", undefined)])).toMatchObject({ determinism: [], shapes: [], costs: [], extra: [] });
  });
});
