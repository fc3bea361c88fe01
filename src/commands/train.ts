import * as fs from "node:fs";
import * as path from "node:path";
import * as YAML from "yaml";
import * as z from "zod";
import { defineCommand, type Io } from "../config/command.ts";
import { forceOverwrite } from "../config/common.ts";
import { checkOptions } from "../config/options.ts";
import type { Acceptance, Evaluation } from "../train/evaluate.ts";
import type { HeadShape } from "../train/head-shape.ts";
import { isPrompt, readPromptFile } from "../train/prompts.ts";
import type { SelfTestResult } from "../train/self-test.ts";
import { smallShape } from "../train/self-test.ts";
import { latestSnapshot } from "../train/snapshot.ts";
import { readTarget } from "../train/target.ts";
import { freezeGroups, type FreezeGroup } from "../train/head-shape.ts";
import type { TrainEvent } from "../train/train-options.ts";
import { chunkRowsFor, trainOptionsOf, trainSettings } from "../train/train-settings.ts";
import { runEvaluation, runExport, runSelfTest, runTraining } from "../train/worker.ts";
import { UserError, errorMessage, usageError } from "../util/errors.ts";
import { formatBytes, formatDuration, formatInteger } from "../util/format.ts";
import { createProgress } from "../util/progress.ts";
import { renderText } from "../util/table.ts";
import { heldOutPrompts, packagePath } from "./capture.ts";

const modeFields = {
  recipe: z.string().optional().meta({ description: "YAML file with these settings; flags win over it", placeholder: "FILE" }),
  resume: z.boolean().default(false).meta({ description: "go on from the newest snapshot in --output" }),
  evaluate: z.array(z.string()).default([]).meta({ description: "judge heads instead of training: a GGUF file, several joined by commas for one head a position, or a folder with heads", placeholder: "HEAD" }),
  prompts: heldOutPrompts,
  nMax: z.int().min(1).max(16).default(3).meta({ aliases: ["spec-draft-n-max"], description: "draft length for --evaluate", placeholder: "N" }),
  specDraftVocab: z.string().default("0").meta({ description: "tokens that drafts are chosen among for --evaluate, as serve takes them", placeholder: "FILE|N" }),
  maxTokens: z.int().min(1).default(120).meta({ description: "tokens of an answer for --evaluate", placeholder: "N" }),
  temperature: z.number().min(0).default(0).meta({ aliases: ["temp"], description: "for --evaluate", placeholder: "T" }),
  parallel: z.int().min(1).max(256).default(8).meta({ aliases: ["np"], description: "sequences at once for --evaluate", placeholder: "N" }),
  export: z.string().optional().meta({ description: "write this trained head (GGUF) as mtp.* tensors of a checkpoint, for vLLM and SGLang, into --output", placeholder: "HEAD" }),
  checkpoint: z.string().optional().meta({ description: "the target's Hugging Face checkpoint, for --export", placeholder: "DIR" }),
  dtype: z.enum(["bf16", "f16", "f32"]).default("bf16").meta({ description: "type of the exported tensors" }),
  selfTest: z.boolean().default(false).meta({ description: "compare gradients of this device with the CPU's on random data, and time a step" }),
  shape: z.string().optional().meta({ description: "JSON file with the head's dimensions for --self-test", placeholder: "FILE" }),
  force: forceOverwrite,
};

export const command = defineCommand({
  name: "train",
  summary: "train a draft head on captured hidden rows, or judge heads by what the runtime accepts",
  details:
    "The head's logits are first compared with llama.cpp's own; training starts when they agree.\n" +
    "  foretoken train -m MODEL -c CAPTURE -o OUT --minutes 2\n" +
    "  foretoken train -m MODEL --evaluate OUT/head.gguf\n" +
    "  foretoken train --export OUT/head.gguf --checkpoint DIR -o DIR-WITH-HEAD\n" +
    "  foretoken train --self-test --device CUDA0 --shape FILE",
  options: z.strictObject({ ...trainSettings.partial().shape, ...modeFields }),
  async run(o, io) {
    const { recipe, resume, evaluate, prompts, nMax, specDraftVocab, maxTokens, temperature, parallel, selfTest, shape, force, export: exported, checkpoint, dtype, ...flags } = o;
    const given = { ...(recipe === undefined ? {} : readRecipe(recipe)), ...Object.fromEntries(Object.entries(flags).filter(([, v]) => v !== undefined)) };
    if (exported !== undefined) return await exportHead(io, { head: exported, checkpoint, dtype, force, output: given["output"], llamaDir: given["llamaDir"] });
    if (selfTest) return report(io, await test(given, shape, io.signal));
    if (evaluate.length > 0) return await judge({ ...given, evaluate, prompts, nMax, draftVocab: specDraftVocab, maxTokens, temperature, parallel }, io);
    const settings = checkOptions(trainSettings, given);
    const options = trainOptionsOf(settings, readTarget(settings.model).head.nVocab, resume);
    prepareOutput(options.output, resume, force);
    const end = await follow(io, (onEvent) => runTraining(options, { onEvent, signal: io.signal }));
    if (io.json) io.out(JSON.stringify(end));
    else if (end !== undefined) io.out(`${end.heads.join(", ")}: ${formatInteger(end.step)} steps in ${formatDuration(end.elapsedMs)} (${end.reason}, ${end.medianStepMs.toFixed(0)} ms a step)`);
    return end?.reason === "stopped" ? 1 : 0;
  },
});

