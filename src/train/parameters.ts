/**
 * A head's weights on a device: F32 masters, gradients and Adam's moments, all allocated once. Each
 * graph takes fresh values of them with `bind`, since a tape leaves gradients in the values it used.
 */
import { decodeFloats, encodeFloats } from "../hf/elements.ts";
import { ggmlType, type GgmlDevice, type Tensor } from "../llama/ggml.ts";
import { checkWeights, nElements, parameterSpecs, type FreezeGroup, type HeadShape, type HeadWeights, type ParameterSpec } from "./head-shape.ts";
import type { HeadValues } from "./head.ts";
import type { ExpertWeight } from "./moe.ts";
import { shapeOf, type ComputeType, type Value } from "./tape.ts";

interface Stored {
  readonly spec: ParameterSpec;
  readonly weight: Tensor;
  /** Of a frozen matrix that products take: its transpose, which the backward pass reads. Both are of the compute type then. */
  readonly transposed: Tensor | undefined;
  readonly isLowered: boolean;
  readonly moments: readonly [Tensor, Tensor] | undefined;
  readonly gradient: Tensor | undefined;
}

export interface Parameter {
  readonly name: string;
  readonly ne: readonly number[];
  readonly value: Value;
  /** Where the gradient is after a step: a place of its own, so that other graphs can read it. */
  readonly gradient: Tensor;
  readonly moments: readonly [Tensor, Tensor];
}

export interface BoundHead {
  readonly values: HeadValues;
  readonly trainable: readonly Parameter[];
  readonly experts: readonly TrainableExpert[];
}

export interface TrainableExpert {
  readonly weight: ExpertWeight;
  readonly gradient: Tensor;
  /** All experts of a token read the same input row. */
  readonly isShared: boolean;
}

export interface ParameterOptions {
  readonly frozen: ReadonlySet<FreezeGroup>;
  /** Gradients flow through the head to what came before it. Frozen matrices then keep a transpose. */
  readonly hasGradient?: boolean;
  /** Type of frozen matrices; F32 when not given. */
  readonly computeType?: ComputeType;
}

/** Matrices that go through `Tape.project` or the experts' product; the router's stays F32. */
const isProjected = (spec: ParameterSpec): boolean => spec.group !== "router" && (spec.ne.length > 1 || spec.name === "ffn_gate_inp_shexp.weight");

export const allGroupsFrozen: ReadonlySet<FreezeGroup> = new Set<FreezeGroup>(["fc", "attention", "experts", "router", "shared-expert", "norms"]);

export class HeadParameters {
  readonly shape: HeadShape;
  readonly #device: GgmlDevice;
  readonly #context: Tensor;
  readonly #buffer: Tensor;
  readonly #stored: ReadonlyMap<string, Stored>;

