/** What happens when in a run: stages of chain depth, and the learning rate within each. All of it pure. */
import { usageError } from "../util/errors.ts";

/** Part of a run: the chain is unrolled over `nDepths`, and `trained` says whose weights change. */
export interface Stage {
  readonly nDepths: number;
  /** Share of the run. */
  readonly share: number;
  readonly learningRate: number;
  /** "shared": one head for all depths. A number: the head of that position, behind those before it, which stay as they are. */
  readonly trained: "shared" | number;
}

/**
 * "1:0.6:8e-4,3:0.4:4e-4": depths, share of the run, peak learning rate. A rate left out is `learningRate`; shares are
 * normalised, so "1:3,3:2" is the same as "1:0.6,3:0.4".
 */
export function parseStages(text: string, learningRate: number): Stage[] {
  const stages = text.split(",").map((part): Stage => {
    const [depths, share = "1", rate] = part.split(":");
    const stage = { nDepths: Number(depths), share: Number(share), learningRate: rate === undefined ? learningRate : Number(rate), trained: "shared" as const };
    if (!Number.isInteger(stage.nDepths) || stage.nDepths < 1 || stage.nDepths > 16) throw usageError(`--depths ${text}: "${part}" needs a depth from 1 to 16`);
    if (!(stage.share > 0)) throw usageError(`--depths ${text}: "${part}" needs a share above 0`);
    if (!(stage.learningRate > 0)) throw usageError(`--depths ${text}: "${part}" needs a learning rate above 0`);
    return stage;
  });
  const total = stages.reduce((sum, s) => sum + s.share, 0);
  return stages.map((s) => ({ ...s, share: s.share / total }));
}

/** One head a position: each is trained for an equal share, on the chain of those before it. */
export function stagesPerPosition(nHeads: number, learningRate: number): Stage[] {
  return Array.from({ length: nHeads }, (_, i) => ({ nDepths: i + 1, share: 1 / nHeads, learningRate, trained: i }));
}

/** Where a run is: stage and the fraction of that stage, from the fraction of the run in [0, 1]. */
export function stageAt(stages: readonly Stage[], progress: number): { readonly index: number; readonly fraction: number } {
  let begin = 0;
  for (const [index, { share }] of stages.entries()) {
    if (progress < begin + share || index === stages.length - 1) return { index, fraction: Math.min(1, Math.max(0, (progress - begin) / share)) };
    begin += share;
  }
  return { index: 0, fraction: 0 };
}

/** Fraction of the run that is done: by steps or by time, whichever limit is nearer. */
export function progressOf(done: { readonly nSteps: number; readonly elapsedMs: number }, limits: { readonly maxSteps: number; readonly maxMs: number }): number {
  return Math.min(1, Math.max(done.nSteps / limits.maxSteps, done.elapsedMs / limits.maxMs));
}

/** Linear warm-up over the first steps of a stage, then a cosine down to `floor` of the peak at its end. */
export function learningRateAt(peak: number, stepInStage: number, fraction: number, options: { readonly warmupSteps: number; readonly floor: number }): number {
  const warm = Math.min(1, (stepInStage + 1) / Math.max(1, options.warmupSteps));
  return peak * warm * (options.floor + (1 - options.floor) * 0.5 * (1 + Math.cos(Math.PI * fraction)));
}

/** Weight of each depth's loss: 1, decay, decay^2 for a shared head; the trained position alone otherwise. */
export function depthWeightsOf(stage: Stage, decay: number): number[] {
  return Array.from({ length: stage.nDepths }, (_, depth) => (stage.trained === "shared" ? decay ** depth : depth === stage.trained ? 1 : 0));
}
