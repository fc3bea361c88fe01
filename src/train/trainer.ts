/**
 * The run: stage after stage, step after step, with validation, snapshots, and a log that a report can plot. It is
 * synchronous native work, so it runs in a process of its own (`train-process.ts`).
 */
import * as path from "node:path";
import { openGgmlDevice, type GgmlDevice } from "../llama/ggml.ts";
import { readMachineLoad } from "../llama/threads.ts";
import { UserError } from "../util/errors.ts";
import { sha256File } from "../util/files.ts";
import { median } from "../util/stats.ts";
import { chooseComputeType } from "./compute-type.ts";
import { openDataset, WindowStream, type Dataset } from "./dataset.ts";
import { writeHeadGguf } from "./export.ts";
import { FrozenTensors, type FrozenWeights } from "./frozen.ts";
import { countParameters, nElements, parameterSpecs, type HeadWeights } from "./head-shape.ts";
import { meanMetrics, tokensPerDraft, type BatchMetrics } from "./metrics.ts";
import { compareWithRuntime, parityLimitOf, requireParity } from "./parity.ts";
import type { HeadParameters } from "./parameters.ts";
import { fitRidge } from "./ridge.ts";
import { learningRateAt, progressOf, stageAt, type Stage } from "./schedule.ts";
import { requireSameModel } from "./shards.ts";
import { latestSnapshot, pruneSnapshots, readSnapshot, snapshotName, writeSnapshot, type Snapshot, type SnapshotState } from "./snapshot.ts";
import { StageRun, trainableHead, type StageDependencies } from "./stage-run.ts";
import { StepThreads, threadCandidates } from "./step-threads.ts";
import { bootstrapWeights, readFrozen, readHeadWeights, readTarget, type Target } from "./target.ts";
import type { TrainEvent, TrainOptions } from "./train-options.ts";

export interface TrainHooks {
  readonly onEvent: (event: TrainEvent) => void;
  /** Checked after each step; true ends the run with a snapshot. */
  readonly isStopped: () => boolean;
}

/** @throws {UserError} for a capture of another model, a head that computes something else than the runtime, NaN. */
export async function train(options: TrainOptions, hooks: TrainHooks): Promise<void> {
  const target = readTarget(options.modelPath);
  const dataset = openDataset(options.capture);
  requireSameModel(options.capture, dataset.manifest, await sha256File(options.modelPath));
  const candidates = options.threads > 0 ? [options.threads] : threadCandidates(Math.min(16, readMachineLoad().nCores ?? readMachineLoad().nCpus));
  const device = openGgmlDevice({ device: options.device, llamaDir: options.llamaDir, nThreads: 1 });
  // Values are read, and parity is checked, on the CPU whatever trains.
  const cpu = device.isGpu ? openGgmlDevice({ device: "cpu", llamaDir: options.llamaDir, nThreads: 1 }) : device;
  const frozen = readFrozen(target, cpu);
  const resumed = options.resume ? resumeFrom(options) : undefined;
  const first = resumed?.heads[0] ?? initialWeights(options, target, cpu, dataset, frozen, hooks);
  await checkParity(options, target, frozen, first, dataset, cpu, hooks);
  device.setThreads(candidates.at(-1) ?? 1);
  const computeType = chooseComputeType(device, options.computeType);
  const tensors = new FrozenTensors(device, frozen, target.head.nEmbd, computeType);
  const run = new Run({ device, shape: target.head, frozen: tensors, options, computeType, heldOut: dataset.heldOut }, target, dataset, new StepThreads(candidates), hooks);
  try {
    await run.start(resumed, first);
  } finally {
    tensors.close();
    if (cpu !== device) cpu.close();
    device.close();
    dataset.close();
  }
}

function resumeFrom({ output }: TrainOptions): Snapshot | undefined {
  const file = latestSnapshot(path.join(output, "snapshots"));
  return file === undefined ? undefined : readSnapshot(file);
}

function initialWeights(options: TrainOptions, target: Target, cpu: GgmlDevice, dataset: Dataset, frozen: FrozenWeights, hooks: TrainHooks): HeadWeights {
  if (options.init !== "ridge" && options.init !== "bootstrap") return readHeadWeights(options.init, target.head, cpu);
  const weights = bootstrapWeights(target, cpu);
  if (options.init === "bootstrap") return weights;
  const { nEmbd, normEps } = target.head;
  const ridge = fitRidge(cpu, dataset.training, frozen.embedding, { nEmbd, normEps, maxRows: 64_000, lambda: options.ridgeLambda });
  hooks.onEvent({ event: "ridge", nRows: ridge.nRows, r2: ridge.r2 });
  return weights.set("nextn.eh_proj.weight", ridge.weights);
}

