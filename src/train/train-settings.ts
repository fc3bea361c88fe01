/** The settings of a training run: flags of `train`, keys of a recipe, options of the lab step, from one schema. */
import * as path from "node:path";
import * as z from "zod";
import { llamaDir, threads } from "../config/common.ts";
import { usageError } from "../util/errors.ts";
import { freezeGroups, type FreezeGroup } from "./head-shape.ts";
import { lossKinds } from "./loss.ts";
import { parseStages, stagesPerPosition } from "./schedule.ts";
import type { TrainOptions } from "./train-options.ts";

const dataFields = {
  model: z.string().meta({ short: "m", description: "target model that was captured (GGUF)", placeholder: "FILE" }),
  capture: z.string().meta({ short: "c", description: "folder that foretoken capture wrote", placeholder: "DIR" }),
  output: z.string().meta({ short: "o", description: "folder for heads, snapshots and the log", placeholder: "DIR" }),
  init: z.string().default("ridge").meta({ description: "where the head starts: ridge, bootstrap, or a GGUF file with a head", placeholder: "WHAT" }),
  ridgeLambda: z.number().positive().default(1e-3).meta({ description: "ridge penalty, in units of the mean square input", placeholder: "X" }),
};

const lossFields = {
  depths: z.string().default("1:0.6:8e-4,3:0.4:4e-4").meta({ description: "stages as depths:share:rate: how far the chain is unrolled, for which share of the run, at which peak learning rate", placeholder: "LIST" }),
  heads: z.int().min(0).max(8).default(0).meta({ description: "one head for each of so many positions, each trained on the chain of those before it; 0: one shared head", placeholder: "N" }),
  loss: z.enum(lossKinds).default("kl").meta({ description: "kl, tv and lk match the target's distribution, ce the next token" }),
  hiddenWeight: z.number().min(0).default(2.5).meta({ description: "weight of a second loss, the mean squared distance of the head's hidden row from the target's; 0: off", placeholder: "X" }),
  feed: z.enum(["true", "argmax"]).default("true").meta({ description: "token fed at later depths: the true one, or the head's own choice" }),
  depthDecay: z.number().min(0).max(1).default(0.8).meta({ description: "loss weight of a depth over the one before", placeholder: "X" }),
  promptWeight: z.number().min(0).default(0.3).meta({ description: "weight of rows that predict a prompt token", placeholder: "X" }),
  freeze: z.string().default("").meta({ description: `groups that stay as they are: ${freezeGroups.join(", ")}`, placeholder: "LIST" }),
};

const optimizerFields = {
  lr: z.number().positive().default(8e-4).meta({ aliases: ["learning-rate"], description: "peak learning rate of stages that name none", placeholder: "X" }),
  lrFloor: z.number().min(0).max(1).default(0.05).meta({ description: "where the cosine ends, as a share of the peak", placeholder: "X" }),
  lrSpan: z.enum(["stage", "run"]).default("stage").meta({ description: "what a cosine stretches over" }),
  warmup: z.int().min(0).default(20).meta({ description: "steps of linear warm-up in each stage", placeholder: "N" }),
  beta1: z.number().min(0).max(1).default(0.9).meta({ description: "AdamW", placeholder: "X" }),
  beta2: z.number().min(0).max(1).default(0.98).meta({ description: "AdamW", placeholder: "X" }),
  weightDecay: z.number().min(0).default(0.01).meta({ description: "AdamW; not for norms", placeholder: "X" }),
  clip: z.number().positive().default(1).meta({ description: "longest gradient", placeholder: "X" }),
  stepTokens: z.int().min(16).default(256).meta({ description: "rows of a step", placeholder: "N" }),
  steps: z.int().min(0).default(0).meta({ description: "steps in all; 0: no limit but --minutes", placeholder: "N" }),
  minutes: z.number().min(0).default(0).meta({ description: "minutes in all; 0: no limit but --steps", placeholder: "N" }),
  patience: z.int().min(0).default(0).meta({ description: "stop after so many validations without a gain; 0: never", placeholder: "N" }),
  seed: z.int().min(0).default(1).meta({ description: "order of the data", placeholder: "N" }),
};

