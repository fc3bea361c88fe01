/** Makes a decode context with everything fixed that is costly to change later: chains, snapshots, output rows, KV layout. */
import type { GraphEditName } from "../config/engine-options.ts";
import type { ContextLimits, SlotSampling } from "../engine/backend.ts";
import { UserError } from "../util/errors.ts";
import type { EditMatrices } from "./edit-matrices.ts";
import { LlamaContext } from "./context.ts";
import type { DraftVocab } from "./draft-vocab.ts";
import { GatheredRows } from "./gathered-rows.ts";
import { createGraphEdits } from "./graph-edits.ts";
import { captureLog, reasonIn } from "./library.ts";
import type { Model } from "./model.ts";
import { createChains } from "./sampler.ts";
import { contextDefaults } from "./struct-defaults.ts";
import type { ContextParams, Memory, Pointer } from "./structs.ts";

/** LLAMA_MAX_SEQ of llama-cparams.h. */
export const MAX_SEQ = 256;

export type FlashAttention = "auto" | "on" | "off";

/** KV cache types that llama-server offers, with ggml's numbers. */
export const cacheTypes = { f32: 0, f16: 1, bf16: 30, q8_0: 8, q4_0: 2, q4_1: 3, iq4_nl: 20, q5_0: 6, q5_1: 7 } as const;
export type CacheType = keyof typeof cacheTypes;

export interface ContextOptions {
  /** Cells in all: llama_context_params.n_ctx. */
  readonly nCells: number;
  readonly samplings: readonly SlotSampling[];
  readonly nBatch: number;
  readonly nUbatch: number;
  readonly nThreads: number;
  readonly nThreadsBatch: number;
  readonly flashAttention?: FlashAttention;
  readonly cacheTypeK?: CacheType;
  readonly cacheTypeV?: CacheType;
  readonly isKvUnified: boolean;
  /** Snapshots of the recurrent state a sequence keeps for rollback. */
  readonly nRollback: number;
  readonly nOutputsPerSeq: number;
  /** An MTP context over the file's MTP layers. */
  readonly isDraft: boolean;
  /** Whether the hidden rows of a decode come out: drafting needs the target's, a chain of drafts the head's own. */
  readonly hiddenRows: "all" | "none";
  /** Keep the visible length of the unified KV cache at this many cells from the start; 0 lets it grow. See pin-cells.ts. */
  readonly nPinnedCells?: number;
  /** Off: every decode builds its graph anew. For measuring what reuse is worth. */
  readonly isGraphReused?: boolean;
  readonly isArgmaxBatched?: boolean;
  /** Parts of the vocabulary that each argmax is made of; 0: as many as is best. See staged-argmax.ts. */
  readonly argmaxParts?: number;
  /** "device-greedy" chooses among so many first tokens of the vocabulary (0 or all there are: no limit), or among these, and the LM head computes no others' logits. */
  readonly argmaxTokens?: number | DraftVocab;
  /** Changes of its graphs; only where a sequence is sampled on the device does libllama show them. */
  readonly graphEdits?: readonly GraphEditName[];
  /** Called by ggml around every node of a graph; slow. See forward-counter.ts. */
  readonly evalCallback?: Pointer;
}

/**
 * @param matrices made of the model's, for `graphEdits`; closed by their owner, after the context
 * @throws {UserError} when a limit is broken, the model lacks what is asked, or libllama refuses (out of memory).
 */
