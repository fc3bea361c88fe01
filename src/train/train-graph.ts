/**
 * The graph of one step, built once and replayed: the block unrolled over K depths, the LM head and loss in chunks of
 * rows, and the backward pass. A depth's LM head, softmax and loss gradient are finished chunk by chunk (the LM head is
 * frozen, so a chunk's logits are not needed again), which bounds the memory that a large vocabulary takes.
 *
 * ggml's graph allocator plans the buffer: `plan` says how large it is before the first step.
 */
import { ggmlType, type GgmlDevice, type Graph, type Tensor } from "../llama/ggml.ts";
import type { Batch } from "./batch.ts";
import { allocateGraph } from "./allocate.ts";
import { ExpertGradients } from "./expert-gradients.ts";
import type { FrozenTensors } from "./frozen.ts";
import { emptyChain, headBlock, type KvChain } from "./head.ts";
import type { HeadShape } from "./head-shape.ts";
import { labelProbs, lossGradient, type LossKind } from "./loss.ts";
import type { BoundHead, HeadParameters, Parameter } from "./parameters.ts";
import { Tape, type ComputeType, type Value } from "./tape.ts";

export interface GraphOptions {
  readonly nTokens: number;
  readonly nDepths: number;
  /** Factor of each depth's loss. */
  readonly depthWeights: readonly number[];
  readonly loss: LossKind;
  /** Weight of a second loss: the mean squared distance of the head's hidden row from the target's, which the next depth should see. */
  readonly hiddenWeight?: number;
  /** Token that goes in at depth j >= 1: the one that came next, or the head's own greedy choice. */
  readonly feed: "true" | "argmax";
  /** Most rows of one LM head product. */
  readonly chunkRows: number;
  readonly backward: boolean;
  /** F32 when not given. */
  readonly computeType?: ComputeType;
  /** Keeps every logit, for parity and gradient tests: one chunk, no bound on memory. */
  readonly keepLogits?: boolean;
}

/** Results of one chunk of rows, on the device. */
interface Chunk {
  readonly start: number;
  readonly nRows: number;
  readonly teacherArgmax: Tensor;
  readonly depths: readonly { readonly argmax: Tensor; readonly labelProb: Tensor }[];
}

interface Inputs {
  readonly hidden: Tensor;
  readonly teacher: Tensor;
  readonly tokens: Tensor;
  readonly labels: Tensor;
  readonly positions: Tensor;
  readonly mask: Tensor;
  readonly ownMask: Tensor;
  readonly weights: Tensor;
  readonly fed: Tensor;
}

/** Per depth and row. */
export interface StepResult {
  readonly argmax: readonly Int32Array[];
  readonly labelProb: readonly Float32Array[];
  /** The target's greedy token after each row, [N + K - 1]. */
  readonly teacherArgmax: Int32Array;
}

export class TrainGraph {
  readonly options: GraphOptions;
  readonly trainable: readonly Parameter[];
  readonly #device: GgmlDevice;
  readonly #shape: HeadShape;
  readonly #frozen: FrozenTensors;
  readonly #heads: readonly BoundHead[];
  readonly #inputs: Inputs;
  readonly #contexts: Tensor[] = [];
  readonly #inputBuffer: Tensor;
  readonly #allocator: Tensor;
  readonly #graph: Graph;
  readonly #expertIds: Tensor[] = [];
  readonly #chunks: Chunk[] = [];
  readonly #logits: Tensor[] = [];
  #teacherLogits: Tensor | undefined;
  readonly #expertGradients: ExpertGradients | undefined;
  /** Depths whose expert weights get gradients: all of a shared head, else the last. */
  readonly #nUses: number;
  readonly result: StepResult;

