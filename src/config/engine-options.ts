/**
 * What an engine is made of: model, contexts, speculation, sampling. Names are llama-server's where it has them.
 * `serve` adds `server-options.ts`; everything else that starts an engine uses this set alone.
 */
import * as z from "zod";
import { usageError } from "../util/errors.ts";
import { llamaDir, threads } from "./common.ts";

const cacheType = z.enum(["f32", "f16", "bf16", "q8_0", "q5_1", "q5_0", "q4_1", "q4_0", "iq4_nl"]).default("f16");

/** "0.95,0.81,0.65" -> [0.95, 0.81, 0.65]: unconditional, so no rate may be above the one before it. */
const unconditionalRates = z
  .string()
  .transform((text, context) => {
    const rates: readonly number[] = text.split(",").map((part) => (part.trim() === "" ? NaN : Number(part)));
    const isFalling = rates.every((rate, i) => rate >= 0 && rate <= (rates[i - 1] ?? 1));
    if (!isFalling) context.addIssue("rates are numbers from 0 to 1 that never rise, as in 0.95,0.81,0.65");
    return rates;
  })
  .optional();

/** See llama/graph-edits.ts. */
export const graphEditNames = ["bf16-copies", "bf16-head", "contiguous-conv", "f16-copies", "flat-products", "joined-norms", "joined-products", "joined-snapshots", "split-experts"] as const;
export type GraphEditName = (typeof graphEditNames)[number];

/** "auto", or the changes that are wanted. */
const graphEdits = z
  .string()
  .default("auto")
  .transform((text, context) => {
    if (text === "auto") return text;
    if (text === "all") return graphEditNames;
    const names = text === "none" ? [] : text.split(",");
    const known = graphEditNames.filter((name) => names.includes(name));
    if (known.length !== names.length) context.addIssue(`auto, all, none, or some of ${graphEditNames.join(",")}`);
    return known;
  });

const modelFields = {
  model: z.string().min(1).meta({ short: "m", description: "GGUF file of the model", placeholder: "FILE" }),
  ctxSize: z.int().min(0).default(0).meta({ short: "c", description: "context cells over all slots; 0: 4096 a slot, less when the model was trained for less", placeholder: "N" }),
  parallel: z.int().min(1).max(256).default(4).meta({ aliases: ["np"], description: "slots: requests that run at once", placeholder: "N" }),
  batchSize: z.int().min(1).default(2048).meta({ short: "b", description: "most rows of one decode", placeholder: "N" }),
  ubatchSize: z.int().min(1).default(512).meta({ aliases: ["ub"], description: "most rows of one forward", placeholder: "N" }),
  threads,
  gpuLayers: z.int().min(0).default(999).meta({ aliases: ["ngl", "n-gpu-layers"], description: "layers on the GPU, where there is one", placeholder: "N" }),
  device: z.string().optional().meta({ aliases: ["dev"], description: "device to run on, as doctor lists it; none: CPU only", placeholder: "NAME" }),
  flashAttn: z.enum(["auto", "on", "off"]).default("auto").meta({ aliases: ["fa"], description: "flash attention" }),
  cacheTypeK: cacheType.meta({ aliases: ["ctk"], description: "type of the K cache", placeholder: "TYPE" }),
  cacheTypeV: cacheType.meta({ aliases: ["ctv"], description: "type of the V cache", placeholder: "TYPE" }),
  kvUnified: z.boolean().default(true).meta({ aliases: ["kvu"], description: "one pool of KV cells for all sequences; off for exact runs" }),
  kvPin: z.int().min(0).optional().meta({ description: "cells that a unified KV cache shows from the start, so that graphs are not rebuilt as it fills; 0 off; default: half of the cells, at most 8192, on a GPU", placeholder: "N" }),
  graphReuse: z.boolean().default(true).meta({ description: "reuse the compute graph while the row shape repeats" }),
};

