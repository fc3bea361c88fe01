/**
 * The routed experts on the tape: softmax router, top-k, weights normalised to sum 1, SwiGLU experts, weighted sum
 * (`build_moe_ffn` of llama.cpp). The gradient of an expert's weights is an outer product over the rows that were
 * routed to it, a shape that depends on the data; the backward pass copies the rows aside and `expert-gradients.ts`
 * computes it from them afterwards.
 */
import type { Tensor } from "../llama/ggml.ts";
import type { Tape, Value } from "./tape.ts";

/** Rows that the backward pass keeps for an expert weight, depth after depth. */
export interface ExpertRows {
  /** Inputs: [n, N * nDepths] when all k experts of a token read the same row, else [n, k * N * nDepths]. */
  readonly inputs: Tensor;
  readonly isShared: boolean;
  /** Gradients of the outputs [m, k * N * nDepths + 1]; the last row stays zero. */
  readonly grads: Tensor;
}

export interface ExpertWeight {
  /** [n, m, E] */
  readonly value: Value;
  /** Where the rows go; undefined for a frozen weight. */
  rows: ExpertRows | undefined;
}

export interface MoeWeights {
  readonly router: Value;
  readonly gate: ExpertWeight;
  readonly up: ExpertWeight;
  readonly down: ExpertWeight;
}

export interface MoeOptions {
  readonly nExpertUsed: number;
  readonly weightsScale: number;
  /** Which block of the kept rows this use fills. */
  readonly use: number;
}

const minWeightSum = 6.103515625e-5;

/** x [d, N] -> [d, N]. `ids` is the I32 tensor [k, N] of chosen experts. */
export function routedExperts(tape: Tape, w: MoeWeights, x: Value, options: MoeOptions): { output: Value; ids: Tensor } {
  const { ggml, context: c } = tape;
  const { nExpertUsed: k, weightsScale } = options;
  const [d, n] = x.ne;
  const probs = tape.softmax(tape.matmul(w.router, x));
  const ids = ggml.ggml_cont(c, ggml.ggml_argsort_top_k(c, probs.tensor, k));
  ggml.ggml_set_output(ids);
  let weights = normalize(tape, chosenProbs(tape, probs, ids, k));
  if (weightsScale !== 1) weights = tape.scale(weights, weightsScale);
  const rows = tape.reshape(x, [d, 1, n]);
  const gate = tape.silu(expertMatmul(tape, w.gate, rows, ids, options));
  const hidden = tape.mul(gate, expertMatmul(tape, w.up, rows, ids, options));
  const perExpert = expertMatmul(tape, w.down, hidden, ids, options);
  return { output: sumExperts(tape, tape.mul(perExpert, weights)), ids };
}

/** y[m, k, N] = W[:, :, ids[i, t]]^T x; x is [n, 1, N] (shared) or [n, k, N]. */
function expertMatmul(tape: Tape, w: ExpertWeight, x: Value, ids: Tensor, { nExpertUsed: k, use }: MoeOptions): Value {
  const { ggml, context: c } = tape;
  const [n, m] = w.value.ne;
  const [, kIn, nTokens] = x.ne;
  return tape.record(ggml.ggml_mul_mat_id(c, tape.lower(w.value), x.tensor, ids), [m, k, nTokens], [w.value, x], (g) => {
    if (x.needsGrad) {
      const perExpert = ggml.ggml_mul_mat_id(c, tape.lowerTransposed(w.value), g, ids);
      tape.accumulate(x, kIn === 1 ? ggml.ggml_reshape_3d(c, sumSlices(tape, perExpert, n, k, nTokens), n, 1, nTokens) : perExpert);
    }
    if (!w.value.needsGrad || w.rows === undefined) return;
    keepRows(tape, x.tensor, w.rows.inputs, n, kIn * nTokens, use);
    keepRows(tape, g, w.rows.grads, m, k * nTokens, use);
  });
}

function keepRows({ ggml, context: c, graph }: Tape, rows: Tensor, store: Tensor, width: number, nRows: number, use: number): void {
  const place = ggml.ggml_view_2d(c, store, width, nRows, 4 * width, 4 * width * nRows * use);
  ggml.ggml_build_forward_expand(graph, ggml.ggml_cpy(c, ggml.ggml_reshape_2d(c, rows, width, nRows), place));
}

/** [n, k, N] -> [n, N] */
function sumSlices({ ggml, context: c }: Tape, t: Tensor, n: number, k: number, nTokens: number): Tensor {
  let sum: Tensor | undefined;
  for (let i = 0; i < k; i++) {
    const view = ggml.ggml_view_2d(c, t, n, nTokens, 4 * n * k, 4 * n * i);
    sum = sum === undefined ? ggml.ggml_cont(c, view) : ggml.ggml_add(c, sum, view);
  }
  return sum as Tensor;
}

function sumExperts(tape: Tape, x: Value): Value {
  const { ggml, context: c } = tape;
  const [d, k, n] = x.ne;
  return tape.record(sumSlices(tape, x.tensor, d, k, n), [d, n], [x], (g) =>
    tape.accumulate(x, ggml.ggml_repeat_4d(c, ggml.ggml_reshape_3d(c, g, d, 1, n), d, k, n, 1)),
  );
}

/** Probabilities [E, N] of the chosen experts: [1, k, N]. */
function chosenProbs(tape: Tape, probs: Value, ids: Tensor, k: number): Value {
  const { ggml, context: c } = tape;
  const [nExpert, n] = probs.ne;
  const rows = ggml.ggml_reshape_3d(c, probs.tensor, 1, nExpert, n);
  return tape.record(ggml.ggml_get_rows(c, rows, ids), [1, k, n], [probs], (g) => {
    const zeros = ggml.ggml_scale(c, rows, 0);
    tape.accumulate(probs, ggml.ggml_reshape_2d(c, ggml.ggml_set_rows(c, zeros, g, ids), nExpert, n));
  });
}

/** y = w / sum(w) over the k weights of a token; dw = (dy - sum(dy * y)) / sum(w). */
function normalize(tape: Tape, w: Value): Value {
  const { ggml, context: c } = tape;
  const [, k, n] = w.ne;
  const flat = ggml.ggml_reshape_2d(c, w.tensor, k, n);
  const sum = ggml.ggml_clamp(c, ggml.ggml_sum_rows(c, flat), minWeightSum, Infinity);
  const y = ggml.ggml_div(c, flat, sum);
  return tape.record(ggml.ggml_reshape_3d(c, y, 1, k, n), [1, k, n], [w], (g) => {
    const dy = ggml.ggml_reshape_2d(c, g, k, n);
    const centred = ggml.ggml_sub(c, dy, ggml.ggml_sum_rows(c, ggml.ggml_mul(c, dy, y)));
    tape.accumulate(w, ggml.ggml_reshape_3d(c, ggml.ggml_div(c, centred, sum), 1, k, n));
  });
}
