/**
 * Capture, training, evaluation and self-test, each in a child process: all four run native code that may abort, and
 * training must not share a process with anything that computes.
 */
import { runInChild } from "../llama/child.ts";
import type { MtpCheckpointResult } from "../hf/mtp-checkpoint.ts";
import type { CaptureOptions, CaptureProgress } from "./capture.ts";
import { captureInParts, type RunPart } from "./capture-parts.ts";
import type { Evaluation, EvaluateOptions } from "./evaluate.ts";
import type { ExportOptions } from "./export.ts";
import type { SelfTestOptions, SelfTestResult } from "./self-test.ts";
import type { Manifest } from "./shards.ts";
import { TrainLog } from "./train-log.ts";
import type { TrainEvent, TrainOptions } from "./train-options.ts";

type Plain<T> = Omit<T, "signal" | "onProgress">;

export type WorkRequest =
  | { readonly kind: "capture"; readonly options: Plain<CaptureOptions> }
  | { readonly kind: "train"; readonly options: TrainOptions }
  | { readonly kind: "evaluate"; readonly options: Plain<EvaluateOptions> }
  | { readonly kind: "self-test"; readonly options: SelfTestOptions }
  | { readonly kind: "export"; readonly options: ExportOptions };

export interface WorkResults {
  readonly capture: Manifest;
  readonly train: null;
  readonly evaluate: Evaluation;
  readonly "self-test": SelfTestResult;
  readonly export: MtpCheckpointResult;
}

function run<K extends keyof WorkResults>(kind: K, options: Extract<WorkRequest, { kind: K }>["options"], hooks: { onNote?: (note: string) => void; signal: AbortSignal }): Promise<WorkResults[K]> {
  return runInChild<WorkRequest, WorkResults[K]>({ entry: "../train/worker-child", request: { kind, options } as WorkRequest, what: kind, stopSignal: "SIGTERM", ...hooks });
}

/** In `nWorkers` processes side by side. @throws {UserError} what went wrong, also when a child died. Whole shards stay. */
export function runCapture(options: Plain<CaptureOptions>, nWorkers: number, hooks: { readonly onProgress: (progress: CaptureProgress) => void; readonly signal: AbortSignal }): Promise<Manifest> {
  const start: RunPart = (part, { signal, onProgress }) =>
    run("capture", part, { signal, onNote: (note) => onProgress(JSON.parse(note) as CaptureProgress) });
  return captureInParts(options, nWorkers, start, hooks);
}

/** Trains and keeps the log in the output folder; on `signal` the child takes a snapshot and ends. */
export async function runTraining(options: TrainOptions, hooks: { readonly onEvent: (event: TrainEvent) => void; readonly signal: AbortSignal }): Promise<void> {
  const log = new TrainLog(options.output, options.resume);
  const onNote = (note: string): void => {
    const event = JSON.parse(note) as TrainEvent;
    log.write(event);
    hooks.onEvent(event);
  };
  await run("train", options, { signal: hooks.signal, onNote });
}

export function runEvaluation(options: Plain<EvaluateOptions>, hooks: { readonly onProgress: (nDone: number, nTotal: number) => void; readonly signal: AbortSignal }): Promise<Evaluation> {
  return run("evaluate", options, {
    signal: hooks.signal,
    onNote: (note) => {
      const [nDone, nTotal] = JSON.parse(note) as [number, number];
      hooks.onProgress(nDone, nTotal);
    },
  });
}

export function runSelfTest(options: SelfTestOptions, signal: AbortSignal): Promise<SelfTestResult> {
  return run("self-test", options, { signal });
}

/** Writes a trained head beside the embeddings of its checkpoint. */
export function runExport(options: ExportOptions, signal: AbortSignal): Promise<MtpCheckpointResult> {
  return run("export", options, { signal });
}
