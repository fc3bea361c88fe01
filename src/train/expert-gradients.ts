/**
 * Gradients of the expert weights: dW[:, :, e] is the sum of x g^T over the rows that were routed to expert e, over all
 * depths of the chain. How many rows that is depends on the data, so this graph alone is rebuilt each step: rows are
 * gathered in the order of their expert, then each expert takes its slice. Nothing is dropped and nothing is
 * multiplied in vain; a fixed capacity per expert either drops rows or costs N / (rows of the mean expert) times more.
 */
import { ggmlType, type GgmlDevice, type Graph, type Tensor } from "../llama/ggml.ts";
import { newAllocator, placeGraph } from "./allocate.ts";
import type { ExpertRows } from "./moe.ts";
import type { TrainableExpert } from "./parameters.ts";
import type { ComputeType } from "./tape.ts";

/** Slices are multiples of this many rows: the block of the CPU's fast BF16 kernel, and aligned for the others. */
const rowAlign = 32;

/** Rows by expert. `slots[i]` is a row of the concatenation over depths of [k * N] routed rows, -1 for padding. */
export interface ExpertOrder {
  readonly slots: Int32Array;
  readonly offsets: Int32Array;
  readonly counts: Int32Array;
}

/** Most slots that `orderByExpert` can return. */
export const maxSlots = (nRouted: number, nExpert: number): number => Math.ceil((nRouted + Math.min(nExpert, nRouted) * (rowAlign - 1)) / rowAlign) * rowAlign;

/** Counting sort of the routed rows of all depths; each expert's slice is padded to `rowAlign`. Counts include the padding. */
export function orderByExpert(ids: readonly Int32Array[], nExpert: number, slots: Int32Array): ExpertOrder {
  const counts = new Int32Array(nExpert);
  for (const depth of ids) for (const e of depth) counts[e] = (counts[e] as number) + 1;
  const offsets = new Int32Array(nExpert);
  let offset = 0;
  for (let e = 0; e < nExpert; e++) {
    offsets[e] = offset;
    counts[e] = Math.ceil((counts[e] as number) / rowAlign) * rowAlign;
    offset += counts[e] as number;
  }
  slots.fill(-1);
  const next = offsets.slice();
  let row = 0;
  for (const depth of ids) {
    for (const e of depth) {
      const at = next[e] as number;
      slots[at] = row++;
      next[e] = at + 1;
    }
  }
  return { slots, offsets, counts };
}

export interface ExpertGradientOptions {
  readonly nExpert: number;
  readonly k: number;
  readonly nTokens: number;
  /** Uses of the weights in a step: depths that get gradients. */
  readonly nUses: number;
  readonly computeType: ComputeType;
}

export class ExpertGradients {
  readonly #device: GgmlDevice;
  readonly #experts: readonly TrainableExpert[];
  readonly #options: ExpertGradientOptions;
  readonly #slots: Int32Array;
  readonly #indices: readonly [Int32Array, Int32Array, Int32Array];
  readonly #context: Tensor;
  readonly #kept: { readonly context: Tensor; readonly buffer: Tensor; readonly grads: Tensor; readonly routed: Tensor; readonly tokens: Tensor };
  readonly #allocator: Tensor;

  /** Before the graph is built: gives each expert weight the place for its rows. */
  constructor(device: GgmlDevice, experts: readonly TrainableExpert[], options: ExpertGradientOptions) {
    const { ggml } = device;
    const { nExpert, k, nTokens, nUses } = options;
    this.#device = device;
    this.#experts = experts;
    this.#options = options;
    const nRouted = k * nTokens * nUses;
    const nSlots = maxSlots(nRouted, nExpert);
    this.#slots = new Int32Array(nSlots);
    this.#indices = [new Int32Array(nSlots), new Int32Array(nSlots), new Int32Array(nSlots)];
    const context = device.newContext((experts.length * 2 + 3) * 512);
    const rows = (width: number, n: number): Tensor => ggml.ggml_new_tensor_2d(context, ggmlType.F32, width, n);
    for (const { weight, isShared } of experts) {
      const [n, m] = weight.value.ne;
      weight.rows = { inputs: rows(n, isShared ? nTokens * nUses : nRouted), isShared, grads: rows(m, nRouted + 1) };
    }
    const index = (): Tensor => ggml.ggml_new_tensor_1d(context, ggmlType.I32, nSlots);
    const [grads, routed, tokens] = [index(), index(), index()];
    this.#kept = { context, buffer: device.allocate(context), grads, routed, tokens };
    this.#context = device.newContext(this.#maxNodes * 450 + ggml.ggml_graph_overhead_custom(this.#maxNodes, false) + 4096);
    this.#allocator = newAllocator(device);
  }

