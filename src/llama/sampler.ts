/**
 * Sampler chains that run in the graph, on the device (llama.cpp's backend sampling). They are given to the context at
 * its creation: attaching one later rebuilds the scheduler and drops graphs. Freed only after their context.
 */
import type { SlotSampling } from "../engine/backend.ts";
import { createBatchedArgmax } from "./batched-argmax.ts";
import type { GatheredRows } from "./gathered-rows.ts";
import type { GraphEdits } from "./graph-edits.ts";
import type { Llama } from "./library.ts";
import type { Pointer } from "./structs.ts";

/** Candidates a "device-top-k" chain keeps: llama-server's default top_k is 40. */
export const DEVICE_TOP_K = 64;

export interface SamplerChains {
  /** An array of llama_sampler_seq_config (int32 seq, padding, pointer), or null when every sequence is "host". */
  readonly configs: BigUint64Array | null;
  readonly n: number;
  /** After the context was made: why its LM head could not be limited as asked; undefined where it is, or nothing was asked. */
  problem(): string | undefined;
  /** Tokens by the numbers that "device-greedy" answers with; undefined where they are the same. */
  readonly tokens: Int32Array | undefined;
  /** After the context: native memory of all of it. */
  free(): void;
}

/**
 * One chain for each sequence that is not "host".
 * @param isBatched false takes libllama's own greedy sampler, for measuring what one argmax for all rows is worth
 * @param argmaxParts of the vocabulary that each argmax is made of; 0: as many as is best
 * @param limit "device-greedy" chooses among some tokens only; all sequences must be that then
 * @param edits see each graph before the samplers do
 */
export function createChains(llama: Llama, samplings: readonly SlotSampling[], { isBatched = true, argmaxParts, limit, edits }: { readonly isBatched?: boolean; readonly argmaxParts?: number; readonly limit?: GatheredRows | undefined; readonly edits?: GraphEdits | undefined } = {}): SamplerChains {
  const { api } = llama;
  const chains: Pointer[] = [];
  const isGreedy = samplings.every((sampling) => sampling === "device-greedy");
  const argmax = isBatched && samplings.includes("device-greedy") ? createBatchedArgmax(llama, argmaxParts, isGreedy ? limit : undefined) : undefined;
  const words: bigint[] = [];
  samplings.forEach((sampling, seq) => {
    if (sampling === "host") return;
    const chain = api.llama_sampler_chain_init({ no_perf: true });
    if (edits !== undefined) api.llama_sampler_chain_add(chain, edits.create());
    api.llama_sampler_chain_add(chain, sampling === "device-greedy" ? (argmax?.create() ?? api.llama_sampler_init_greedy()) : api.llama_sampler_init_top_k(DEVICE_TOP_K));
    chains.push(chain);
    words.push(BigInt(seq), chain);
  });
  return {
    configs: words.length === 0 ? null : BigUint64Array.from(words),
    n: chains.length,
    problem: () => {
      if (limit === undefined) return undefined;
      if (!isGreedy || !isBatched) return "its drafts are not greedy ones of the batched argmax";
      return argmax === undefined ? "this library lays out its tensors otherwise than is known" : argmax.problem();
    },
    tokens: limit?.ids,
    free: () => {
      chains.splice(0).forEach((chain) => api.llama_sampler_free(chain));
      argmax?.close();
      edits?.close();
      limit?.close();
    },
  };
}
