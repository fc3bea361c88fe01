/** The target's token of an output row, by the request's parameters and the slot's kind. */
import type { DecodeContext } from "./backend.ts";
import { tokenLogprob } from "./logprobs.ts";
import { HostSampler, type SamplerState } from "./sampler.ts";
import type { Sequence } from "./sequence.ts";

export class TargetSampler {
  readonly #target: DecodeContext;
  readonly #host: HostSampler;
  readonly #ids: Int32Array;
  readonly #top: Float32Array;
  readonly #masked: Float32Array;

  constructor(target: DecodeContext) {
    this.#target = target;
    this.#host = new HostSampler(target.nVocab);
    this.#ids = new Int32Array(target.nVocab);
    this.#top = new Float32Array(target.nVocab);
    this.#masked = new Float32Array(target.nVocab);
  }

  /** Draws once from row `row`; the caller asks for each row at most once. Hot. */
  sample(seq: Sequence, row: number): number {
    if (seq.isPlainGreedy) return this.#target.greedyToken(row);
    const state = seq.sampler as SamplerState;
    if (seq.sampling !== "host") return this.#host.fromCandidates(this.#target.candidates(row), state);
    const logits = this.#target.logits(row);
    const token = this.#constrained(seq, logits, state);
    const nTop = seq.request?.nLogprobs;
    if (nTop !== undefined) seq.logprobs.push(tokenLogprob(logits, token, nTop, this.#ids, this.#top));
    return token;
  }

  /** Most tokens obey the grammar unasked: mask the whole row only when the first draw does not. */
  #constrained(seq: Sequence, logits: Float32Array, state: SamplerState): number {
    const { grammar } = seq;
    const token = this.#host.fromLogits(logits, state);
    if (grammar === undefined || grammar.allows(token)) return token;
    this.#masked.set(logits);
    grammar.mask(this.#masked);
    return this.#host.fromLogits(this.#masked, state);
  }
}
