/** One stage of a run on the device: the heads of its chain, the graph, the optimizer, and batches from the data. */
import type { GgmlDevice } from "../llama/ggml.ts";
import { UserError } from "../util/errors.ts";
import { AdamW } from "./adamw.ts";
import { createBatch, fillBatch, type Batch, type Window } from "./batch.ts";
import { WindowStream, type HiddenRows } from "./dataset.ts";
import type { FrozenTensors } from "./frozen.ts";
import type { HeadShape, HeadWeights } from "./head-shape.ts";
import { batchMetrics, meanMetrics, type BatchMetrics } from "./metrics.ts";
import { allGroupsFrozen, HeadParameters } from "./parameters.ts";
import { depthWeightsOf, type Stage } from "./schedule.ts";
import type { ComputeType } from "./tape.ts";
import { TrainGraph, type GraphOptions } from "./train-graph.ts";
import type { MemoryPlan, TrainOptions } from "./train-options.ts";

export interface StageDependencies {
  readonly device: GgmlDevice;
  readonly shape: HeadShape;
  readonly frozen: FrozenTensors;
  readonly options: TrainOptions;
  readonly computeType: ComputeType;
  readonly heldOut: readonly HiddenRows[];
}

export class StageRun {
  readonly stage: Stage;
  readonly trained: HeadParameters;
  readonly memory: MemoryPlan;
  readonly #options: TrainOptions;
  readonly #before: readonly HeadParameters[];
  readonly #graph: TrainGraph;
  readonly #validation: TrainGraph | undefined;
  readonly #adamW: AdamW;
  readonly #batch: Batch;
  readonly #heldOut: readonly HiddenRows[];

  /** `earlier` are the heads in front of the one that is trained, `trained` its parameters; the caller closes those. */
  constructor({ device, shape, frozen, options, computeType, heldOut }: StageDependencies, stage: Stage, earlier: readonly HeadWeights[], trained: HeadParameters) {
    this.stage = stage;
    this.trained = trained;
    this.#options = options;
    this.#heldOut = heldOut;
    this.#before = earlier.map((weights) => new HeadParameters(device, shape, weights, { frozen: allGroupsFrozen, hasGradient: false, computeType }));
    const heads = [...this.#before, trained];
    const { nTokens } = options;
    const graphOptions: GraphOptions = {
      nTokens,
      nDepths: stage.nDepths,
      depthWeights: depthWeightsOf(stage, options.depthDecay),
      loss: options.loss,
      hiddenWeight: options.hiddenWeight,
      feed: options.feed,
      chunkRows: options.chunkRows === 0 ? nTokens : Math.min(options.chunkRows, nTokens),
      backward: true,
      computeType,
    };
    this.#graph = new TrainGraph(device, frozen, heads, graphOptions);
    this.#validation = heldOut.length === 0 ? undefined : new TrainGraph(device, frozen, heads, { ...graphOptions, feed: "true", backward: false });
    this.#adamW = new AdamW(device, this.#graph.trainable, options.adamW);
    this.#batch = createBatch(nTokens, stage.nDepths, shape.nEmbd);
    const parts = {
      weights: heads.reduce((sum, h) => sum + h.bufferBytes, 0),
      frozen: frozen.bufferBytes,
      activations: this.#graph.bufferBytes,
      validation: this.#validation?.bufferBytes ?? 0,
      optimizer: this.#adamW.bufferBytes,
    };
    this.memory = { ...parts, total: Object.values(parts).reduce((a, b) => a + b, 0) };
  }

  /** Forward and backward pass over the next batch. @throws {UserError} when a gradient is not finite; nothing was changed. */
  gradients(stream: WindowStream, step: number): { readonly norm: number; readonly metrics: BatchMetrics } {
    fillBatch(this.#batch, (n) => stream.next(n), { promptWeight: this.#options.promptWeight });
    this.#graph.run(this.#batch);
    const norm = this.#adamW.gradientNorm();
    const metrics = batchMetrics(this.#batch, this.#graph.result);
    if (Number.isFinite(norm) && metrics.nll.every(Number.isFinite)) return { norm, metrics };
    const losses = metrics.nll.map((x) => x.toFixed(3)).join(", ");
    throw new UserError(`training stopped at step ${step}: the gradient norm is ${norm} (loss by depth ${losses}); the weights are as they were before this step. Lower --lr, or go on from the last snapshot with --resume`);
  }

  update(optimizerStep: number, learningRate: number, norm: number): void {
    this.#adamW.step(optimizerStep, learningRate, norm);
  }

  /** The same batches of held-out documents every time. */
  validate(): BatchMetrics | undefined {
    if (this.#validation === undefined) return undefined;
    const stream = new WindowStream(this.#heldOut, 1);
    const batches = Array.from({ length: this.#options.nValidationBatches }, () => {
      fillBatch(this.#batch, (n): Window => stream.next(n), { promptWeight: 0 });
      this.#validation?.run(this.#batch);
      return batchMetrics(this.#batch, (this.#validation as TrainGraph).result);
    });
    return meanMetrics(batches);
  }

  close(): void {
    this.#adamW.close();
    this.#validation?.close();
    this.#graph.close();
    for (const head of this.#before) head.close();
  }
}

/** Parameters of a head that is about to be trained. */
export function trainableHead({ device, shape, options, computeType }: StageDependencies, weights: HeadWeights): HeadParameters {
  const parameters = new HeadParameters(device, shape, weights, { frozen: new Set(options.frozen), computeType });
  if (parameters.trainableNames.length === 0) throw new UserError("--freeze leaves nothing to train");
  return parameters;
}