const runFields = {
  snapshotEvery: z.int().min(1).default(500).meta({ description: "steps between snapshots; a kill loses at most these", placeholder: "N" }),
  keepSnapshots: z.int().min(1).default(2).meta({ description: "newest snapshots to keep; the heads exported with them all stay", placeholder: "N" }),
  validateEvery: z.int().min(1).default(200).meta({ description: "steps between validations on held-out documents", placeholder: "N" }),
  logEvery: z.int().min(1).default(20).meta({ description: "steps between lines of the log", placeholder: "N" }),
  chunkRows: z.int().min(0).default(0).meta({ description: "rows of one LM head product, to bound its memory; 0: 256, less for large vocabularies", placeholder: "N" }),
  compute: z.enum(["auto", "f32", "bf16"]).default("auto").meta({ description: "type of products with weights; masters, gradients and sums stay F32. auto takes the faster" }),
  threads: threads.meta({ short: "t", description: "CPU threads of a step; 0 measures what is fastest, again when steps become slow", placeholder: "N" }),
  device: z.string().default("auto").meta({ aliases: ["dev"], description: "auto, cpu, or a device such as CUDA0", placeholder: "NAME" }),
  llamaDir,
};

export const trainSettings = z.strictObject({ ...dataFields, ...lossFields, ...optimizerFields, ...runFields });
export type TrainSettings = z.output<typeof trainSettings>;

/** Rows of a validation. */
const validationRows = 1024;
/** Logits of one chunk take about this much at most. */
const chunkBytes = 256 << 20;

/** Rows of an LM head product: at most 512, fewer when logits of a large vocabulary would take too much. */
export function chunkRowsFor(nVocab: number, nTokens: number): number {
  return Math.max(16, Math.min(nTokens, 512, Math.floor(chunkBytes / (4 * nVocab))));
}

function parseFreeze(text: string): FreezeGroup[] {
  return text.split(",").filter((g) => g !== "").map((group) => {
    if ((freezeGroups as readonly string[]).includes(group)) return group as FreezeGroup;
    throw usageError(`--freeze ${group} is not one of ${freezeGroups.join(", ")}`);
  });
}

/** @throws {UserError} exit code 2, for settings that cannot be. */
export function trainOptionsOf(s: TrainSettings, nVocab: number, resume: boolean): TrainOptions {
  if (s.steps === 0 && s.minutes === 0) throw usageError("a run needs an end: give --steps or --minutes");
  return {
    modelPath: s.model,
    capture: s.capture,
    output: path.resolve(s.output),
    init: s.init,
    ridgeLambda: s.ridgeLambda,
    stages: s.heads > 0 ? stagesPerPosition(s.heads, s.lr) : parseStages(s.depths, s.lr),
    loss: s.loss,
    hiddenWeight: s.hiddenWeight,
    feed: s.feed,
    depthDecay: s.depthDecay,
    promptWeight: s.promptWeight,
    nTokens: s.stepTokens,
    chunkRows: s.chunkRows === 0 ? chunkRowsFor(nVocab, s.stepTokens) : s.chunkRows,
    frozen: parseFreeze(s.freeze),
    computeType: s.compute,
    adamW: { beta1: s.beta1, beta2: s.beta2, epsilon: 1e-8, weightDecay: s.weightDecay, clip: s.clip },
    warmupSteps: s.warmup,
    learningRateFloor: s.lrFloor,
    learningRateSpan: s.lrSpan,
    maxSteps: s.steps === 0 ? Number.MAX_SAFE_INTEGER : s.steps,
    maxMs: s.minutes === 0 ? Number.MAX_SAFE_INTEGER : s.minutes * 60_000,
    snapshotEvery: s.snapshotEvery,
    nSnapshotsKept: s.keepSnapshots,
    validateEvery: s.validateEvery,
    nValidationBatches: Math.ceil(validationRows / s.stepTokens),
    patience: s.patience,
    logEvery: s.logEvery,
    seed: s.seed,
    threads: s.threads,
    device: s.device,
    llamaDir: s.llamaDir,
    resume,
  };
}
