/**
 * Reverse-mode differentiation whose gradients are ggml forward operators again, so that one graph holds both passes
 * and runs on every backend of ggml. ggml's own backward pass aborts on the operators of a MoE block.
 *
 * A `Value` is an F32 tensor [ne0, ne1, ne2, ne3] (ne0 contiguous). Each operator records how to turn the gradient of
 * its output into gradients of its inputs; `backward` replays the records in reverse and appends what they make to the
 * graph at once, so that an activation's memory is free for reuse as soon as its last gradient has been taken.
 *
 * Both passes must be one graph. Backends fuse neighbours (rms_norm + mul) when the graph shows a single use of the
 * intermediate, and then never write it; a backward pass in a graph of its own would read garbage.
 */
import { ggmlType, type Ggml, type Graph, type Tensor } from "../llama/ggml.ts";

export type Shape = readonly [number, number, number, number];

export interface Value {
  readonly tensor: Tensor;
  readonly ne: Shape;
  readonly needsGrad: boolean;
  grad: Tensor | undefined;
  /** cont(transpose(tensor)), made once, in the type that products take. A frozen weight brings its own. */
  transposed: Tensor | undefined;
  /** The tensor in the type that products take, made once. */
  lowered: Tensor | undefined;
}

/** Type in which products with weights are computed; sums, norms, softmax and masters stay F32. */
export type ComputeType = "f32" | "bf16";

interface TapeRecord {
  readonly outputs: readonly Value[];
  readonly back: () => void;
}

export interface RopeOptions {
  readonly nRot: number;
  readonly freqBase: number;
  readonly freqScale: number;
}

const neoxRope = 2;

export const shapeOf = (ne: readonly number[]): Shape => [ne[0] ?? 1, ne[1] ?? 1, ne[2] ?? 1, ne[3] ?? 1];
export const sizeOf = (ne: Shape): number => ne[0] * ne[1] * ne[2] * ne[3];
const sameShape = (a: Shape, b: Shape): boolean => a.every((n, i) => n === b[i]);

export class Tape {
  readonly ggml: Ggml;
  /** ggml context that holds the tensors' descriptions. */
  readonly context: Tensor;
  readonly graph: Graph;
  readonly #computeType: ComputeType;
  readonly #records: TapeRecord[] = [];

  constructor(ggml: Ggml, context: Tensor, graph: Graph, computeType: ComputeType) {
    this.ggml = ggml;
    this.context = context;
    this.graph = graph;
    this.#computeType = computeType;
  }

  /** A tensor that exists already, as a value of the tape. */
  value(tensor: Tensor, ne: readonly number[], needsGrad = false): Value {
    return { tensor, ne: shapeOf(ne), needsGrad, grad: undefined, transposed: undefined, lowered: undefined };
  }

  record(tensor: Tensor, ne: readonly number[], inputs: readonly Value[], back: (grad: Tensor) => void): Value {
    const output = this.value(tensor, ne, inputs.some((x) => x.needsGrad));
    if (output.needsGrad) this.#records.push({ outputs: [output], back: () => back(output.grad as Tensor) });
    this.ggml.ggml_build_forward_expand(this.graph, tensor);
    return output;
  }

  /** An operator with several outputs; `back` finds the gradients in them, undefined where nothing used one. */
  recordMany(outputs: readonly Value[], back: () => void): void {
    if (outputs.some((y) => y.needsGrad)) this.#records.push({ outputs, back });
    for (const y of outputs) this.ggml.ggml_build_forward_expand(this.graph, y.tensor);
  }

  accumulate(x: Value, grad: Tensor): void {
    if (!x.needsGrad) return;
    x.grad = x.grad === undefined ? grad : this.ggml.ggml_add(this.context, x.grad, grad);
    this.ggml.ggml_build_forward_expand(this.graph, x.grad);
  }

