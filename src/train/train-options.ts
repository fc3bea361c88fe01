/** A training run as plain data: what the command gives to the process that trains. */
import type { AdamWOptions } from "./adamw.ts";
import type { ComputeType } from "./tape.ts";
import type { FreezeGroup } from "./head-shape.ts";
import type { LossKind } from "./loss.ts";
import type { BatchMetrics } from "./metrics.ts";
import type { ParityDepth } from "./parity.ts";
import type { Stage } from "./schedule.ts";

export interface TrainOptions {
  readonly modelPath: string;
  readonly capture: string;
  readonly output: string;
  /** "ridge", "bootstrap", or a GGUF file with a head. */
  readonly init: string;
  readonly ridgeLambda: number;
  readonly stages: readonly Stage[];
  readonly loss: LossKind;
  readonly hiddenWeight: number;
  readonly feed: "true" | "argmax";
  /** Loss weight of depth j is depthDecay ** j. */
  readonly depthDecay: number;
  /** Weight of rows that predict a prompt token. */
  readonly promptWeight: number;
  /** Rows of a step. */
  readonly nTokens: number;
  /** Rows of one LM head product; 0 for all. */
  readonly chunkRows: number;
  readonly frozen: readonly FreezeGroup[];
  readonly computeType: ComputeType | "auto";
  readonly adamW: AdamWOptions;
  readonly warmupSteps: number;
  readonly learningRateFloor: number;
  /** What a cosine stretches over: each stage, or the whole run. */
  readonly learningRateSpan: "stage" | "run";
  readonly maxSteps: number;
  readonly maxMs: number;
  readonly snapshotEvery: number;
  readonly nSnapshotsKept: number;
  readonly validateEvery: number;
  readonly nValidationBatches: number;
  /** Validations without a gain after which the run stops; 0: never. */
  readonly patience: number;
  readonly logEvery: number;
  readonly seed: number;
  /** 0: measured. */
  readonly threads: number;
  readonly device: string;
  readonly llamaDir: string | undefined;
  /** Go on from the newest snapshot of the output folder. */
  readonly resume: boolean;
}

/** What a run tells while it goes; each is also a line of its log. */
export type TrainEvent =
  | { readonly event: "ridge"; readonly nRows: number; readonly r2: number }
  | { readonly event: "parity"; readonly depths: readonly ParityDepth[] }
  | { readonly event: "start"; readonly nParameters: number; readonly nTrainable: number; readonly nDocuments: number; readonly nTokens: number; readonly device: string; readonly computeType: ComputeType; readonly resumedAt: number }
  | { readonly event: "stage"; readonly stage: number; readonly step: number; readonly nDepths: number; readonly learningRate: number; readonly trained: "shared" | number; readonly memory: MemoryPlan }
  | ({ readonly event: "step"; readonly step: number; readonly stage: number; readonly progress: number; readonly elapsedMs: number; readonly learningRate: number; readonly gradientNorm: number; readonly stepMs: number; readonly tokensPerSecond: number; readonly nEpochs: number; readonly threads: number } & BatchMetrics)
  | ({ readonly event: "validate"; readonly step: number; readonly stage: number; readonly elapsedMs: number; readonly tokensPerDraft: number } & BatchMetrics)
  | { readonly event: "snapshot"; readonly step: number; readonly file: string; readonly heads: readonly string[] }
  | { readonly event: "end"; readonly step: number; readonly elapsedMs: number; readonly reason: "done" | "early-stop" | "stopped"; readonly heads: readonly string[]; readonly medianStepMs: number };

/** Bytes that a stage takes on the device. */
export interface MemoryPlan {
  readonly weights: number;
  readonly frozen: number;
  readonly activations: number;
  readonly validation: number;
  readonly optimizer: number;
  readonly total: number;
}
