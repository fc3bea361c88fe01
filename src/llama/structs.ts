/**
 * The structs of llama.h 0.5.0 that cross by value. Offsets follow from the field order; `abi.ts` compares the defaults
 * (struct-defaults.ts), so a library with another layout is refused before it is used.
 */
import koffi, { type TypeObject } from "koffi";

export type Pointer = bigint;
export type Nullable = Pointer | null;
/** What koffi takes where C has a pointer: an address, nothing, or memory of ours. */
export type Memory = Pointer | null | NodeJS.TypedArray;

const POINTER = "void *";

export interface ModelParams {
  devices: Memory;
  tensor_buft_overrides: Memory;
  n_gpu_layers: number;
  split_mode: number;
  load_mode: number;
  lazy_mode: number;
  main_gpu: number;
  tensor_split: Memory;
  progress_callback: Memory;
  progress_callback_user_data: Memory;
  kv_overrides: Memory;
  vocab_only: boolean;
  check_tensors: boolean;
  use_extra_bufts: boolean;
  no_host: boolean;
  no_alloc: boolean;
  load_mtp: boolean;
}

export interface ContextParams {
  n_ctx: number;
  n_batch: number;
  n_ubatch: number;
  n_seq_max: number;
  n_rs_seq: number;
  n_outputs_max: number;
  n_outputs_max_per_seq: number;
  n_threads: number;
  n_threads_batch: number;
  ctx_type: number;
  rope_scaling_type: number;
  pooling_type: number;
  attention_type: number;
  flash_attn_type: number;
  rope_freq_base: number;
  rope_freq_scale: number;
  yarn_ext_factor: number;
  yarn_attn_factor: number;
  yarn_beta_fast: number;
  yarn_beta_slow: number;
  yarn_orig_ctx: number;
  defrag_thold: number;
  cb_eval: Memory;
  cb_eval_user_data: Memory;
  type_k: number;
  type_v: number;
  abort_callback: Memory;
  abort_callback_data: Memory;
  embeddings: boolean;
  offload_kqv: boolean;
  no_perf: boolean;
  op_offload: boolean;
  swa_full: boolean;
  kv_unified: boolean;
  samplers: Memory;
  n_samplers: number;
  ctx_other: Memory;
}

export interface QuantizeParams {
  nthread: number;
  ftype: number;
  output_tensor_type: number;
  token_embedding_type: number;
  allow_requantize: boolean;
  quantize_output_tensor: boolean;
  only_copy: boolean;
  pure: boolean;
  keep_split: boolean;
  dry_run: boolean;
  imatrix: Memory;
  kv_overrides: Memory;
  tt_overrides: Memory;
  prune_layers: Memory;
  max_buf_size: number;
}

export interface Batch {
  n_tokens: number;
  token: Memory;
  embd: Memory;
  pos: Memory;
  n_seq_id: Memory;
  seq_id: Memory;
  logits: Memory;
}

export interface PerfContext {
  t_start_ms: number;
  t_load_ms: number;
  t_p_eval_ms: number;
  t_eval_ms: number;
  n_p_eval: number;
  n_eval: number;
  n_reused: number;
}

type Fields<T> = { readonly [K in keyof T]: string };

const modelFields: Fields<ModelParams> = {
  devices: POINTER,
  tensor_buft_overrides: POINTER,
  n_gpu_layers: "int32_t",
  split_mode: "int32_t",
  load_mode: "int32_t",
  lazy_mode: "int32_t",
  main_gpu: "int32_t",
  tensor_split: POINTER,
  progress_callback: POINTER,
  progress_callback_user_data: POINTER,
  kv_overrides: POINTER,
  vocab_only: "bool",
  check_tensors: "bool",
  use_extra_bufts: "bool",
  no_host: "bool",
  no_alloc: "bool",
  load_mtp: "bool",
};

const contextFields: Fields<ContextParams> = {
  n_ctx: "uint32_t",
  n_batch: "uint32_t",
  n_ubatch: "uint32_t",
  n_seq_max: "uint32_t",
  n_rs_seq: "uint32_t",
  n_outputs_max: "uint32_t",
  n_outputs_max_per_seq: "uint32_t",
  n_threads: "int32_t",
  n_threads_batch: "int32_t",
  ctx_type: "int32_t",
  rope_scaling_type: "int32_t",
  pooling_type: "int32_t",
  attention_type: "int32_t",
  flash_attn_type: "int32_t",
  rope_freq_base: "float",
  rope_freq_scale: "float",
  yarn_ext_factor: "float",
  yarn_attn_factor: "float",
  yarn_beta_fast: "float",
  yarn_beta_slow: "float",
  yarn_orig_ctx: "uint32_t",
  defrag_thold: "float",
  cb_eval: POINTER,
  cb_eval_user_data: POINTER,
  type_k: "int32_t",
  type_v: "int32_t",
  abort_callback: POINTER,
  abort_callback_data: POINTER,
  embeddings: "bool",
  offload_kqv: "bool",
  no_perf: "bool",
  op_offload: "bool",
  swa_full: "bool",
  kv_unified: "bool",
  samplers: POINTER,
  n_samplers: "size_t",
  ctx_other: POINTER,
};

const quantizeFields: Fields<QuantizeParams> = {
  nthread: "int32_t",
  ftype: "int32_t",
  output_tensor_type: "int32_t",
  token_embedding_type: "int32_t",
  allow_requantize: "bool",
  quantize_output_tensor: "bool",
  only_copy: "bool",
  pure: "bool",
  keep_split: "bool",
  dry_run: "bool",
  imatrix: POINTER,
  kv_overrides: POINTER,
  tt_overrides: POINTER,
  prune_layers: POINTER,
  max_buf_size: "size_t",
};

// A library whose struct is longer writes past ours when it returns one; the probe types leave room for that.
const probe = (fields: Record<string, string>): TypeObject => koffi.struct({ ...fields, spare: koffi.array("uint64_t", 32) });

export const modelParamsType = koffi.struct(modelFields);
export const contextParamsType = koffi.struct(contextFields);
export const quantizeParamsType = koffi.struct(quantizeFields);
export const modelParamsProbe = probe(modelFields);
export const contextParamsProbe = probe(contextFields);
export const quantizeParamsProbe = probe(quantizeFields);

export const batchType = koffi.struct({
  n_tokens: "int32_t",
  token: POINTER,
  embd: POINTER,
  pos: POINTER,
  n_seq_id: POINTER,
  seq_id: POINTER,
  logits: POINTER,
});

export const perfContextType = koffi.struct({
  t_start_ms: "double",
  t_load_ms: "double",
  t_p_eval_ms: "double",
  t_eval_ms: "double",
  n_p_eval: "int32_t",
  n_eval: "int32_t",
  n_reused: "int32_t",
});

export const samplerChainParamsType = koffi.struct({ no_perf: "bool" });
export const samplerSeqConfigType = koffi.struct({ seq_id: "int32_t", sampler: POINTER });
export const tensorOverrideType = koffi.struct({ pattern: POINTER, type: "int32_t" });
export const imatrixDataType = koffi.struct({ name: POINTER, data: POINTER, size: "size_t" });