export function createContext(model: Model, options: ContextOptions, matrices?: EditMatrices): LlamaContext {
  checkModel(model, options);
  const { api } = model.llama;
  const nSeq = options.samplings.length;
  if (nSeq < 1 || nSeq > MAX_SEQ) throw new UserError(`${nSeq} sequences: libllama allows 1 to ${MAX_SEQ}; lower --parallel`);
  const names = options.graphEdits ?? [];
  const limit = limitOf(model, options.argmaxTokens ?? 0);
  if (names.length > 0 && matrices === undefined) throw new Error(`graph edits ${names.join(",")} need a place for matrices`);
  const edits = names.length === 0 || matrices === undefined ? undefined : createGraphEdits(model.llama, { names, nSeqs: nSeq, matrices, hasGpu: model.devices.length > 0, isDraft: options.isDraft });
  const chains = createChains(model.llama, options.samplings, { isBatched: options.isArgmaxBatched ?? true, argmaxParts: options.argmaxParts ?? 0, limit, edits });
  const isPinned = options.isKvUnified && (options.nPinnedCells ?? 0) > 1;
  const params = contextParams(options, chains.configs, chains.n, isPinned ? 1 : 0);
  let pointer: Pointer | null = null;
  try {
    pointer = withGraphReuse(options.isGraphReused ?? true, () => api.llama_init_from_model(model.pointer, params));
    if (pointer === null) {
      const second = captureLog(model.llama, () => api.llama_init_from_model(model.pointer, params));
      pointer = second.result;
      if (pointer === null) throw new UserError(`libllama cannot make a context of ${options.nCells} cells for ${model.path}: ${reasonIn(second.lines) || "no reason given"}; lower --ctx-size or --parallel if memory is short`);
    }
    if (api.llama_get_memory(pointer) === null) throw new UserError(`${model.path} is a model without memory (an embedding model?); foretoken serves decoder-only language models`);
    const problem = chains.problem();
    if (problem !== undefined) throw new UserError(`--spec-draft-vocab, ${model.path}: ${problem}; leave the option out`);
    const limits: ContextLimits = {
      nSeq,
      nCtxSeq: api.llama_n_ctx_seq(pointer),
      nCells: api.llama_n_ctx(pointer),
      nRows: api.llama_n_batch(pointer),
      nUbatch: api.llama_n_ubatch(pointer),
      nOutputsPerSeq: options.nOutputsPerSeq,
      nRollback: model.isRecurrent && !options.isDraft ? api.llama_n_rs_seq(pointer) : Infinity,
    };
    return new LlamaContext({ model, pointer, chains, edits, samplings: options.samplings, limits, isDraft: options.isDraft, hasHidden: options.hiddenRows === "all", pinnedCell: isPinned ? Math.min(options.nPinnedCells ?? 0, options.nCells) - 1 : 0 });
  } catch (error) {
    // Chains may be freed only after the context that has them.
    if (pointer !== null) api.llama_free(pointer);
    chains.free();
    throw error;
  }
}

function limitOf(model: Model, tokens: number | DraftVocab): GatheredRows | undefined {
  const { llama, path, nVocab } = model;
  if (typeof tokens === "number") return tokens > 0 && tokens < nVocab ? new GatheredRows(llama, path, Int32Array.from({ length: tokens }, (_, i) => i)) : undefined;
  if (tokens.nVocab !== nVocab) throw new UserError(`--spec-draft-vocab ${tokens.file} is for a vocabulary of ${tokens.nVocab} tokens, ${path} has ${nVocab}; write one from a capture of this model`);
  return new GatheredRows(llama, path, tokens.tokens);
}

/** What libllama would abort for. */
function checkModel(model: Model, options: ContextOptions): void {
  if (model.isVocabOnly) throw new Error(`${model.path} was loaded for its vocabulary only`);
  if (options.isDraft && !model.hasMtp) throw new UserError(`${model.path} has no MTP layers loaded; a draft needs a file with an MTP head`);
  if (!options.isDraft && !model.hasTrunk) throw new UserError(`${model.path} holds a draft head and no trunk; give the model with -m and this file with --spec-draft-model`);
  if (!options.isDraft && model.llama.api.llama_model_has_encoder(model.pointer)) throw new UserError(`${model.path} has an encoder; foretoken serves decoder-only models`);
  if (options.nBatch < 1 || options.nUbatch < 1) throw new UserError(`--batch-size ${options.nBatch} and --ubatch-size ${options.nUbatch} must be at least 1`);
}

function contextParams(options: ContextOptions, samplers: Memory, nSamplers: number, nReserved: number): ContextParams {
  const nSeq = options.samplings.length;
  const flash = { auto: -1, off: 0, on: 1 } as const;
  return {
    ...contextDefaults,
    n_ctx: options.nCells,
    n_batch: options.nBatch,
    n_ubatch: options.nUbatch,
    n_seq_max: nSeq + nReserved,
    n_rs_seq: options.isDraft ? 0 : options.nRollback,
    // More outputs than this abort the process; row-check.ts holds each sequence to its share.
    n_outputs_max: Math.max(nSeq + nReserved, Math.min(options.nBatch, nSeq * options.nOutputsPerSeq)),
    n_outputs_max_per_seq: options.nOutputsPerSeq,
    n_threads: options.nThreads,
    n_threads_batch: options.nThreadsBatch,
    ctx_type: options.isDraft ? 1 : 0,
    flash_attn_type: flash[options.flashAttention ?? "auto"],
    type_k: cacheTypes[options.cacheTypeK ?? "f16"],
    type_v: cacheTypes[options.cacheTypeV ?? "f16"],
    kv_unified: options.isKvUnified,
    samplers,
    n_samplers: nSamplers,
    cb_eval: options.evalCallback ?? null,
  };
}

/** libllama reads LLAMA_GRAPH_REUSE_DISABLE when it makes a context, and nowhere else. */
function withGraphReuse<T>(isReused: boolean, make: () => T): T {
  const name = "LLAMA_GRAPH_REUSE_DISABLE";
  const before = process.env[name];
  if (!isReused) process.env[name] = "1";
  try {
    return make();
  } finally {
    if (before === undefined) delete process.env[name];
    else process.env[name] = before;
  }
}
