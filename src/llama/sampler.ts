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
  free(): void;
}

/** One chain for each sequence that is not "host". `isBatched` false takes libllama's own greedy sampler, for measuring what one argmax for all rows is worth. */
export function createChains(llama: Llama, samplings: readonly SlotSampling[], isBatched = true): SamplerChains {
  const { api } = llama;
  const chains: Pointer[] = [];
  const words: bigint[] = [];
  samplings.forEach((sampling, seq) => {
    if (sampling === "host") return;
    const chain = api.llama_sampler_chain_init({ no_perf: true });
    api.llama_sampler_chain_add(chain, sampling === "device-greedy" ? ((isBatched ? createBatchedArgmax(llama) : undefined) ?? api.llama_sampler_init_greedy()) : api.llama_sampler_init_top_k(DEVICE_TOP_K));
    chains.push(chain);
    words.push(BigInt(seq), chain);
  });
  return {
    configs: words.length === 0 ? null : BigUint64Array.from(words),
    n: chains.length,
    free: () => chains.splice(0).forEach((chain) => api.llama_sampler_free(chain)),
  };
}