const speculationFields = {
  specType: z.enum(["none", "draft-mtp"]).default("none").meta({ description: "where draft tokens come from" }),
  specDraftModel: z
    .array(z.string().min(1))
    .default([])
    .meta({ aliases: ["md", "model-draft"], description: "GGUF file of a draft head; default: the head in the model file", placeholder: "FILE" }),
  specDraftDevice: z.string().optional().meta({ aliases: ["device-draft", "devd"], description: "device of heads in files of their own; default: that of the target", placeholder: "NAME" }),
  specDraftNMax: z.int().min(0).max(16).default(3).meta({ description: "most draft tokens a step", placeholder: "N" }),
  specDraftNMin: z.int().min(0).max(16).default(0).meta({ description: "fewest draft tokens worth a verify", placeholder: "N" }),
  specDraftPMin: z.number().min(0).max(1).default(0).meta({ aliases: ["draft-p-min"], description: "stop drafting below this probability", placeholder: "P" }),
  specDraftTopK: z.int().min(0).default(0).meta({ description: "draft sampling: top k; 0 off", placeholder: "N" }),
  specDraftTopP: z.number().min(0).max(1).default(1).meta({ description: "draft sampling: top p; 1 off", placeholder: "P" }),
  specDraftTemp: z.number().min(0).default(0).meta({ description: "draft sampling: temperature; 0 greedy", placeholder: "T" }),
  specDraftVocab: z.string().default("0").meta({ description: "choose draft tokens among those of a file of foretoken draft-vocab, or among the first N, by a shorter LM head; 0: all", placeholder: "FILE|N" }),
  specGate: z.enum(["adaptive", "fixed"]).default("adaptive").meta({ description: "draft length of a step: by measured cost and acceptance, or always n-max" }),
  specPlainContext: z.boolean().default(true).meta({ description: "adaptive gate, recurrent models: a second target context without rollback for steps that draft nothing; off saves its KV and state memory, and such steps cost some percent more" }),
  specVerify: z.enum(["batched", "sequential", "by-depth"]).default("batched").meta({ description: "how drafts are verified; sequential equals plain decoding of the sequence alone" }),
  specCatchup: z
    .enum(["fused", "immediate", "deferred", "deferred-batched"])
    .default("fused")
    .meta({ description: "when the draft context learns accepted rows" }),
  specDraftPad: z.boolean().default(false).meta({ description: "pad draft decodes to one shape so that their graph is reused" }),
  specSynthRates: unconditionalRates.meta({ description: "accept by these unconditional rates per position: for speed runs, output is not model text", placeholder: "P0,P1,.." }),
  specOracle: z.string().optional().meta({ description: "draft from a recorded output instead of a head (tests)", placeholder: "FILE" }),
  specOracleRate: z.number().min(0).max(1).default(1).meta({ description: "share of oracle tokens that are left right", placeholder: "P" }),
};

const runFields = {
  sampling: z.enum(["auto", "device-greedy", "device", "host"]).default("auto").meta({ description: "where target tokens are sampled" }),
  specDraftSampling: z.enum(["auto", "device-greedy", "device", "host"]).default("auto").meta({ description: "where draft tokens are sampled" }),
  batchedArgmax: z.boolean().default(true).meta({ description: "device-greedy: one argmax for all rows of a forward; off: libllama's, one a row" }),
  argmaxParts: z.number().int().min(0).max(4096).default(0).meta({ description: "parts of a large vocabulary that the argmax is made of, then one among these; 1: one stage; 0: 64 with CUDA, 1 elsewhere" }),
  graphEdits: graphEdits.meta({ description: "changes of libllama's graphs that CUDA computes faster: contiguous-conv, joined-norms, joined-snapshots (the same bits), joined-products (the same bits up to eight rows; more with bf16-copies; memory: each of the joined matrices once more), split-experts (steps of 9 to 128 rows), flat-products (four sequences or more), f16-copies of F32 matrices (4 to 16 rows), bf16-copies of matrices outside of experts (from nine rows; memory: 2 bytes for each of their weights), bf16-head, the same of the LM head (2 to 16 rows); the last five round otherwise; auto: the first three with CUDA, and split-experts on Hopper GPUs, where it was measured. They need slots that are sampled on the device", placeholder: "auto|all|none|LIST" }),
  hostSlots: z.int().min(0).optional().meta({ description: "slots that keep all logits, for grammars, penalties, biases and logprobs", placeholder: "N" }),
  cacheRam: z.int().min(0).default(0).meta({ aliases: ["cram"], description: "MiB for saved states of prompts and histories, restored when a prompt extends one (implies --cache-prompt); 0 off", placeholder: "MIB" }),
  cachePrompt: z.boolean().default(false).meta({ description: "reuse a slot's history when a prompt extends it" }),
  prefillWaitMs: z.number().min(0).default(100).meta({ description: "longest wait of a prompt to be read together with others, where that saves time while streams run, three times as long while a wave of requests ends; 0 never waits", placeholder: "MS" }),
  decodeLast: z.boolean().default(true).meta({ description: "GPU: leave a prompt's last token to the decode step where that keeps the graph captured for it" }),
  holdShape: z.boolean().default(true).meta({ description: "GPU: decode the slot of an ended request on for a moment where another is likely to take it, so that the graph stays captured" }),
  trace: z.string().optional().meta({ description: "write a JSON line for every step", placeholder: "FILE" }),
  seed: z.int().min(0).max(0xffff_ffff).default(0).meta({ short: "s", description: "seed of requests that name none; 0: a new one each", placeholder: "N" }),
  llamaDir,
};

