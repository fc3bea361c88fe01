/**
 * Parity with the runtime: the logits of the training graph against those of libllama's MTP context on the same tokens
 * and hidden rows, at every depth of the chain. Training does not start when they differ, since a head trained for
 * another computation than the one that is served looks fine until it is served.
 */
import * as fs from "node:fs";
import * as os from "node:os";
import * as path from "node:path";
import { decodeFloats } from "../hf/elements.ts";
import { createContext } from "../llama/create-context.ts";
import type { LlamaContext } from "../llama/context.ts";
import type { GgmlDevice } from "../llama/ggml.ts";
import { loadLlama } from "../llama/library.ts";
import { loadModel } from "../llama/model.ts";
import { UserError } from "../util/errors.ts";
import { createBatch, fillBatch } from "./batch.ts";
import type { HiddenRows } from "./dataset.ts";
import { outerTensorsF32, writeHeadGguf } from "./export.ts";
import { FrozenTensors, type FrozenWeights } from "./frozen.ts";
import type { HeadWeights } from "./head-shape.ts";
import { allGroupsFrozen, HeadParameters } from "./parameters.ts";
import type { Target } from "./target.ts";
import { TrainGraph } from "./train-graph.ts";

export interface ParityDepth {
  readonly nRows: number;
  readonly worst: number;
  readonly mean: number;
  /** Rows whose greedy token is the same, or tied within `tieLogits`. */
  readonly nTop1Equal: number;
}

/** Largest logit difference that training may start with, with F32 weights and an F32 cache. */
export const parityLimit = 0.05;
/** The same for a quantized LM head: libllama also quantizes the activations it is multiplied with (0.11 with IQ4_XS, 0.08 with Q8_0 on tiny-ornith). */
export const quantizedParityLimit = 0.3;

/** The limit for a target: its output matrix is used as it is stored. */
export function parityLimitOf({ gguf }: Target): number {
  const output = gguf.tensors.find((t) => t.name === "output.weight") ?? gguf.tensors.find((t) => t.name === "token_embd.weight");
  return output === undefined || ["F32", "F16", "BF16"].includes(output.type?.name ?? "") ? parityLimit : quantizedParityLimit;
}

export interface ParityOptions {
  readonly target: Target;
  readonly frozen: FrozenWeights;
  readonly weights: HeadWeights;
  readonly document: HiddenRows;
  readonly nDepths: number;
  /** A CPU device: the comparison runs in F32 there, whatever trains. */
  readonly device: GgmlDevice;
  readonly llamaDir: string | undefined;
}

/** Two best tokens this close are equal in F32 but for the order of additions. */
const tieLogits = 1e-3;
/** A larger LM head stays in its own type for the comparison: its products are then rounded, and ties may fall either way. */
const mostF32Bytes = 512 << 20;
const longest = 96;
const anchorStep = 5;

export async function compareWithRuntime(options: ParityOptions): Promise<ParityDepth[]> {
  const n = Math.min(longest, options.document.tokens.length - options.nDepths);
  const own = ownLogits(options, n);
  const folder = fs.mkdtempSync(path.join(os.tmpdir(), "foretoken-parity-"));
  try {
    const file = path.join(folder, "head.gguf");
    const isSmall = options.frozen.lmHead.byteLength <= mostF32Bytes;
    await writeHeadGguf(file, options.target, options.weights, "F32", isSmall ? outerTensorsF32(options.target, options.frozen) : undefined);
    return runtimeDepths(options, file, n, own);
  } finally {
    fs.rmSync(folder, { recursive: true, force: true });
  }
}

/** @throws {UserError} when any depth is further from the runtime than `limit`, or picks another token. */
export function requireParity(depths: readonly ParityDepth[], limit: number = parityLimit): void {
  depths.forEach(({ worst, nRows, nTop1Equal }, depth) => {
    if (worst <= limit && nTop1Equal === nRows) return;
    throw new UserError(
      `the head computes something else than llama.cpp does: at depth ${depth} logits differ by up to ${worst.toFixed(4)} (limit ${limit}) and ${nTop1Equal} of ${nRows} greedy tokens agree; training it would be wasted. Is the library another release than 0.5.0?`,
    );
  });
}