/** Keys of a recipe in kebab or camel case. */
function readRecipe(file: string): Record<string, unknown> {
  try {
    const recipe = YAML.parse(fs.readFileSync(file, "utf8")) as unknown;
    if (typeof recipe !== "object" || recipe === null) throw new Error("it holds no settings");
    return Object.fromEntries(Object.entries(recipe).map(([key, value]) => [key.replace(/-([a-z])/g, (_, c: string) => c.toUpperCase()), value]));
  } catch (error) {
    throw new UserError(`--recipe ${file}: ${errorMessage(error)}`);
  }
}

/** An output folder belongs to one run: another needs --resume or --force. */
function prepareOutput(output: string, resume: boolean, force: boolean): void {
  const hasRun = fs.existsSync(path.join(output, "train.jsonl"));
  if (resume) {
    if (latestSnapshot(path.join(output, "snapshots")) === undefined) throw usageError(`--resume: ${output} has no snapshot to go on from`);
    return;
  }
  if (!hasRun) return;
  if (!force) throw usageError(`${output} holds a run already; give --resume to go on, --force to start over, or another --output`);
  for (const name of ["snapshots", "heads"]) fs.rmSync(path.join(output, name), { recursive: true, force: true });
}

type End = Extract<TrainEvent, { event: "end" }>;

/** Shows a run while it goes, and returns its end. */
async function follow(io: Io, start: (onEvent: (event: TrainEvent) => void) => Promise<void>): Promise<End | undefined> {
  const progress = createProgress("train", { total: 100, format: (n) => `${n.toFixed(0)}%` });
  let end: End | undefined;
  const list = (values: readonly number[], scale: number, decimals: number): string => values.map((x) => (scale * x).toFixed(decimals)).join("/");
  await start((event) => {
    switch (event.event) {
      case "ridge":
        return io.note(`ridge: eh_proj fitted on ${formatInteger(event.nRows)} rows, R2 ${event.r2.toFixed(3)}`);
      case "parity":
        return io.note(`parity with llama.cpp: largest logit difference ${event.depths.map((d) => d.worst.toFixed(4)).join(" / ")} at depths 0 to ${event.depths.length - 1}, same greedy token on ${event.depths.map((d) => `${d.nTop1Equal}/${d.nRows}`).join(", ")} rows`);
      case "start":
        return io.note(`${formatInteger(event.nTrainable)} of ${formatInteger(event.nParameters)} parameters train on ${formatInteger(event.nTokens)} tokens of ${formatInteger(event.nDocuments)} documents, on ${event.device} in ${event.computeType}${event.resumedAt > 0 ? `, from step ${event.resumedAt}` : ""}`);
      case "stage":
        return io.note(`stage ${event.stage + 1}: ${event.nDepths} deep${event.trained === "shared" ? "" : `, head ${event.trained + 1}`}; memory ${formatBytes(event.memory.total)}: weights ${formatBytes(event.memory.weights)}, frozen ${formatBytes(event.memory.frozen)}, activations ${formatBytes(event.memory.activations)}, validation ${formatBytes(event.memory.validation)}, optimizer ${formatBytes(event.memory.optimizer)}`);
      case "step":
        return progress.update(100 * event.progress, `step ${event.step}  loss ${list(event.nll, 1, 3)}  acceptance ${list(event.acceptance, 100, 0)}%  ${formatInteger(Math.round(event.tokensPerSecond))} tokens/s`);
      case "validate":
        return io.note(`step ${event.step}: held out ${event.tokensPerDraft.toFixed(3)} tokens a draft (offline), acceptance ${list(event.acceptance, 100, 1)}%, loss ${list(event.nll, 1, 3)}`);
      case "snapshot":
        return undefined;
      case "end":
        end = event;
        return progress.end();
      default:
        return event satisfies never;
    }
  });
  return end;
}

async function exportHead(io: Io, o: { head: string; checkpoint: string | undefined; dtype: "bf16" | "f16" | "f32"; force: boolean; output: unknown; llamaDir: unknown }): Promise<void> {
  if (o.checkpoint === undefined || typeof o.output !== "string") throw usageError("--export needs --checkpoint and --output");
  const dtypes = { bf16: "BF16", f16: "F16", f32: "F32" } as const;
  const result = await runExport({ head: o.head, checkpoint: o.checkpoint, output: o.output, dtype: dtypes[o.dtype], force: o.force, llamaDir: typeof o.llamaDir === "string" ? o.llamaDir : undefined }, io.signal);
  io.out(io.json ? JSON.stringify(result) : `${result.output}: ${result.nTensors} tensors, ${formatBytes(result.sizeBytes)}`);
}

