/** A small capture of the embedded model for tests. */
import * as fs from "node:fs";
import * as os from "node:os";
import * as path from "node:path";
import { capture, type CaptureOptions } from "../../src/train/capture.ts";
import { isPrompt, readPromptFile } from "../../src/train/prompts.ts";
import type { Manifest } from "../../src/train/shards.ts";
import { packageRoot } from "../../src/util/paths.ts";
import { tinyTrunk } from "../llama/tiny-model.ts";

const prompts = (name: string): string => path.join(packageRoot, "recipes", "prompts", name);

export const temporaryFolder = (): string => fs.mkdtempSync(path.join(os.tmpdir(), "foretoken-train-"));

export async function captureOptions(output: string, changes: Partial<CaptureOptions> = {}): Promise<CaptureOptions> {
  return {
    modelPath: await tinyTrunk(),
    output,
    lines: readPromptFile(prompts("train.jsonl")),
    heldOutPrompts: readPromptFile(prompts("eval.jsonl")).filter(isPrompt),
    nTokens: 2400,
    maxMs: 1e9,
    nSequences: 8,
    maxPrompt: 64,
    maxNew: 60,
    openingTemperature: 1,
    shardTokens: 700,
    inputLayer: 7,
    nLayerInputRows: 1200,
    seed: 1,
    sampledShare: 0.25,
    temperature: 0.7,
    chatShare: 0.6,
    heldOutShare: 0.1,
    startTokens: [8, 40],
    threads: 1,
    device: "cpu",
    llamaDir: undefined,
    signal: new AbortController().signal,
    force: false,
    onProgress: () => {},
    ...changes,
  };
}

export async function smallCapture(output: string, changes: Partial<CaptureOptions> = {}): Promise<Manifest> {
  return await capture(await captureOptions(output, changes));
}
