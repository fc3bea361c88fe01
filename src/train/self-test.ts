/**
 * `train --self-test`: does this device compute the gradients that the CPU computes, and how long is a step of a given
 * shape? Random weights and data; it says nothing about a model.
 */
import { encodeFloats } from "../hf/elements.ts";
import { openGgmlDevice, type GgmlDevice } from "../llama/ggml.ts";
import { median } from "../util/stats.ts";
import { Rng } from "../util/rng.ts";
import { AdamW } from "./adamw.ts";
import { chooseComputeType } from "./compute-type.ts";
import { createBatch, fillBatch, type Batch } from "./batch.ts";
import type { HiddenRows } from "./dataset.ts";
import { FrozenTensors } from "./frozen.ts";
import type { ComputeType } from "./tape.ts";
import { countParameters, nElements, parameterSpecs, type FreezeGroup, type HeadShape } from "./head-shape.ts";
import { HeadParameters } from "./parameters.ts";
import { TrainGraph } from "./train-graph.ts";

export interface SelfTestOptions {
  readonly device: string;
  readonly llamaDir: string | undefined;
  readonly threads: number;
  readonly shape: HeadShape;
  readonly nTokens: number;
  readonly nDepths: number;
  readonly chunkRows: number;
  readonly frozen: readonly FreezeGroup[];
  readonly computeType: ComputeType | "auto";
  readonly nSteps: number;
}

export interface SelfTestResult {
  readonly device: string;
  readonly computeType: ComputeType;
  /** |g - g_cpu| / |g_cpu| of each tensor of the small head, worst first. */
  readonly gradients: readonly { readonly name: string; readonly relativeError: number }[];
  readonly nParameters: number;
  readonly nTrainable: number;
  readonly bufferBytes: number;
  readonly forwardBackwardMs: number;
  readonly optimizerMs: number;
  readonly stepMs: number;
  readonly tokensPerSecond: number;
}

export const smallShape: HeadShape = {
  nEmbd: 64,
  nVocab: 128,
  nHead: 4,
  nHeadKv: 2,
  nEmbdHead: 16,
  nRot: 8,
  ropeFreqBase: 1e5,
  ropeFreqScale: 1,
  normEps: 1e-6,
  nExpert: 8,
  nExpertUsed: 2,
  nFfExpert: 32,
  nFfShared: 32,
  expertWeightsScale: 1,
};

export const randomValues = (rng: Rng, n: number, scale: number): Float32Array => Float32Array.from({ length: n }, () => rng.normal() * scale);


/** Norms near one, matrices of a trained model's order of magnitude, a router that is not near a tie. */
export function randomWeights(shape: HeadShape, rng: Rng, matrix = randomValues): Map<string, Float32Array> {
  return new Map(
    parameterSpecs(shape).map(({ name, ne }) => {
      const n = nElements(ne);
      if (name === "ffn_gate_inp.weight") return [name, randomValues(rng, n, 3 / Math.sqrt(shape.nEmbd))];
      if (ne.length === 1 && name !== "ffn_gate_inp_shexp.weight") return [name, randomValues(rng, n, 0.1).map((x) => 1 + x)];
      return [name, matrix(rng, n, 0.7 / Math.sqrt(ne[0] as number))];
    }),
  );
}

export function randomDocument(shape: HeadShape, nTokens: number, rng: Rng): HiddenRows {
  const { nEmbd } = shape;
  const hidden = new Uint16Array(nTokens * nEmbd);
  encodeFloats(randomValues(rng, hidden.length, 1), "F16", new Uint8Array(hidden.buffer));
  return {
    tokens: Int32Array.from({ length: nTokens }, () => rng.below(shape.nVocab)),
    nPrompt: Math.floor(nTokens / 8),
    nEmbd,
    rows: (start, n) => hidden.subarray(start * nEmbd, (start + n) * nEmbd),
  };
}

function randomBatch(shape: HeadShape, nTokens: number, nDepths: number, rng: Rng): Batch {
  const documents = Array.from({ length: 4 }, () => randomDocument(shape, Math.max(16, Math.floor(nTokens / 3)), rng));
  const batch = createBatch(nTokens, nDepths, shape.nEmbd);
  let i = 0;
  fillBatch(batch, (room) => {
    const document = documents[i++ % documents.length] as HiddenRows;
    return { document, start: 0, length: Math.min(room, document.tokens.length - 1) };
  }, { promptWeight: 0.3 });
  return batch;
}

export function selfTest(options: SelfTestOptions): SelfTestResult {
  const device = openGgmlDevice({ device: options.device, llamaDir: options.llamaDir, nThreads: options.threads });
  const cpu = device.isGpu ? openGgmlDevice({ device: "cpu", llamaDir: options.llamaDir, nThreads: 1 }) : device;
  const gradients = compareGradients(cpu, device);
  const computeType = chooseComputeType(device, options.computeType);
  const timing = timeSteps(device, options, computeType);
  if (cpu !== device) cpu.close();
  device.close();
  return { device: `${device.device.name} ${device.device.description}`, computeType, gradients, ...timing };
}