  /** One head for all depths; or one a depth (`heads.length === nDepths`), each with a KV cache of its own, of which the last may be trained. */
  constructor(device: GgmlDevice, frozen: FrozenTensors, heads: readonly HeadParameters[], options: GraphOptions) {
    const { ggml } = device;
    this.options = options;
    this.#device = device;
    this.#frozen = frozen;
    this.#shape = (heads[0] as HeadParameters).shape;
    const { nTokens: n, nDepths: k } = options;
    this.#heads = heads.map((h) => h.bind({ withGradients: options.backward }));
    this.trainable = this.#heads.flatMap((h) => h.trainable);
    this.result = {
      argmax: Array.from({ length: k }, () => new Int32Array(n)),
      labelProb: Array.from({ length: k }, () => new Float32Array(n)),
      teacherArgmax: new Int32Array(n + k - 1),
    };
    const inputContext = device.newContext(16384);
    this.#inputs = createInputs(device, inputContext, this.#shape.nEmbd, options);
    this.#inputBuffer = device.allocate(inputContext);
    const nChunks = Math.ceil(n / options.chunkRows);
    const maxNodes = 2048 * (k + 1) + 64 * k * nChunks;
    const context = device.newContext(maxNodes * 450 + ggml.ggml_graph_overhead_custom(maxNodes, false) + (1 << 16));
    this.#contexts.push(inputContext, context);
    this.#graph = ggml.ggml_new_graph_custom(context, maxNodes, false);
    const experts = this.#heads.flatMap((h) => h.experts);
    this.#nUses = heads.length === 1 ? k : 1;
    if (experts.length > 0) this.#expertGradients = new ExpertGradients(device, experts, { nExpert: this.#shape.nExpert, k: this.#shape.nExpertUsed, nTokens: n, nUses: this.#nUses, computeType: options.computeType ?? "f32" });
    this.#build(new Tape(ggml, context, this.#graph, options.computeType ?? "f32"), nChunks);
    this.#allocator = allocateGraph(device, this.#graph, "a training step");
  }

  get nNodes(): number {
    return this.#device.ggml.ggml_graph_n_nodes(this.#graph);
  }

  get bufferBytes(): number {
    const { ggml } = this.#device;
    return ggml.ggml_backend_buffer_get_size(this.#inputBuffer) + ggml.ggml_gallocr_get_buffer_size(this.#allocator, 0) + (this.#expertGradients?.bufferBytes ?? 0);
  }

  #headOf(depth: number): BoundHead {
    return this.#heads[this.#heads.length === 1 ? 0 : depth] as BoundHead;
  }