export const engineOptions = z.strictObject({ ...modelFields, ...speculationFields, ...runFields });
export type EngineOptions = z.output<typeof engineOptions>;

/**
 * Refuses combinations that would do something else than they say.
 * @throws {UserError} exit code 2.
 */
export function checkEngineOptions(options: EngineOptions): void {
  const { specType, specDraftModel, specDraftNMin, specDraftNMax, ubatchSize, batchSize } = options;
  if (specType === "none" && specDraftModel.length > 0)
    throw usageError(`--spec-draft-model is given but --spec-type is none, so it would not be used; add --spec-type draft-mtp`);
  if (specType === "none" && options.specSynthRates !== undefined)
    throw usageError("--spec-synth-rates needs drafts; add --spec-type draft-mtp");
  if (specType === "none" && options.specDraftVocab !== "0")
    throw usageError("--spec-draft-vocab is given but --spec-type is none, so nothing is drafted; add --spec-type draft-mtp");
  if (options.specDraftDevice !== undefined && specDraftModel.length === 0)
    throw usageError("--spec-draft-device needs a head in a file of its own; add --spec-draft-model");
  if (options.specOracle !== undefined && options.specDraftVocab !== "0")
    throw usageError("--spec-draft-vocab shortens a head's LM head, and --spec-oracle drafts without one; leave one of them out");
  if (options.graphEdits !== "auto" && options.graphEdits.length > 0 && options.sampling === "host")
    throw usageError(`--graph-edits ${options.graphEdits.join(",")} needs slots that are sampled on the device; leave out --sampling host`);
  const isGreedyDraft = options.specDraftPMin === 0 && options.specDraftTemp === 0 && ["auto", "device-greedy"].includes(options.specDraftSampling) && options.batchedArgmax;
  if (options.specDraftVocab !== "0" && !isGreedyDraft)
    throw usageError("--spec-draft-vocab needs greedy drafts on the device: leave out --spec-draft-p-min, --spec-draft-temp, --no-batched-argmax and --spec-draft-sampling host or device");
  if (specDraftNMin > specDraftNMax)
    throw usageError(`--spec-draft-n-min ${specDraftNMin} is above --spec-draft-n-max ${specDraftNMax}; lower it`);
  // A step decodes the pending token and all drafts of every sequence at once.
  const nSeqs = options.parallel + (options.hostSlots ?? 0);
  const nRows = nSeqs * (specType === "none" ? 1 : specDraftNMax + 1);
  if (nRows > batchSize)
    throw usageError(`a step of ${nSeqs} sequences takes ${nRows} rows, --batch-size is ${batchSize}; raise it, or lower --parallel or --spec-draft-n-max`);
  if (ubatchSize > batchSize) throw usageError(`--ubatch-size ${ubatchSize} is above --batch-size ${batchSize}; lower it`);
  if (options.specSynthRates !== undefined && options.specSynthRates.length < specDraftNMax)
    throw usageError(`--spec-synth-rates has ${options.specSynthRates.length} rates, --spec-draft-n-max ${specDraftNMax} needs as many`);
}
