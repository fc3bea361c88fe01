/** What the head shares with its target and never changes: token embedding and LM head, on a device. */
import { ggmlType, type GgmlDevice, type Tensor } from "../llama/ggml.ts";
import { bf16Bytes, transposeMatrices } from "./parameters.ts";
import type { ComputeType } from "./tape.ts";

export interface FrozenWeights {
  /** [d, V] */
  readonly embedding: Float32Array;
  /** [d, V]; the embedding itself where they are tied. */
  readonly lmHead: Float32Array;
}

export class FrozenTensors {
  readonly embedding: Tensor;
  readonly lmHead: Tensor;
  /** [V, d]: the gradient of the hidden rows reads it. */
  readonly lmHeadTransposed: Tensor;
  readonly nEmbd: number;
  readonly nVocab: number;
  readonly #device: GgmlDevice;
  readonly #context: Tensor;
  readonly #buffer: Tensor;

  /** The LM head's products, half of a training step on a small model, run in `type`; embeddings stay F32. */
  constructor(device: GgmlDevice, weights: FrozenWeights, nEmbd: number, type: ComputeType) {
    const { ggml } = device;
    this.#device = device;
    this.nEmbd = nEmbd;
    this.nVocab = weights.lmHead.length / nEmbd;
    this.#context = device.newContext(4096);
    const id = type === "f32" ? ggmlType.F32 : ggmlType.BF16;
    this.embedding = ggml.ggml_new_tensor_4d(this.#context, ggmlType.F32, nEmbd, this.nVocab, 1, 1);
    this.lmHead = ggml.ggml_new_tensor_4d(this.#context, id, nEmbd, this.nVocab, 1, 1);
    this.lmHeadTransposed = ggml.ggml_new_tensor_4d(this.#context, id, this.nVocab, nEmbd, 1, 1);
    this.#buffer = device.allocate(this.#context);
    const stored = (values: Float32Array): Float32Array | Uint8Array => (type === "f32" ? values : bf16Bytes(values));
    device.set(this.embedding, weights.embedding);
    device.set(this.lmHead, stored(weights.lmHead));
    device.set(this.lmHeadTransposed, stored(transposeMatrices(weights.lmHead, [nEmbd, this.nVocab, 1, 1])));
  }

  get bufferBytes(): number {
    return this.#device.ggml.ggml_backend_buffer_get_size(this.#buffer);
  }

  close(): void {
    this.#device.ggml.ggml_backend_buffer_free(this.#buffer);
    this.#device.ggml.ggml_free(this.#context);
  }
}
