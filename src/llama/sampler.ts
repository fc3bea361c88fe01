/**
 * Sampler chains that run in the graph, on the device (llama.cpp's backend sampling). They are given to the context at
 * its creation: attaching one later rebuilds the scheduler and drops graphs. Freed only after their context.
 */
import type { SlotSampling } from "../engine/backend.ts";
import { createBatchedArgmax } from "./batched-argmax.ts";
import type { Llama } from "./library.ts";
import type { Pointer } from "./structs.ts";

/** Candidates a "device-top-k" chain keeps: llama-server's default top_k is 40. */
export const DEVICE_TOP_K = 64;

export interface SamplerChains {
  /** An array of llama_sampler_seq_config (int32 seq, padding, pointer), or null when every sequence is "host". */
  readonly configs: BigUint64Array | null;
  readonly n: number;
  /** After the context was made: whether its LM head could be limited to `nTokens`. */
  isLimited(): boolean;
  free(): void;
}

/**
 * One chain for each sequence that is not "host".
 * @param isBatched false takes libllama's own greedy sampler, for measuring what one argmax for all rows is worth
 * @param nTokens "device-greedy" chooses among the first tokens of the vocabulary only; all sequences must be that then
 */
export function createChains(llama: Llama, samplings: readonly SlotSampling[], isBatched = true, nTokens = Infinity): SamplerChains {
  const { api } = llama;
  const chains: Pointer[] = [];
  const isGreedy = samplings.every((sampling) => sampling === "device-greedy");
  const argmax = isBatched ? () => createBatchedArgmax(llama, isGreedy ? nTokens : Infinity) : () => undefined;
  let isLimited = (): boolean => false;
  const words: bigint[] = [];
  samplings.forEach((sampling, seq) => {
    if (sampling === "host") return;
    const chain = api.llama_sampler_chain_init({ no_perf: true });
    const batched = sampling === "device-greedy" ? argmax() : undefined;
    if (batched !== undefined) isLimited = batched.isLimited;
    api.llama_sampler_chain_add(chain, sampling === "device-greedy" ? (batched?.sampler ?? api.llama_sampler_init_greedy()) : api.llama_sampler_init_top_k(DEVICE_TOP_K));
    chains.push(chain);
    words.push(BigInt(seq), chain);
  });
  return {
    configs: words.length === 0 ? null : BigUint64Array.from(words),
    n: chains.length,
    isLimited: () => isLimited(),
    free: () => chains.splice(0).forEach((chain) => api.llama_sampler_free(chain)),
  };
}