  #build(tape: Tape, nChunks: number): void {
    const { nDepths } = this.options;
    const chains = this.#heads.map(() => emptyChain());
    const hidden: Value[] = [];
    for (let depth = 0; depth < nDepths; depth++) hidden.push(this.#depth(tape, depth, hidden[depth - 1], chains[this.#heads.length === 1 ? 0 : depth] as KvChain));
    const gradients: (Tensor | undefined)[] = hidden.map(() => undefined);
    for (let c = 0; c < nChunks; c++) this.#chunk(tape, c * this.options.chunkRows, hidden, gradients);
    if (!this.options.backward) return;
    hidden.forEach((h, depth) => {
      const gradient = gradients[depth];
      if (gradient === undefined) return;
      tape.accumulate(h, gradient);
      if ((this.options.hiddenWeight ?? 0) > 0) tape.accumulate(h, this.#hiddenGradient(tape, h, depth));
    });
    tape.backward();
    const { ggml, context: c } = tape;
    for (const { name, value, gradient } of this.trainable) {
      if (name.includes("_exps.")) continue;
      if (value.grad === undefined) throw new Error(`no gradient reached ${name}`);
      const flat = ggml.ggml_reshape_4d(c, gradient, ...value.ne);
      ggml.ggml_build_forward_expand(this.#graph, ggml.ggml_cpy(c, value.grad, flat));
    }
  }

  #depth(tape: Tape, depth: number, previous: Value | undefined, chain: KvChain): Value {
    const { ggml, context: c } = tape;
    const { nTokens: n } = this.options;
    const { hidden, tokens, positions, mask, ownMask } = this.#inputs;
    const d = this.#shape.nEmbd;
    const fed = depth > 0 && this.options.feed === "argmax" ? this.#ownChoice(tape, depth, previous as Value) : ggml.ggml_view_1d(c, tokens, n, 4 * depth);
    const nOwn = chain.depth0 === undefined ? 0 : chain.own.length + 1;
    const { hidden: out, expertIds } = headBlock(tape, this.#shape, this.#headOf(depth).values, {
      embedding: tape.value(ggml.ggml_get_rows(c, this.#frozen.embedding, fed), [d, n]),
      hidden: previous ?? tape.value(ggml.ggml_cast(c, hidden, ggmlType.F32), [d, n]),
      positions: ggml.ggml_view_1d(c, positions, n, 4 * depth),
      mask: nOwn === 0 ? mask : ggml.ggml_concat(c, mask, ggml.ggml_view_2d(c, ownMask, nOwn, n, 4 * nOwn, 0), 0),
      chain,
      use: this.#heads.length === 1 ? depth : 0,
    });
    ggml.ggml_build_forward_expand(this.#graph, expertIds);
    this.#expertIds.push(expertIds);
    return out;
  }

  /** The head's greedy tokens of the depth before, I32 [N], from an LM head product of their own. */
  #ownChoice({ ggml, context: c }: Tape, depth: number, previous: Value): Tensor {
    const { nTokens: n, chunkRows } = this.options;
    const d = this.#shape.nEmbd;
    for (let start = 0; start < n; start += chunkRows) {
      const nRows = Math.min(chunkRows, n - start);
      const rows = ggml.ggml_view_2d(c, previous.tensor, d, nRows, 4 * d, 4 * d * start);
      const choice = ggml.ggml_argmax(c, ggml.ggml_mul_mat(c, this.#frozen.lmHead, rows));
      ggml.ggml_build_forward_expand(this.#graph, ggml.ggml_cpy(c, choice, ggml.ggml_view_1d(c, this.#inputs.fed, nRows, 4 * (n * (depth - 1) + start))));
    }
    return ggml.ggml_view_1d(c, this.#inputs.fed, n, 4 * n * (depth - 1));
  }

  #chunk(tape: Tape, start: number, hidden: readonly Value[], gradients: (Tensor | undefined)[]): void {
    const { ggml, context: c } = tape;
    const { nTokens: n, nDepths, chunkRows, backward } = this.options;
    const { nEmbd: d, nVocab: v } = this.#shape;
    const nRows = Math.min(chunkRows, n - start);
    const nTeacher = nRows + nDepths - 1;
    const keep = (t: Tensor): Tensor => {
      ggml.ggml_set_output(t);
      ggml.ggml_build_forward_expand(this.#graph, t);
      return t;
    };
    const teacherRows = ggml.ggml_cast(c, ggml.ggml_view_2d(c, this.#inputs.teacher, d, nTeacher, 2 * d, 2 * d * start), ggmlType.F32);
    const teacherLogits = ggml.ggml_mul_mat(c, this.#frozen.lmHead, teacherRows);
    const teacherArgmax = keep(ggml.ggml_argmax(c, teacherLogits));
    if (this.options.keepLogits === true) this.#teacherLogits = keep(teacherLogits);
    const q = ggml.ggml_soft_max(c, teacherLogits);
    const depths = hidden.map((h, depth) => {
      const rows = ggml.ggml_view_2d(c, h.tensor, d, nRows, 4 * d, 4 * d * start);
      const logits = ggml.ggml_mul_mat(c, this.#frozen.lmHead, rows);
      const argmax = keep(ggml.ggml_argmax(c, logits));
      if (this.options.keepLogits === true) this.#logits.push(keep(logits));
      const p = ggml.ggml_soft_max(c, logits);
      const labels = ggml.ggml_view_2d(c, this.#inputs.labels, 1, nRows, 4, 4 * (start + depth));
      const labelProb = keep(labelProbs(ggml, c, p, labels, v, nRows));
      if (backward && h.needsGrad && this.options.depthWeights[depth] !== 0) {
        const shifted = ggml.ggml_view_2d(c, q, v, nRows, 4 * v, 4 * v * depth);
        const weights = ggml.ggml_view_2d(c, this.#inputs.weights, 1, nRows, 4, 4 * (n * depth + start));
        const dLogits = lossGradient(ggml, c, this.options.loss, { p, q: shifted, labels, nVocab: v, nRows });
        const dRows = ggml.ggml_mul(c, ggml.ggml_mul_mat(c, this.#frozen.lmHeadTransposed, dLogits), weights);
        const before = gradients[depth];
        const all = before === undefined ? dRows : ggml.ggml_concat(c, before, dRows, 1);
        ggml.ggml_build_forward_expand(this.#graph, all);
        gradients[depth] = all;
      }
      return { argmax, labelProb };
    });
    this.#chunks.push({ start, nRows, teacherArgmax, depths });
  }

  #hiddenGradient({ ggml, context: c }: Tape, h: Value, depth: number): Tensor {
    const { nTokens: n, hiddenWeight = 0 } = this.options;
    const d = this.#shape.nEmbd;
    const target = ggml.ggml_cast(c, ggml.ggml_view_2d(c, this.#inputs.teacher, d, n, 2 * d, 2 * d * depth), ggmlType.F32);
    const weights = ggml.ggml_view_2d(c, this.#inputs.weights, 1, n, 4, 4 * n * depth);
    return ggml.ggml_mul(c, ggml.ggml_scale(c, ggml.ggml_sub(c, h.tensor, target), (2 * hiddenWeight) / d), weights);
  }

  /** Forward and, when built for it, backward pass over a batch. Results are in `result`, gradients in `trainable`. */
  run(batch: Batch): void {
    const { nTokens: n, nDepths, depthWeights } = this.options;
    const device = this.#device;
    const { hidden, teacher, tokens, labels, positions, mask, weights } = this.#inputs;
    device.set(hidden, batch.hidden);
    device.set(teacher, batch.teacher);
    device.set(tokens, batch.tokens);
    device.set(labels, batch.labels);
    device.set(positions, batch.positions);
    device.set(mask, batch.mask);
    const scaled = Float32Array.from(batch.weights, (w, i) => {
      const depth = Math.floor(i / n);
      return w === 0 ? 0 : (w * (depthWeights[depth] as number)) / (batch.weightSums[depth] as number);
    });
    device.set(weights, scaled);
    device.compute(this.#graph);
    for (const { start, nRows, teacherArgmax, depths } of this.#chunks) {
      device.get(teacherArgmax, this.result.teacherArgmax.subarray(start, start + nRows + nDepths - 1));
      depths.forEach(({ argmax, labelProb }, depth) => {
        device.get(argmax, (this.result.argmax[depth] as Int32Array).subarray(start, start + nRows));
        device.get(labelProb, (this.result.labelProb[depth] as Float32Array).subarray(start, start + nRows));
      });
    }
    this.#expertGradients?.compute(this.#expertIds.slice(-this.#nUses).map((_, i) => this.expertIds(nDepths - this.#nUses + i)));
  }

  /** Experts chosen at a depth, [k, N]. */
  expertIds(depth: number): Int32Array {
    return this.#device.get(this.#expertIds[depth] as Tensor, new Int32Array(this.options.nTokens * this.#shape.nExpertUsed));
  }

  /** Logits [N, V] of a depth; only with `keepLogits`. */
  logits(depth: number): Float32Array {
    return this.#device.get(this.#logits[depth] as Tensor, new Float32Array(this.#shape.nVocab * this.options.nTokens));
  }

  /** The target's logits [N + K - 1, V]; only with `keepLogits`. */
  teacherLogits(): Float32Array {
    return this.#device.get(this.#teacherLogits as Tensor, new Float32Array(this.#shape.nVocab * (this.options.nTokens + this.options.nDepths - 1)));
  }

  close(): void {
    const { ggml } = this.#device;
    this.#expertGradients?.close();
    ggml.ggml_gallocr_free(this.#allocator);
    ggml.ggml_backend_buffer_free(this.#inputBuffer);
    for (const context of this.#contexts) ggml.ggml_free(context);
  }
}

function createInputs({ ggml }: GgmlDevice, c: Tensor, d: number, { nTokens: n, nDepths: k }: GraphOptions): Inputs {
  const tensor = (type: number, ...ne: number[]): Tensor => ggml.ggml_new_tensor_4d(c, type, ne[0] ?? 1, ne[1] ?? 1, 1, 1);
  return {
    hidden: tensor(ggmlType.F16, d, n),
    teacher: tensor(ggmlType.F16, d, n + k - 1),
    tokens: tensor(ggmlType.I32, n + k - 1),
    labels: tensor(ggmlType.I32, n + k - 1),
    positions: tensor(ggmlType.I32, n + k - 1),
    mask: tensor(ggmlType.F32, n, n),
    ownMask: tensor(ggmlType.F32, k * n),
    weights: tensor(ggmlType.F32, n, k),
    fed: tensor(ggmlType.I32, n * k),
  };
}
