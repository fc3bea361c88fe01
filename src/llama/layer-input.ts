/**
 * Input rows of one trunk layer, for fitting a head that copies that layer. A staging call of libllama: rows come in the
 * order of the forwards, so read them after a decode that was one forward.
 */
import type { LlamaContext } from "./context.ts";
import type { Model } from "./model.ts";
import { ViewCache } from "./views.ts";

export class LayerInput {
  readonly layer: number;
  readonly #model: Model;
  readonly #context: LlamaContext;
  readonly #views = new ViewCache();

  /** @throws when the model has no such layer: libllama would abort. */
  constructor(model: Model, context: LlamaContext, layer: number) {
    const nLayers = model.llama.api.llama_model_n_layer(model.pointer);
    if (!Number.isInteger(layer) || layer < 0 || layer >= nLayers) throw new Error(`layer ${layer} is not in 0..${nLayers - 1}`);
    this.layer = layer;
    this.#model = model;
    this.#context = context;
    this.#set(true);
  }

  #set(on: boolean): void {
    this.#model.llama.api.llama_set_embeddings_layer_inp(this.#context.pointer, this.layer, on);
  }

  /** Rows [nRows, nEmbd] of the last decode, a view until the next. */
  rows(nRows: number): Float32Array {
    const base = this.#model.llama.api.llama_get_embeddings_layer_inp(this.#context.pointer, this.layer);
    if (base === null) throw new Error(`libllama gave no input rows of layer ${this.layer}`);
    return this.#views.get(base, nRows * this.#model.nEmbd).all.subarray(0, nRows * this.#model.nEmbd);
  }

  /** Decodes stop keeping the rows. */
  stop(): void {
    this.#views.clear();
    this.#set(false);
  }
}