  constructor(device: GgmlDevice, shape: HeadShape, weights: HeadWeights, options: ParameterOptions) {
    checkWeights(shape, weights, "the head");
    this.shape = shape;
    this.#device = device;
    const specs = parameterSpecs(shape);
    this.#context = device.newContext(specs.length * 5 * 512);
    const stored = specs.map((spec) => this.#store(spec, options));
    this.#stored = new Map(stored.map((s) => [s.spec.name, s]));
    this.#buffer = device.allocate(this.#context);
    this.write(weights);
  }

  #store(spec: ParameterSpec, { frozen, hasGradient = true, computeType = "f32" }: ParameterOptions): Stored {
    const { ggml } = this.#device;
    const tensor = (ne: readonly number[], type: number = ggmlType.F32): Tensor => ggml.ggml_new_tensor_4d(this.#context, type, ...shapeOf(ne));
    const isFrozen = frozen.has(spec.group);
    const isLowered = isFrozen && computeType === "bf16" && isProjected(spec);
    const type = isLowered ? ggmlType.BF16 : ggmlType.F32;
    const [n, m, e] = shapeOf(spec.ne);
    const weight = tensor(spec.ne, type);
    if (!isFrozen) ggml.ggml_set_param(weight);
    return {
      spec,
      weight,
      isLowered,
      transposed: isFrozen && hasGradient && isProjected(spec) ? tensor([m, n, e], type) : undefined,
      moments: isFrozen ? undefined : [tensor(spec.ne), tensor(spec.ne)],
      gradient: isFrozen ? undefined : tensor(spec.ne),
    };
  }

  get bufferBytes(): number {
    return this.#device.ggml.ggml_backend_buffer_get_size(this.#buffer);
  }

  get trainableNames(): string[] {
    return [...this.#stored.values()].filter((s) => s.moments !== undefined).map((s) => s.spec.name);
  }

  read(): Map<string, Float32Array> {
    return new Map(
      [...this.#stored].map(([name, { spec, weight, isLowered }]) => {
        const values = new Float32Array(nElements(spec.ne));
        if (isLowered) decodeFloats(this.#device.get(weight, new Uint8Array(2 * values.length)), "BF16", values);
        else this.#device.get(weight, values);
        return [name, values];
      }),
    );
  }

  write(weights: HeadWeights): void {
    checkWeights(this.shape, weights, "the head");
    for (const [name, { spec, weight, transposed, isLowered }] of this.#stored) {
      const values = weights.get(name) as Float32Array;
      const stored = (v: Float32Array): Float32Array | Uint8Array => (isLowered ? bf16Bytes(v) : v);
      this.#device.set(weight, stored(values));
      if (transposed !== undefined) this.#device.set(transposed, stored(transposeMatrices(values, shapeOf(spec.ne))));
    }
  }

  /** One tensor, for finite differences. */
  writeOne(name: string, values: Float32Array): void {
    this.#device.set((this.#stored.get(name) as Stored).weight, values);
  }

  readMoments(): Map<string, readonly [Float32Array, Float32Array]> {
    const read = (t: Tensor, spec: ParameterSpec): Float32Array => this.#device.get(t, new Float32Array(nElements(spec.ne)));
    return new Map(
      [...this.#stored].flatMap(([name, { spec, moments }]) => (moments === undefined ? [] : [[name, [read(moments[0], spec), read(moments[1], spec)] as const]])),
    );
  }

  writeMoments(moments: ReadonlyMap<string, readonly [Float32Array, Float32Array]>): void {
    for (const [name, stored] of this.#stored) {
      const values = moments.get(name);
      if (stored.moments === undefined || values === undefined) continue;
      this.#device.set(stored.moments[0], values[0]);
      this.#device.set(stored.moments[1], values[1]);
    }
  }

  bind(options: { withGradients: boolean }): BoundHead {
    const trainable: Parameter[] = [];
    const experts: TrainableExpert[] = [];
    const value = (name: string, ne?: readonly number[]): Value => {
      const stored = this.#stored.get(name) as Stored;
      const needsGrad = options.withGradients && stored.moments !== undefined;
      const v: Value = { tensor: stored.weight, ne: shapeOf(ne ?? stored.spec.ne), needsGrad, grad: undefined, transposed: stored.transposed, lowered: stored.isLowered ? stored.weight : undefined };
      if (needsGrad) trainable.push({ name, ne: stored.spec.ne, value: v, gradient: stored.gradient as Tensor, moments: stored.moments });
      return v;
    };
    const expert = (name: string): ExpertWeight => {
      const weight: ExpertWeight = { value: value(name), rows: undefined };
      const gradient = this.#stored.get(name)?.gradient;
      if (weight.value.needsGrad && gradient !== undefined) experts.push({ weight, gradient, isShared: !name.includes("down") });
      return weight;
    };
    const values: HeadValues = {
      enorm: value("nextn.enorm.weight"),
      hnorm: value("nextn.hnorm.weight"),
      fc: value("nextn.eh_proj.weight"),
      attnNorm: value("attn_norm.weight"),
      q: value("attn_q.weight"),
      k: value("attn_k.weight"),
      v: value("attn_v.weight"),
      qNorm: value("attn_q_norm.weight"),
      kNorm: value("attn_k_norm.weight"),
      output: value("attn_output.weight"),
      postNorm: value("post_attention_norm.weight"),
      moe: {
        router: value("ffn_gate_inp.weight"),
        gate: expert("ffn_gate_exps.weight"),
        up: expert("ffn_up_exps.weight"),
        down: expert("ffn_down_exps.weight"),
      },
      sharedGateIn: value("ffn_gate_inp_shexp.weight", [this.shape.nEmbd, 1]),
      sharedGate: value("ffn_gate_shexp.weight"),
      sharedUp: value("ffn_up_shexp.weight"),
      sharedDown: value("ffn_down_shexp.weight"),
      headNorm: value("nextn.shared_head_norm.weight"),
    };
    return { values, trainable, experts };
  }

  close(): void {
    this.#device.ggml.ggml_backend_buffer_free(this.#buffer);
    this.#device.ggml.ggml_free(this.#context);
  }
}

export function bf16Bytes(values: Float32Array): Uint8Array {
  const out = new Uint8Array(2 * values.length);
  encodeFloats(values, "BF16", out);
  return out;
}

/** Each [n, m] matrix of [n, m, e] to [m, n]. */
export function transposeMatrices(values: Float32Array, [n, m, e]: readonly [number, number, number, number]): Float32Array {
  const out = new Float32Array(values.length);
  for (let k = 0; k < e; k++) {
    const base = k * n * m;
    for (let j = 0; j < m; j++) for (let i = 0; i < n; i++) out[base + i * m + j] = values[base + j * n + i] as number;
  }
  return out;
}