  /** Gradients of everything recorded, from the gradients that `accumulate` has put into the outputs. */
  backward(): void {
    for (const { outputs, back } of this.#records.toReversed()) if (outputs.some((y) => y.grad !== undefined)) back();
    this.#records.length = 0;
  }

  /** A weight as products take it. */
  lower(w: Value): Tensor {
    return (w.lowered ??= this.#computeType === "f32" ? w.tensor : this.ggml.ggml_cast(this.context, w.tensor, ggmlType.BF16));
  }

  /** The transpose of a weight, or of what is multiplied with a gradient, as products take it. */
  lowerTransposed(x: Value): Tensor {
    if (x.transposed !== undefined) return x.transposed;
    const { ggml, context: c } = this;
    x.transposed = this.#computeType === "f32" ? this.#transposed(x.tensor) : ggml.ggml_cast(c, ggml.ggml_transpose(c, x.tensor), ggmlType.BF16);
    return x.transposed;
  }

  #transposed(t: Tensor): Tensor {
    const { ggml, context: c } = this;
    return ggml.ggml_cont(c, ggml.ggml_transpose(c, t));
  }

  /** y[m, p] = w[n, m]^T x[n, p] with a weight, in the compute type. */
  project(w: Value, x: Value): Value {
    const { ggml, context: c } = this;
    return this.record(ggml.ggml_mul_mat(c, this.lower(w), x.tensor), [w.ne[1], x.ne[1]], [w, x], (g) => {
      if (x.needsGrad) this.accumulate(x, ggml.ggml_mul_mat(c, this.lowerTransposed(w), g));
      if (w.needsGrad) this.accumulate(w, ggml.ggml_mul_mat(c, this.lowerTransposed(x), this.#transposed(g)));
    });
  }

  /** y[m, p, b] = w[n, m, q]^T x[n, p, b] in F32; each w serves b / q consecutive slices of x, as ggml broadcasts. */
  matmul(w: Value, x: Value): Value {
    const { ggml, context: c } = this;
    const [n, m, q] = w.ne;
    const [, p, b, b3] = x.ne;
    return this.record(ggml.ggml_mul_mat(c, w.tensor, x.tensor), [m, p, b, b3], [w, x], (g) => {
      if (x.needsGrad) this.accumulate(x, ggml.ggml_mul_mat(c, this.#transposed(w.tensor), g));
      if (!w.needsGrad) return;
      const perSlice = ggml.ggml_mul_mat(c, this.#transposed(x.tensor), this.#transposed(g));
      this.accumulate(w, b === q ? perSlice : this.#sumGroups(perSlice, [n, m, q], b / q));
    });
  }

  /** [n, m, q * r] -> [n, m, q]: adds each r consecutive slices. */
  #sumGroups(t: Tensor, [n, m, q]: readonly [number, number, number], r: number): Tensor {
    const { ggml, context: c } = this;
    let sum: Tensor | undefined;
    for (let i = 0; i < r; i++) {
      const view = ggml.ggml_view_3d(c, t, n, m, q, 4 * n, 4 * n * m * r, 4 * n * m * i);
      sum = sum === undefined ? ggml.ggml_cont(c, view) : ggml.ggml_add(c, sum, view);
    }
    return sum as Tensor;
  }

  add(a: Value, b: Value): Value {
    return this.record(this.ggml.ggml_add(this.context, a.tensor, b.tensor), a.ne, [a, b], (g) => {
      this.accumulate(a, g);
      this.accumulate(b, g);
    });
  }

  /** a * b; b may be smaller and is then repeated. */
  mul(a: Value, b: Value): Value {
    const { ggml, context: c } = this;
    return this.record(ggml.ggml_mul(c, a.tensor, b.tensor), a.ne, [a, b], (g) => {
      if (a.needsGrad) this.accumulate(a, ggml.ggml_mul(c, g, b.tensor));
      if (!b.needsGrad) return;
      const full = ggml.ggml_mul(c, g, a.tensor);
      const sumsRows = b.ne[0] === 1 && sameShape([1, a.ne[1], a.ne[2], a.ne[3]], b.ne);
      this.accumulate(b, sameShape(a.ne, b.ne) ? full : sumsRows ? ggml.ggml_sum_rows(c, full) : ggml.ggml_repeat_back(c, full, b.tensor));
    });
  }

  scale(a: Value, factor: number): Value {
    const { ggml, context: c } = this;
    return this.record(ggml.ggml_scale(c, a.tensor, factor), a.ne, [a], (g) => this.accumulate(a, ggml.ggml_scale(c, g, factor)));
  }

  silu(a: Value): Value {
    const { ggml, context: c } = this;
    return this.record(ggml.ggml_silu(c, a.tensor), a.ne, [a], (g) => this.accumulate(a, ggml.ggml_silu_back(c, g, a.tensor)));
  }

  sigmoid(a: Value): Value {
    const { ggml, context: c } = this;
    const y = ggml.ggml_sigmoid(c, a.tensor);
    return this.record(y, a.ne, [a], (g) => this.accumulate(a, ggml.ggml_mul(c, g, ggml.ggml_sub(c, y, ggml.ggml_sqr(c, y)))));
  }

  /** Root mean square norm over ne0, times a weight [ne0]. */
  rmsNorm(a: Value, weight: Value, eps: number): Value {
    const { ggml, context: c } = this;
    const y = this.record(ggml.ggml_rms_norm(c, a.tensor, eps), a.ne, [a], (g) => this.accumulate(a, ggml.ggml_rms_norm_back(c, g, a.tensor, eps)));
    return this.mul(y, weight);
  }

  /** softmax(scale * a + mask) over ne0; mask [ne0, ne1] holds 0 and -infinity. */
  softmax(a: Value, mask?: Tensor, scale = 1): Value {
    const { ggml, context: c } = this;
    const y = ggml.ggml_soft_max_ext(c, a.tensor, mask ?? null, scale, 0);
    // The allocator lets soft_max_back write over an operand that nothing reads any more. On the CPU that is right for
    // the gradient and wrong for y, so the gradient comes as a tensor of its own, which is then the one taken.
    return this.record(y, a.ne, [a], (g) => this.accumulate(a, ggml.ggml_soft_max_ext_back(c, ggml.ggml_cont(c, g), y, scale, 0)));
  }

  /** Rotary embedding of a [nEmbdHead, nHead, nTokens], first `nRot` dimensions, pairs half a rotation apart (NeoX). */
  rope(a: Value, positions: Tensor, { nRot, freqBase, freqScale }: RopeOptions): Value {
    const { ggml, context: c } = this;
    const rest = [nRot, neoxRope, 0, freqBase, freqScale, 0, 1, 32, 1] as const;
    return this.record(ggml.ggml_rope_ext(c, a.tensor, positions, null, ...rest), a.ne, [a], (g) =>
      this.accumulate(a, ggml.ggml_rope_ext_back(c, g, positions, null, ...rest)),
    );
  }

  reshape(a: Value, ne: readonly number[]): Value {
    const { ggml, context: c } = this;
    return this.record(ggml.ggml_reshape_4d(c, a.tensor, ...shapeOf(ne)), ne, [a], (g) => this.accumulate(a, ggml.ggml_reshape_4d(c, g, ...a.ne)));
  }

  /** Moves axis i to place order[i], as ggml_permute, and makes the result contiguous. */
  permute(a: Value, order: Shape): Value {
    const { ggml, context: c } = this;
    const ne = [1, 1, 1, 1];
    const inverse: [number, number, number, number] = [0, 0, 0, 0];
    order.forEach((to, from) => {
      ne[to] = a.ne[from] as number;
      inverse[to] = from;
    });
    return this.record(ggml.ggml_cont(c, ggml.ggml_permute(c, a.tensor, ...order)), ne, [a], (g) =>
      this.accumulate(a, ggml.ggml_cont(c, ggml.ggml_permute(c, g, ...inverse))),
    );
  }

  /** Repeats a to the shape `ne`. */
  repeat(a: Value, ne: Shape): Value {
    const { ggml, context: c } = this;
    return this.record(ggml.ggml_repeat_4d(c, a.tensor, ...ne), ne, [a], (g) => this.accumulate(a, ggml.ggml_repeat_back(c, g, a.tensor)));
  }

  /** Sum over ne0. */
  sumRows(a: Value): Value {
    const { ggml, context: c } = this;
    return this.record(ggml.ggml_sum_rows(c, a.tensor), [1, a.ne[1], a.ne[2], a.ne[3]], [a], (g) => this.accumulate(a, ggml.ggml_repeat_4d(c, g, ...a.ne)));
  }

  /** Joins along ne0. */
  concat(parts: readonly Value[]): Value {
    const { ggml, context: c } = this;
    const [, n1, n2, n3] = (parts[0] as Value).ne;
    const total = parts.reduce((sum, p) => sum + p.ne[0], 0);
    const joined = parts.slice(1).reduce((t, p) => ggml.ggml_concat(c, t, p.tensor, 0), (parts[0] as Value).tensor);
    return this.record(joined, [total, n1, n2, n3], parts, (g) => {
      let offset = 0;
      for (const part of parts) {
        if (part.needsGrad) this.accumulate(part, this.#slice(g, [total, n1, n2, n3], offset, part.ne[0]));
        offset += part.ne[0];
      }
    });
  }

  /** Cuts along ne0 into pieces of these lengths. Every piece must be used. */
  split(a: Value, lengths: readonly number[]): Value[] {
    const { ggml, context: c } = this;
    let offset = 0;
    const pieces = lengths.map((length) => {
      const piece = this.value(this.#slice(a.tensor, a.ne, offset, length), [length, a.ne[1], a.ne[2], a.ne[3]], a.needsGrad);
      offset += length;
      return piece;
    });
    this.recordMany(pieces, () => {
      const grads = pieces.map((p) => p.grad as Tensor);
      this.accumulate(a, grads.slice(1).reduce((t, g) => ggml.ggml_concat(c, t, g, 0), grads[0] as Tensor));
    });
    return pieces;
  }

  #slice(t: Tensor, [n0, n1, n2, n3]: Shape, offset: number, length: number): Tensor {
    const { ggml, context: c } = this;
    return ggml.ggml_cont(c, ggml.ggml_view_4d(c, t, length, n1, n2, n3, 4 * n0, 4 * n0 * n1, 4 * n0 * n1 * n2, 4 * offset));
  }
}