interface JudgeSettings {
  readonly model?: unknown;
  readonly evaluate: readonly string[];
  readonly prompts: string;
  readonly nMax: number;
  readonly draftVocab: string;
  readonly maxTokens: number;
  readonly temperature: number;
  readonly parallel: number;
  readonly seed?: unknown;
  readonly threads?: unknown;
  readonly device?: unknown;
  readonly llamaDir?: unknown;
}

async function judge(s: JudgeSettings, io: Io): Promise<void> {
  if (typeof s.model !== "string") throw usageError("--model is needed; --help shows the usage");
  const prompts = readPromptFile(packagePath(s.prompts)).filter(isPrompt);
  const candidates = s.evaluate.flatMap(headFiles);
  const results: Evaluation[] = [];
  for (const headPaths of candidates) {
    const progress = createProgress(`evaluate ${path.basename(headPaths[0] ?? "")}`, { total: prompts.length, format: (n) => `${n} prompts` });
    const evaluation = await runEvaluation(
      {
        modelPath: s.model,
        headPaths,
        prompts,
        nMax: s.nMax,
        draftVocab: s.draftVocab,
        maxTokens: s.maxTokens,
        temperature: s.temperature,
        seed: typeof s.seed === "number" ? s.seed : 1,
        parallel: s.parallel,
        threads: typeof s.threads === "number" ? s.threads : 0,
        device: typeof s.device === "string" ? s.device : undefined,
        llamaDir: typeof s.llamaDir === "string" ? s.llamaDir : undefined,
      },
      { signal: io.signal, onProgress: (nDone) => progress.update(nDone) },
    );
    progress.end();
    results.push(evaluation);
  }
  io.out(io.json ? JSON.stringify(results) : evaluationTable(results));
}

/** "a.gguf,b.gguf" is one head a position; a folder gives each GGUF file in it. */
function headFiles(text: string): string[][] {
  if (!fs.existsSync(text) || !fs.statSync(text).isDirectory()) return [text.split(",")];
  const files = fs.readdirSync(text).filter((name) => name.endsWith(".gguf")).toSorted();
  if (files.length === 0) throw usageError(`--evaluate ${text}: no GGUF file in the folder`);
  return files.map((name) => [path.join(text, name)]);
}

function evaluationTable(results: readonly Evaluation[]): string {
  const cells = (a: Acceptance | undefined): string[] => (a === undefined ? ["", ""] : [a.rates.map((r) => (100 * r).toFixed(1)).join(" / "), a.tokensPerDraft.toFixed(3)]);
  return renderText({
    columns: [
      { title: "head" },
      { title: "chat: accepted at position, %" },
      { title: "tokens a draft", align: "right" },
      { title: "code: accepted at position, %" },
      { title: "tokens a draft", align: "right" },
    ],
    rows: results.map((r) => [r.headPaths.map((file) => path.basename(file)).join(","), ...cells(r.halves.chat), ...cells(r.halves.code)]),
  });
}

const shapeSchema = z.strictObject(Object.fromEntries(Object.keys(smallShape).map((key) => [key, z.number().positive()]))).partial();

async function test(given: Record<string, unknown>, shapeFile: string | undefined, signal: AbortSignal): Promise<SelfTestResult> {
  const settings = checkOptions(trainSettings.partial(), given);
  let shape: HeadShape = { ...smallShape, nEmbd: 256, nVocab: 4096, nEmbdHead: 64, nRot: 16, nFfExpert: 256, nFfShared: 256 };
  if (shapeFile !== undefined) shape = { ...shape, ...(checkOptions(shapeSchema, readRecipe(shapeFile)) as Partial<HeadShape>) };
  const nTokens = settings.stepTokens ?? 512;
  const nDepths = Number((settings.depths ?? "3").split(":")[0]);
  const frozen = (settings.freeze ?? "").split(",").filter((g): g is FreezeGroup => (freezeGroups as readonly string[]).includes(g));
  return await runSelfTest(
    { device: settings.device ?? "auto", llamaDir: settings.llamaDir, threads: settings.threads === undefined || settings.threads === 0 ? 1 : settings.threads, shape, nTokens, nDepths, chunkRows: settings.chunkRows || chunkRowsFor(shape.nVocab, nTokens), frozen, computeType: settings.compute ?? "auto", nSteps: settings.steps || 10 },
    signal,
  );
}

function report(io: Io, result: SelfTestResult): void {
  if (io.json) return io.out(JSON.stringify(result));
  io.out(`${result.device}, ${result.computeType}: gradients of ${result.gradients.length} tensors against the CPU, worst relative errors ${result.gradients.slice(0, 3).map((g) => `${g.name} ${g.relativeError.toExponential(1)}`).join(", ")}`);
  io.out(
    `step ${result.stepMs.toFixed(1)} ms (forward and backward ${result.forwardBackwardMs.toFixed(1)}, AdamW ${result.optimizerMs.toFixed(1)}), ${formatInteger(Math.round(result.tokensPerSecond))} tokens/s, ${formatInteger(result.nTrainable)} of ${formatInteger(result.nParameters)} parameters train, ${formatBytes(result.bufferBytes)} on the device`,
  );
}