function gradientsOn(device: GgmlDevice): Map<string, Float32Array> {
  const rng = new Rng(7);
  const weights = randomWeights(smallShape, rng);
  const { nEmbd, nVocab } = smallShape;
  const frozen = new FrozenTensors(device, { embedding: randomValues(rng, nEmbd * nVocab, 1), lmHead: randomValues(rng, nEmbd * nVocab, 0.15) }, nEmbd, "f32");
  const parameters = new HeadParameters(device, smallShape, weights, { frozen: new Set() });
  const graph = new TrainGraph(device, frozen, [parameters], { nTokens: 48, nDepths: 3, depthWeights: [1, 0.8, 0.64], loss: "kl", feed: "true", chunkRows: 20, backward: true });
  graph.run(randomBatch(smallShape, 48, 3, rng));
  const gradients = new Map(graph.trainable.map(({ name, ne, gradient }) => [name, device.get(gradient, new Float32Array(nElements(ne)))]));
  graph.close();
  parameters.close();
  frozen.close();
  return gradients;
}

function compareGradients(cpu: GgmlDevice, device: GgmlDevice): { name: string; relativeError: number }[] {
  const expected = gradientsOn(cpu);
  const actual = gradientsOn(device);
  return [...expected]
    .map(([name, want]) => {
      const got = actual.get(name) as Float32Array;
      let [error, size] = [0, 0];
      for (let i = 0; i < want.length; i++) {
        error += ((got[i] as number) - (want[i] as number)) ** 2;
        size += (want[i] as number) ** 2;
      }
      return { name, relativeError: Math.sqrt(error / size) };
    })
    .toSorted((a, b) => b.relativeError - a.relativeError);
}

function timeSteps(device: GgmlDevice, options: SelfTestOptions, computeType: ComputeType): Omit<SelfTestResult, "device" | "computeType" | "gradients"> {
  const { shape, nTokens, nDepths, nSteps } = options;
  const rng = new Rng(11);
  const { nEmbd, nVocab } = shape;
  const frozen = new FrozenTensors(device, { embedding: cheapValues(nEmbd * nVocab, 0.05), lmHead: cheapValues(nEmbd * nVocab, 0.03) }, nEmbd, computeType);
  const weights = randomWeights(shape, rng, (_, n, scale) => cheapValues(n, scale));
  const parameters = new HeadParameters(device, shape, weights, { frozen: new Set(options.frozen), computeType });
  const graph = new TrainGraph(device, frozen, [parameters], {
    nTokens,
    nDepths,
    depthWeights: Array.from({ length: nDepths }, (_, i) => 0.8 ** i),
    loss: "kl",
    feed: "true",
    chunkRows: options.chunkRows === 0 ? nTokens : options.chunkRows,
    backward: true,
    computeType,
  });
  const adamW = new AdamW(device, graph.trainable, { beta1: 0.9, beta2: 0.98, epsilon: 1e-8, weightDecay: 0.01, clip: 1 });
  const batch = randomBatch(shape, nTokens, nDepths, rng);
  const times = Array.from({ length: nSteps + 2 }, (_, i) => {
    const startMs = performance.now();
    graph.run(batch);
    const norm = adamW.gradientNorm();
    const middleMs = performance.now();
    adamW.step(i + 1, 1e-4, norm);
    device.ggml.ggml_backend_synchronize(device.backend);
    return { forwardBackward: middleMs - startMs, optimizer: performance.now() - middleMs };
  }).slice(2);
  const [forwardBackwardMs, optimizerMs] = [median(times.map((t) => t.forwardBackward)), median(times.map((t) => t.optimizer))];
  const result = {
    nParameters: countParameters(shape),
    nTrainable: graph.trainable.reduce((sum, p) => sum + nElements(p.ne), 0),
    bufferBytes: frozen.bufferBytes + parameters.bufferBytes + graph.bufferBytes + adamW.bufferBytes,
    forwardBackwardMs,
    optimizerMs,
    stepMs: forwardBackwardMs + optimizerMs,
    tokensPerSecond: (1000 * nTokens) / (forwardBackwardMs + optimizerMs),
  };
  adamW.close();
  graph.close();
  parameters.close();
  frozen.close();
  return result;
}

/** Random enough for timing, and cheap for hundreds of millions of values: one block, repeated. */
function cheapValues(n: number, scale: number): Float32Array {
  const block = randomValues(new Rng(5), Math.min(n, 65_521), scale);
  const out = new Float32Array(n);
  for (let at = 0; at < n; at += block.length) out.set(block.subarray(0, Math.min(block.length, n - at)), at);
  return out;
}
