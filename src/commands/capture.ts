import * as path from "node:path";
import * as z from "zod";
import { defineCommand, type Io } from "../config/command.ts";
import { forceOverwrite, llamaDir, threads } from "../config/common.ts";
import { readGguf } from "../gguf/split.ts";
import { shapeOf } from "../gguf/model-shape.ts";
import { readMachineLoad } from "../llama/threads.ts";
import type { Manifest } from "../train/shards.ts";
import { runCapture } from "../train/worker.ts";
import { startsFromFolder } from "../train/document-source.ts";
import { isPrompt, readPromptFile } from "../train/prompts.ts";
import { usageError } from "../util/errors.ts";
import { formatDuration, formatInteger } from "../util/format.ts";
import { packageRoot } from "../util/paths.ts";
import { createProgress } from "../util/progress.ts";

export const heldOutPrompts = z
  .string()
  .default(path.join("recipes", "prompts", "eval.jsonl"))
  .meta({ description: "prompts for evaluation; their templates, tasks and texts stay out of the capture", placeholder: "FILE" });

const options = z.strictObject({
  model: z.string().meta({ short: "m", description: "target model, as it will be served (GGUF)", placeholder: "FILE" }),
  output: z.string().meta({ short: "o", description: "folder for the shards; a capture that was stopped goes on", placeholder: "DIR" }),
  prompts: z.array(z.string()).default([]).meta({ description: "prompt file (JSON lines); default: the built-in one", placeholder: "FILE" }),
  fromText: z.array(z.string()).default([]).meta({ description: "folder of text files, cut into prompts", placeholder: "DIR" }),
  heldOut: heldOutPrompts,
  tokens: z.int().min(1000).default(120_000).meta({ description: "tokens to capture", placeholder: "N" }),
  minutes: z.number().min(0).default(0).meta({ description: "stop after so many minutes, with the tokens there are then; 0: no limit", placeholder: "N" }),
  parallel: z.int().min(1).max(256).default(16).meta({ short: "np", aliases: ["np"], description: "sequences at once", placeholder: "N" }),
  maxPrompt: z.int().min(8).default(200).meta({ description: "longest prompt in tokens; longer ones are cut", placeholder: "N" }),
  maxNew: z.int().min(8).default(200).meta({ description: "longest continuation in tokens", placeholder: "N" }),
  sampledShare: z.number().min(0).max(1).default(0.25).meta({ description: "share of continuations that are sampled; the others are greedy", placeholder: "P" }),
  temperature: z.number().min(0).default(0.7).meta({ aliases: ["temp"], description: "of sampled continuations", placeholder: "T" }),
  openingTemperature: z.number().min(0).default(1).meta({ description: "of what the model writes before its continuation: user messages, more of a start", placeholder: "T" }),
  startTokens: z.int().min(1).default(96).meta({ description: "most tokens that a start is sampled on", placeholder: "N" }),
  chatShare: z.number().min(0).max(1).default(0.7).meta({ description: "share of documents that are chats, when the prompts give chats and other text", placeholder: "P" }),
  heldOutShare: z.number().min(0).max(0.5).default(0.04).meta({ description: "share of documents kept for validation", placeholder: "P" }),
  shardTokens: z.int().min(256).default(16_384).meta({ description: "tokens of a shard; a kill loses at most one", placeholder: "N" }),
  ridgeRows: z.int().min(0).default(16_000).meta({ description: "rows whose layer inputs are kept for the ridge initialisation; 0: none", placeholder: "N" }),
  workers: z.int().min(0).max(64).default(1).meta({ description: "processes that write documents side by side; 0: one for each core, at most 4", placeholder: "N" }),
  seed: z.int().min(0).default(1).meta({ description: "of prompts, lengths and sampling", placeholder: "N" }),
  threads,
  device: z.string().default("auto").meta({ description: "auto, cpu, or a device such as CUDA0", placeholder: "NAME" }),
  llamaDir,
  force: forceOverwrite,
});

export const command = defineCommand({
  name: "capture",
  summary: "let the model write, and keep its tokens and hidden rows for training a head",
  options,
  async run(o, io) {
    const lines = [...promptFiles(o).flatMap(readPromptFile), ...o.fromText.flatMap((folder) => startsFromFolder(folder))];
    const heldOut = o.heldOut === "" ? [] : readPromptFile(packagePath(o.heldOut)).filter(isPrompt);
    const progress = createProgress("capture", { total: o.tokens, format: (n) => `${formatInteger(Math.round(n))} tokens` });
    const nCores = readMachineLoad().nCores ?? readMachineLoad().nCpus;
    const nWorkers = o.workers === 0 ? Math.min(4, nCores) : o.workers;
    const manifest = await runCapture(
      {
        modelPath: o.model,
        output: o.output,
        lines,
        heldOutPrompts: heldOut,
        nTokens: o.tokens,
        maxMs: o.minutes === 0 ? Number.MAX_SAFE_INTEGER : o.minutes * 60_000,
        nSequences: o.parallel,
        maxPrompt: o.maxPrompt,
        maxNew: o.maxNew,
        openingTemperature: o.openingTemperature,
        shardTokens: o.shardTokens,
        inputLayer: o.ridgeRows === 0 ? undefined : lastAttentionLayer(o.model),
        nLayerInputRows: o.ridgeRows,
        seed: o.seed,
        sampledShare: o.sampledShare,
        temperature: o.temperature,
        chatShare: o.chatShare,
        heldOutShare: o.heldOutShare,
        startTokens: [Math.min(8, o.startTokens), o.startTokens],
        // Alone, a capture leaves a core free; several share the cores.
        threads: o.threads === 0 && nWorkers > 1 ? Math.max(1, Math.floor(nCores / nWorkers)) : o.threads,
        device: o.device,
        llamaDir: o.llamaDir,
        force: o.force,
      },
      nWorkers,
      { signal: io.signal, onProgress: ({ nTokens, nDocuments }) => progress.update(nTokens, `${formatInteger(nDocuments)} documents`) },
    );
    progress.end();
    report(io, o.output, manifest);
  },
});

function report(io: Io, output: string, m: Manifest): void {
  const { nTokens, nDocuments, nGenerated, nExcluded, wallMs } = m;
  if (io.json) io.out(JSON.stringify({ output, nTokens, nDocuments, nGenerated, nExcluded, wallMs, modelSha256: m.model.sha256 }));
  else
    io.out(
      `${output}: ${formatInteger(nTokens)} tokens in ${formatInteger(nDocuments)} documents, ${formatInteger(nGenerated)} of them written by the model, ${formatInteger(nExcluded)} documents left out as held out, in ${formatDuration(wallMs)}`,
    );
}

/** Built-in files are found from any folder. */
export const packagePath = (file: string): string => (file.startsWith("recipes") ? path.join(packageRoot, file) : file);

function promptFiles(o: { readonly prompts: readonly string[]; readonly fromText: readonly string[] }): readonly string[] {
  if (o.prompts.length > 0 || o.fromText.length > 0) return o.prompts;
  return [path.join(packageRoot, "recipes", "prompts", "train.jsonl")];
}

/** The layer that a bootstrap head copies: the last with full attention. */
function lastAttentionLayer(model: string): number {
  const layer = shapeOf(readGguf(model)).isRecurrent.lastIndexOf(false);
  if (layer < 0) throw usageError(`${model} has no full-attention layer, so there is nothing for --ridge-rows; give --ridge-rows 0`);
  return layer;
}
