/**
 * Losses on the logits and their gradients, written as ggml operators. p is the head's distribution, q the target's.
 *
 * - kl: KL(q || p), the distribution match that self-distillation uses; gradient p - q.
 * - ce: cross-entropy on the token that came next; gradient p - onehot.
 * - tv: total variation, 1 - sum(min(p, q)); 1 - tv is the acceptance rate of speculative sampling (Leviathan et al., 2023).
 * - lk: -log of that acceptance rate (LK losses, arXiv 2602.23881).
 */
import type { Ggml, Tensor } from "../llama/ggml.ts";

export const lossKinds = ["kl", "ce", "tv", "lk"] as const;
export type LossKind = (typeof lossKinds)[number];

export interface LossRows {
  /** Distributions [V, R]. */
  readonly p: Tensor;
  readonly q: Tensor;
  /** I32 [1, R]: the next token. */
  readonly labels: Tensor;
  readonly nVocab: number;
  readonly nRows: number;
}

/** Gradient of each row's loss by its logits: [V, R]. */
export function lossGradient(ggml: Ggml, c: Tensor, kind: LossKind, { p, q, labels, nVocab, nRows }: LossRows): Tensor {
  if (kind === "kl") return ggml.ggml_sub(c, p, q);
  if (kind === "ce") {
    const picked = ggml.ggml_scale_bias(c, labelProbs(ggml, c, p, labels, nVocab, nRows), 1, -1);
    const copy = ggml.ggml_reshape_3d(c, ggml.ggml_scale(c, p, 1), 1, nVocab, nRows);
    return ggml.ggml_reshape_2d(c, ggml.ggml_set_rows(c, copy, picked, labels), nVocab, nRows);
  }
  const difference = ggml.ggml_sub(c, p, q);
  const above = ggml.ggml_step(c, difference);
  const share = ggml.ggml_mul(c, p, above);
  const gradient = ggml.ggml_sub(c, share, ggml.ggml_mul(c, p, ggml.ggml_sum_rows(c, share)));
  if (kind === "tv") return gradient;
  const acceptance = ggml.ggml_scale_bias(c, ggml.ggml_sum_rows(c, ggml.ggml_mul(c, difference, above)), -1, 1);
  return ggml.ggml_div(c, gradient, ggml.ggml_clamp(c, acceptance, 1e-4, 1));
}

/** p[label] of each row: [1, 1, R]. */
export function labelProbs(ggml: Ggml, c: Tensor, p: Tensor, labels: Tensor, nVocab: number, nRows: number): Tensor {
  return ggml.ggml_get_rows(c, ggml.ggml_reshape_3d(c, p, 1, nVocab, nRows), labels);
}

/** The loss of one row in plain JavaScript, from logits: what tests and validation compare with. */
export function rowLoss(kind: LossKind, headLogits: Float32Array, targetLogits: Float32Array, label: number): number {
  const p = logSoftmax(headLogits);
  if (kind === "ce") return -(p[label] as number);
  const q = logSoftmax(targetLogits);
  let kl = 0;
  let acceptance = 0;
  for (let i = 0; i < p.length; i++) {
    const [pi, qi] = [p[i] as number, q[i] as number];
    kl += Math.exp(qi) * (qi - pi);
    acceptance += Math.min(Math.exp(pi), Math.exp(qi));
  }
  return kind === "kl" ? kl : kind === "tv" ? 1 - acceptance : -Math.log(acceptance);
}

function logSoftmax(logits: Float32Array): Float64Array {
  let max = -Infinity;
  for (const x of logits) max = Math.max(max, x);
  let sum = 0;
  for (const x of logits) sum += Math.exp(x - max);
  const shift = max + Math.log(sum);
  return Float64Array.from(logits, (x) => x - shift);
}