  get #maxNodes(): number {
    return this.#experts.length * (this.#options.nExpert * 6 + 16) + 64;
  }

  get bufferBytes(): number {
    const { ggml } = this.#device;
    return ggml.ggml_backend_buffer_get_size(this.#kept.buffer) + ggml.ggml_gallocr_get_buffer_size(this.#allocator, 0);
  }

  /** Fills the gradient tensors; `ids` are the chosen experts [k, N] of each use. */
  compute(ids: readonly Int32Array[]): void {
    const { ggml } = this.#device;
    const order = orderByExpert(ids, this.#options.nExpert, this.#slots);
    this.#setIndices(order.slots, ids.length * this.#options.k * this.#options.nTokens);
    ggml.ggml_reset(this.#context);
    const graph = ggml.ggml_new_graph_custom(this.#context, this.#maxNodes, false);
    for (const expert of this.#experts) this.#build(graph, expert, order);
    placeGraph(this.#device, this.#allocator, graph, "the gradients of the experts");
    this.#device.compute(graph);
  }

  /** A padding slot reads some input row and the zero row behind the gradients. */
  #setIndices(slots: Int32Array, zeroRow: number): void {
    const [grads, routed, tokens] = this.#indices;
    for (let i = 0; i < slots.length; i++) {
      const slot = slots[i] as number;
      grads[i] = slot < 0 ? zeroRow : slot;
      routed[i] = Math.max(0, slot);
      tokens[i] = Math.floor(Math.max(0, slot) / this.#options.k);
    }
    this.#device.set(this.#kept.grads, grads);
    this.#device.set(this.#kept.routed, routed);
    this.#device.set(this.#kept.tokens, tokens);
  }

  #build(graph: Graph, { weight, gradient }: TrainableExpert, { offsets, counts }: ExpertOrder): void {
    const { ggml } = this.#device;
    const c = this.#context;
    const [n, m] = weight.value.ne;
    const { inputs, grads, isShared } = weight.rows as ExpertRows;
    const nSlots = this.#slots.length;
    const byExpert = (rows: Tensor, index: Tensor): Tensor => ggml.ggml_transpose(c, ggml.ggml_get_rows(c, rows, index));
    const xBytes = this.#options.computeType === "f32" ? 4 : 2;
    const isF32 = this.#options.computeType === "f32";
    const xRows = byExpert(inputs, isShared ? this.#kept.tokens : this.#kept.routed);
    const x = isF32 ? ggml.ggml_cont(c, xRows) : ggml.ggml_cast(c, xRows, ggmlType.BF16);
    const g = ggml.ggml_cont(c, byExpert(grads, this.#kept.grads));
    for (let e = 0; e < this.#options.nExpert; e++) {
      const count = counts[e] as number;
      if (count === 0) {
        ggml.ggml_backend_tensor_memset(gradient, 0, 4 * n * m * e, 4 * n * m);
        continue;
      }
      const at = offsets[e] as number;
      const gSlice = ggml.ggml_view_2d(c, g, count, m, 4 * nSlots, 4 * at);
      // A strided F32 operand keeps the CPU from its fast kernel; a BF16 product copies it anyway.
      const product = ggml.ggml_mul_mat(c, ggml.ggml_view_2d(c, x, count, n, xBytes * nSlots, xBytes * at), isF32 ? ggml.ggml_cont(c, gSlice) : gSlice);
      ggml.ggml_build_forward_expand(graph, ggml.ggml_cpy(c, product, ggml.ggml_view_2d(c, gradient, n, m, 4 * n, 4 * n * m * e)));
    }
  }

  close(): void {
    const { ggml } = this.#device;
    ggml.ggml_gallocr_free(this.#allocator);
    ggml.ggml_backend_buffer_free(this.#kept.buffer);
    ggml.ggml_free(this.#kept.context);
    ggml.ggml_free(this.#context);
  }
}