async function checkParity(options: TrainOptions, target: Target, frozen: FrozenWeights, weights: HeadWeights, dataset: Dataset, device: GgmlDevice, hooks: TrainHooks): Promise<void> {
  const nDepths = Math.max(...options.stages.map((s) => s.nDepths));
  const document = [...dataset.heldOut, ...dataset.training].toSorted((a, b) => b.tokens.length - a.tokens.length)[0];
  if (document === undefined || document.tokens.length < nDepths + 16) throw new UserError(`${options.capture} has no document long enough to check parity on; capture more`);
  const depths = await compareWithRuntime({ target, frozen, weights, document, nDepths, device, llamaDir: options.llamaDir });
  hooks.onEvent({ event: "parity", depths });
  requireParity(depths, parityLimitOf(target));
}

class Run {
  readonly #dependencies: StageDependencies;
  readonly #options: TrainOptions;
  readonly #target: Target;
  readonly #dataset: Dataset;
  readonly #threads: StepThreads;
  readonly #hooks: TrainHooks;
  readonly #stream: WindowStream;
  readonly #configuration: Record<string, unknown>;
  readonly #startMs = performance.now();
  readonly #stepMs: number[] = [];
  /** Since the last line of the log: one batch is a few documents, too few to tell anything. */
  readonly #recent: BatchMetrics[] = [];
  /** Heads that are finished, in front of the one in training. */
  readonly #finished: HeadWeights[] = [];
  #elapsedBefore = 0;
  #step = 0;
  #stepInStage = 0;
  #optimizerStep = 0;
  #best = -Infinity;
  #nWithoutGain = 0;

  constructor(dependencies: StageDependencies, target: Target, dataset: Dataset, threads: StepThreads, hooks: TrainHooks) {
    this.#dependencies = dependencies;
    this.#options = dependencies.options;
    this.#target = target;
    this.#dataset = dataset;
    this.#threads = threads;
    this.#hooks = hooks;
    this.#stream = new WindowStream(dataset.training, this.#options.seed);
    const { stages, loss, hiddenWeight, feed, depthDecay, promptWeight, nTokens, frozen, adamW, seed } = this.#options;
    this.#configuration = { model: dataset.manifest.model.sha256, stages, loss, hiddenWeight, feed, depthDecay, promptWeight, nTokens, frozen, adamW, seed };
  }

