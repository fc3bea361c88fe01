/**
 * AdamW (Loshchilov and Hutter, 2019) on the device, with the gradient norm taken first: the step is only made when the
 * norm is finite, so bad numbers stop a run before they reach the weights. One-dimensional tensors are not decayed.
 */
import { ggmlType, type GgmlDevice, type Graph, type Tensor } from "../llama/ggml.ts";
import { allocateGraph } from "./allocate.ts";
import type { Parameter } from "./parameters.ts";

export interface AdamWOptions {
  readonly beta1: number;
  readonly beta2: number;
  readonly epsilon: number;
  readonly weightDecay: number;
  /** Largest gradient norm; longer gradients are scaled down to it. */
  readonly clip: number;
}

export class AdamW {
  readonly #device: GgmlDevice;
  readonly #options: AdamWOptions;
  readonly #contexts: Tensor[];
  readonly #buffer: Tensor;
  readonly #allocators: readonly Tensor[];
  readonly #decayed: Tensor;
  readonly #undecayed: Tensor;
  readonly #clipScale: Tensor;
  readonly #longestRow: number;
  readonly #norm: Tensor;
  readonly #normGraph: Graph;
  readonly #stepGraph: Graph;

  constructor(device: GgmlDevice, parameters: readonly Parameter[], options: AdamWOptions) {
    const { ggml } = device;
    this.#device = device;
    this.#options = options;
    const inputs = device.newContext(4096);
    const input = (n: number): Tensor => ggml.ggml_new_tensor_4d(inputs, ggmlType.F32, n, 1, 1, 1);
    this.#longestRow = Math.max(...parameters.map(({ ne }) => ne[0] as number));
    [this.#decayed, this.#undecayed, this.#clipScale] = [input(7), input(7), input(this.#longestRow)];
    this.#buffer = device.allocate(inputs);
    const nNodes = parameters.length * 5 + 64;
    const context = device.newContext(nNodes * 2 * 450 + 2 * ggml.ggml_graph_overhead_custom(nNodes, false) + (1 << 16));
    this.#contexts = [inputs, context];
    this.#normGraph = ggml.ggml_new_graph_custom(context, nNodes, false);
    this.#stepGraph = ggml.ggml_new_graph_custom(context, nNodes, false);
    const squares = parameters.map(({ gradient }) => ggml.ggml_sum(context, ggml.ggml_sqr(context, gradient)));
    this.#norm = ggml.ggml_sqrt(context, squares.reduce((a, b) => ggml.ggml_add(context, a, b)));
    ggml.ggml_set_output(this.#norm);
    ggml.ggml_build_forward_expand(this.#normGraph, this.#norm);
    for (const { value, ne, gradient, moments } of parameters) {
      // A row of equal factors: multiplying by one number broadcast over a row is ten times slower on the CPU.
      const clipped = ggml.ggml_mul(context, gradient, ggml.ggml_view_1d(context, this.#clipScale, ne[0] as number, 0));
      const hyper = ne.length > 1 ? this.#decayed : this.#undecayed;
      ggml.ggml_build_forward_expand(this.#stepGraph, ggml.ggml_opt_step_adamw(context, value.tensor, clipped, moments[0], moments[1], hyper));
    }
    this.#allocators = [this.#normGraph, this.#stepGraph].map((graph) => allocateGraph(device, graph, "the optimizer"));
  }

  get bufferBytes(): number {
    const { ggml } = this.#device;
    return this.#allocators.reduce((sum, a) => sum + ggml.ggml_gallocr_get_buffer_size(a, 0), ggml.ggml_backend_buffer_get_size(this.#buffer));
  }

  /** The norm of all gradients together; not finite when any of them is not. */
  gradientNorm(): number {
    this.#device.compute(this.#normGraph);
    return this.#device.get(this.#norm, new Float32Array(1))[0] as number;
  }

  /** One update; `step` counts from 1 and `norm` is this step's, finite. */
  step(step: number, learningRate: number, norm: number): void {
    const { beta1, beta2, epsilon, weightDecay, clip } = this.#options;
    const hyper = (decay: number): Float32Array => new Float32Array([learningRate, beta1, beta2, epsilon, decay, 1 / (1 - beta1 ** step), 1 / (1 - beta2 ** step)]);
    this.#device.set(this.#decayed, hyper(weightDecay));
    this.#device.set(this.#undecayed, hyper(0));
    this.#device.set(this.#clipScale, new Float32Array(this.#longestRow).fill(norm > clip ? clip / norm : 1));
    this.#device.compute(this.#stepGraph);
  }

  close(): void {
    const { ggml } = this.#device;
    for (const allocator of this.#allocators) ggml.ggml_gallocr_free(allocator);
    ggml.ggml_backend_buffer_free(this.#buffer);
    for (const context of this.#contexts) ggml.ggml_free(context);
  }
}