/** Logits [n, V] of each depth from the training graph. */
function ownLogits({ target, frozen, weights, document, nDepths, device }: ParityOptions, n: number): Float32Array[] {
  const parameters = new HeadParameters(device, target.head, weights, { frozen: allGroupsFrozen, hasGradient: false });
  const tensors = new FrozenTensors(device, frozen, target.head.nEmbd, "f32");
  const graph = new TrainGraph(device, tensors, [parameters], {
    nTokens: n,
    nDepths,
    depthWeights: Array.from({ length: nDepths }, () => 1),
    loss: "kl",
    feed: "true",
    chunkRows: n,
    backward: false,
    keepLogits: true,
  });
  const batch = createBatch(n, nDepths, target.head.nEmbd);
  fillBatch(batch, (length) => ({ document, start: 0, length }), { promptWeight: 1 });
  graph.run(batch);
  const logits = Array.from({ length: nDepths }, (_, depth) => graph.logits(depth));
  graph.close();
  tensors.close();
  parameters.close();
  return logits;
}

function runtimeDepths({ document, nDepths, llamaDir, target }: ParityOptions, file: string, n: number, own: readonly Float32Array[]): ParityDepth[] {
  const llama = loadLlama({ llamaDir });
  using model = loadModel(llama, file, { loadMtp: true, device: "cpu", useExtraBuffers: false });
  using context = createContext(model, {
    nCells: 256,
    samplings: ["host"],
    nBatch: 128,
    nUbatch: 128,
    nThreads: 1,
    nThreadsBatch: 1,
    flashAttention: "off",
    cacheTypeK: "f32",
    cacheTypeV: "f32",
    isKvUnified: true,
    nRollback: 0,
    nOutputsPerSeq: 128,
    isDraft: true,
    hiddenRows: "all",
  });
  const compared = own.map(() => ({ nRows: 0, worst: 0, sum: 0, nTop1Equal: 0 }));
  const compare = (depth: number, row: number, runtime: Float32Array): void => {
    const v = target.head.nVocab;
    const mine = (own[depth] as Float32Array).subarray(row * v, (row + 1) * v);
    const into = compared[depth] as (typeof compared)[number];
    let [best, bestRuntime] = [0, 0];
    for (let i = 0; i < v; i++) {
      const difference = Math.abs((mine[i] as number) - (runtime[i] as number));
      into.worst = Math.max(into.worst, Number.isNaN(difference) ? Infinity : difference);
      into.sum += difference;
      if ((mine[i] as number) > (mine[best] as number)) best = i;
      if ((runtime[i] as number) > (runtime[bestRuntime] as number)) bestRuntime = i;
    }
    into.nRows++;
    const isTie = (mine[best] as number) - (mine[bestRuntime] as number) <= tieLogits;
    if (best === bestRuntime || isTie) into.nTop1Equal++;
  };
  const hidden = new Float32Array((n + 1) * context.nEmbd);
  decodeFloats(bytesOf(document.rows(0, n)), "F16", hidden.subarray(context.nEmbd));
  const targetRow = (t: number): Float32Array => hidden.subarray(t * context.nEmbd, (t + 1) * context.nEmbd);
  context.rows.n = 0;
  for (let t = 0; t < n; t++) addRow(context, document.tokens[t] as number, t, targetRow(t));
  context.decode();
  for (let t = 0; t < n; t++) compare(0, t, context.logits(t));
  // From the end, so that the cache holds the target's rows up to each anchor and nothing else.
  for (let t = n - 1; t >= 1; t -= anchorStep) {
    context.removeFrom(0, t);
    let row = targetRow(t).slice();
    for (let depth = 0; depth < nDepths; depth++) {
      context.rows.n = 0;
      addRow(context, document.tokens[t + depth] as number, t + depth, row);
      context.decode();
      if (depth > 0) compare(depth, t, context.logits(0));
      row = context.hidden(0).slice();
    }
  }
  return compared.map(({ nRows, worst, sum, nTop1Equal }) => ({ nRows, worst, mean: sum / (nRows * target.head.nVocab), nTop1Equal }));
}

const bytesOf = (rows: Uint16Array): Uint8Array => new Uint8Array(rows.buffer, rows.byteOffset, rows.byteLength);

function addRow({ rows, nEmbd }: LlamaContext, token: number, position: number, hidden: Float32Array): void {
  const i = rows.n++;
  rows.tokens[i] = token;
  rows.positions[i] = position;
  rows.seqs[i] = 0;
  rows.outputs[i] = 1;
  rows.hidden.set(hidden, i * nEmbd);
}