  get #elapsedMs(): number {
    return this.#elapsedBefore + performance.now() - this.#startMs;
  }

  get #progress(): number {
    return progressOf({ nSteps: this.#step, elapsedMs: this.#elapsedMs }, this.#options);
  }

  async start(resumed: Snapshot | undefined, first: HeadWeights): Promise<void> {
    const { stages } = this.#options;
    let stageIndex = 0;
    let trained = trainableHead(this.#dependencies, resumed?.heads.at(-1) ?? first);
    if (resumed !== undefined) stageIndex = this.#restore(resumed, trained);
    this.#announce(resumed);
    let reason: "done" | "early-stop" | "stopped" = "done";
    for (; stageIndex < stages.length && reason === "done"; stageIndex++) {
      const stage = stages[stageIndex] as Stage;
      trained = this.#headFor(stage, trained);
      const run = new StageRun(this.#dependencies, stage, this.#finished, trained);
      try {
        reason = await this.#runStage(run, stageIndex);
      } finally {
        run.close();
      }
      this.#recent.length = 0;
      if (reason === "done") this.#stepInStage = 0;
    }
    const heads = await this.#exportHeads(trained, "head");
    this.#hooks.onEvent({ event: "end", step: this.#step, elapsedMs: this.#elapsedMs, reason, heads, medianStepMs: median(this.#stepMs) });
    trained.close();
  }

  #announce(resumed: Snapshot | undefined): void {
    const { shape, device, computeType } = this.#dependencies;
    const frozen = new Set<string>(this.#options.frozen);
    const nTrainable = parameterSpecs(shape).reduce((sum, { ne, group }) => sum + (frozen.has(group) ? 0 : nElements(ne)), 0);
    const { training } = this.#dataset;
    this.#hooks.onEvent({
      event: "start",
      nParameters: countParameters(shape),
      nTrainable,
      nDocuments: training.length,
      nTokens: training.reduce((sum, d) => sum + d.tokens.length, 0),
      device: device.device.name,
      computeType,
      resumedAt: resumed?.state.step ?? 0,
    });
  }

  /** The next position's head starts as a copy of the one before it, which is finished then. */
  #headFor(stage: Stage, trained: HeadParameters): HeadParameters {
    if (stage.trained === "shared" || stage.trained <= this.#finished.length) return trained;
    const weights = trained.read();
    this.#finished.push(weights);
    trained.close();
    this.#optimizerStep = 0;
    [this.#best, this.#nWithoutGain] = [-Infinity, 0];
    return trainableHead(this.#dependencies, weights);
  }

  async #runStage(run: StageRun, index: number): Promise<"done" | "early-stop" | "stopped"> {
    const { stage } = run;
    const { learningRate, nDepths, trained } = stage;
    this.#hooks.onEvent({ event: "stage", stage: index, step: this.#step, nDepths, learningRate, trained, memory: run.memory });
    if (this.#step === 0) this.#validate(run, index);
    for (;;) {
      const at = stageAt(this.#options.stages, this.#progress);
      if (at.index > index || this.#progress >= 1) return "done";
      this.#trainStep(run, index, this.#options.learningRateSpan === "run" ? this.#progress : at.fraction);
      const { validateEvery, snapshotEvery, patience } = this.#options;
      if (this.#step % validateEvery === 0) this.#validate(run, index);
      const isExhausted = patience > 0 && this.#nWithoutGain >= patience;
      const isStopped = this.#hooks.isStopped();
      if (this.#step % snapshotEvery === 0 || isStopped || isExhausted) await this.#snapshot(run.trained, index);
      if (isStopped) return "stopped";
      if (isExhausted) return "early-stop";
      // Lets messages and signals in.
      await new Promise((resolve) => setImmediate(resolve));
    }
  }

  #trainStep(run: StageRun, index: number, fraction: number): void {
    const { device } = this.#dependencies;
    const startMs = performance.now();
    const { threads } = this.#threads;
    device.setThreads(threads);
    const learningRate = learningRateAt(run.stage.learningRate, this.#stepInStage, fraction, { warmupSteps: this.#options.warmupSteps, floor: this.#options.learningRateFloor });
    const { norm, metrics } = run.gradients(this.#stream, this.#step + 1);
    run.update(++this.#optimizerStep, learningRate, norm);
    this.#step++;
    this.#stepInStage++;
    const stepMs = performance.now() - startMs;
    this.#threads.note(stepMs);
    this.#stepMs.push(stepMs);
    this.#recent.push(metrics);
    if (this.#step % this.#options.logEvery !== 0 && this.#step > 1) return;
    this.#hooks.onEvent({
      event: "step",
      step: this.#step,
      stage: index,
      progress: this.#progress,
      elapsedMs: this.#elapsedMs,
      learningRate,
      gradientNorm: norm,
      stepMs,
      tokensPerSecond: (1000 * this.#options.nTokens) / stepMs,
      nEpochs: this.#stream.nEpochs,
      threads,
      ...meanMetrics(this.#recent.splice(0)),
    });
  }

  #validate(run: StageRun, index: number): void {
    const metrics = run.validate();
    if (metrics === undefined) return;
    const expected = tokensPerDraft(metrics);
    this.#nWithoutGain = expected > this.#best ? 0 : this.#nWithoutGain + 1;
    this.#best = Math.max(this.#best, expected);
    this.#hooks.onEvent({ event: "validate", step: this.#step, stage: index, elapsedMs: this.#elapsedMs, tokensPerDraft: expected, ...metrics });
  }

  async #snapshot(trained: HeadParameters, stage: number): Promise<void> {
    const folder = path.join(this.#options.output, "snapshots");
    const file = path.join(folder, snapshotName(this.#step));
    const state: SnapshotState = {
      format: "foretoken-snapshot-1",
      step: this.#step,
      stage,
      stepInStage: this.#stepInStage,
      optimizerStep: this.#optimizerStep,
      elapsedMs: this.#elapsedMs,
      best: Number.isFinite(this.#best) ? this.#best : 0,
      nWithoutGain: this.#nWithoutGain,
      stream: this.#stream.save() as SnapshotState["stream"],
      configuration: this.#configuration,
    };
    await writeSnapshot(file, { state, heads: [...this.#finished, trained.read()], moments: trained.readMoments() });
    pruneSnapshots(folder, this.#options.nSnapshotsKept);
    const heads = await this.#exportHeads(trained, path.join("heads", `step-${String(this.#step).padStart(6, "0")}`));
    this.#hooks.onEvent({ event: "snapshot", step: this.#step, file, heads });
  }

  /** `NAME.gguf`, or one file a position: `NAME-1.gguf` ... */
  async #exportHeads(trained: HeadParameters, name: string): Promise<string[]> {
    const all = [...this.#finished, trained.read()];
    const isSingle = this.#options.stages.every((s) => s.trained === "shared");
    const files = all.map((_, i) => path.join(this.#options.output, isSingle ? `${name}.gguf` : `${name}-${i + 1}.gguf`));
    for (const [i, weights] of all.entries()) await writeHeadGguf(files[i] as string, this.#target, weights, "BF16");
    return files;
  }

  #restore({ state, heads, moments }: Snapshot, trained: HeadParameters): number {
    const changed = Object.keys(this.#configuration).find((key) => JSON.stringify(this.#configuration[key]) !== JSON.stringify(state.configuration[key]));
    if (changed !== undefined) throw new UserError(`the snapshot of ${this.#options.output} was made with ${changed} ${JSON.stringify(state.configuration[changed])}; --resume needs the same, or choose another --output`);
    this.#finished.push(...heads.slice(0, -1));
    trained.writeMoments(moments);
    this.#stream.restore(state.stream);
    [this.#step, this.#stepInStage, this.#optimizerStep] = [state.step, state.stepInStage, state.optimizerStep];
    [this.#elapsedBefore, this.#best, this.#nWithoutGain] = [state.elapsedMs, state.best, state.nWithoutGain];
    return state.stage;
  }
}
