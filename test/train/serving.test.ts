/** What the engine does with a head that drafts well, on real weights: bursts of prompts and restored states cost no acceptance. */
import * as fs from "node:fs";
import * as path from "node:path";
import { afterAll, beforeAll, expect, test, vi } from "vitest";
import { engineOptions } from "../../src/config/engine-options.ts";
import { greedySampling, type FinishEvent } from "../../src/engine/request.ts";
import { openEngine } from "../../src/llama/open-engine.ts";
import { evaluateHead } from "../../src/train/evaluate.ts";
import { isPrompt, readPromptFile } from "../../src/train/prompts.ts";
import { parseStages } from "../../src/train/schedule.ts";
import { trainOptionsOf, trainSettings } from "../../src/train/train-settings.ts";
import { train } from "../../src/train/trainer.ts";
import { packageRoot } from "../../src/util/paths.ts";
import { tinyTrunk } from "../llama/tiny-model.ts";
import { smallCapture, temporaryFolder } from "./captured.ts";

// Native work beside other tests on two cores.
vi.setConfig({ testTimeout: 240_000, hookTimeout: 240_000 });

const folder = temporaryFolder();
const head = path.join(folder, "run", "head.gguf");
let model: string;

beforeAll(async () => {
  model = await tinyTrunk();
  const capture = path.join(folder, "capture");
  const manifest = await smallCapture(capture, { nTokens: 4000, nLayerInputRows: 4000 });
  expect(manifest.nTokens).toBeGreaterThanOrEqual(4000);
  const settings = trainSettings.parse({ model, capture, output: path.join(folder, "run"), steps: 20, stepTokens: 128, threads: 1, device: "cpu", compute: "f32" });
  await train({ ...trainOptionsOf(settings, 4096, false), stages: parseStages("1:1:8e-4", 8e-4) }, { onEvent: () => {}, isStopped: () => false });
});
afterAll(() => fs.rmSync(folder, { recursive: true }));

test("acceptance with sixteen prompts at once is acceptance one by one", async () => {
  const prompts = readPromptFile(path.join(packageRoot, "recipes", "prompts", "eval.jsonl")).filter(isPrompt).filter((_, i) => i % 3 === 0);
  const [alone, together] = await Promise.all(
    [1, 16].map(async (parallel) => {
      const { halves } = await evaluateHead({ modelPath: model, headPaths: [head], prompts, nMax: 2, maxTokens: 48, temperature: 0, seed: 1, parallel, threads: 1, device: "cpu", llamaDir: undefined, signal: new AbortController().signal });
      const all = Object.values(halves);
      const [nDrafts, nAccepted] = all.reduce(([d, a], half) => [d + half.nDrafts, a + half.nAccepted], [0, 0]);
      return { perDraft: nAccepted / nDrafts, nDrafts };
    }),
  );
  // A head that accepts nothing would be equal at any concurrency.
  expect(alone?.perDraft).toBeGreaterThan(0.15);
  expect(alone?.nDrafts).toBeGreaterThan(500);
  expect(Math.abs((together?.perDraft as number) - (alone?.perDraft as number))).toBeLessThan(0.03);
});

interface Turn {
  readonly tokens: number[];
  readonly finish: FinishEvent;
}

/** Three turns of three chats, one after the other, on `parallel` slots. */
function chats(parallel: number, cache: { cachePrompt?: boolean; cacheRam?: number }): Turn[] {
  const turns: Turn[] = [];
  let tokens: number[] = [];
  let finish: FinishEvent | undefined;
  const { engine, backend } = openEngine(
    engineOptions.parse({ model, parallel, ctxSize: parallel * 1024, threads: 1, device: "cpu", specType: "draft-mtp", specDraftModel: [head], specDraftNMax: 2, specGate: "fixed", ...cache }),
    {
      sink: (events) => {
        for (const e of events) {
          if (e.kind === "tokens") tokens.push(...e.tokens);
          else if (e.kind === "finish") finish = e;
        }
      },
    },
  );
  const texts = ["def add(a, b):\n", "Write a Python function to reverse a list.\n", "class Stack:\n"].map((line) => [...backend.vocab.tokenize(line.repeat(14), { addSpecial: true })]);
  for (let turn = 0; turn < 3; turn++) {
    for (const [i, text] of texts.entries()) {
      tokens = [];
      engine.submit({ id: turns.length, prompt: Int32Array.from(text), maxTokens: 40, sampling: greedySampling, stop: [], ignoreEos: true, nLogprobs: undefined, grammar: undefined, nMax: undefined, cachePrompt: true });
      while (engine.step()) continue;
      engine.checkIntegrity();
      turns.push({ tokens, finish: finish as FinishEvent });
      texts[i] = [...text, ...tokens, ...backend.vocab.tokenize("\n\nAgain:\n", { addSpecial: false })];
    }
  }
  engine.close();
  return turns;
}

const acceptance = (turns: readonly Turn[]): number => turns.reduce((sum, t) => sum + t.finish.draft.nAccepted, 0) / turns.reduce((sum, t) => sum + t.finish.draft.nDrafts, 0);

test("a restored state goes on exactly like one that never left its slot, drafts included; acceptance warm is acceptance cold", () => {
  const kept = chats(3, { cachePrompt: true });
  const restored = chats(1, { cacheRam: 256 });
  const cold = chats(1, {});
  for (const [i, turn] of restored.entries()) {
    const other = kept[i] as Turn;
    expect(turn.finish.usage.nCached).toBe(other.finish.usage.nCached);
    expect(turn.finish.usage.nCached > 64).toBe(i >= 3);
    expect(turn.tokens).toEqual(other.tokens);
    expect(turn.finish.draft).toEqual(other.finish.draft);
  }
  expect(cold.every((turn) => turn.finish.usage.nCached === 0)).toBe(true);
  expect(acceptance(cold)).toBeGreaterThan(0.15);
  expect(Math.abs(acceptance(restored) - acceptance(cold))).toBeLessThan(0.05);
});
