/**
 * The functions of libllama 0.5.0 that we call, with their types. Signatures are those of llama.h and, for the staging
 * calls (`nextn`), of llama-ext.h, which exports C++ names.
 */
import koffi, { type LibraryHandle, type TypeObject } from "koffi";
import { UserError } from "../util/errors.ts";
import {
  batchType,
  contextParamsProbe,
  contextParamsType,
  modelParamsProbe,
  modelParamsType,
  perfContextType,
  quantizeParamsProbe,
  quantizeParamsType,
  samplerChainParamsType,
  type Batch,
  type ContextParams,
  type Memory,
  type ModelParams,
  type Nullable,
  type PerfContext,
  type Pointer,
  type QuantizeParams,
} from "./structs.ts";

const P = "void *";
const I = "int32_t";
const U = "uint32_t";
const SIZE = "size_t";

/** What koffi takes for a type; it does not export the name. */
type TypeSpec = string | TypeObject;
type Spec = readonly [result: TypeSpec, args: readonly TypeSpec[]];

const specs = {
  llama_version: ["str", []],
  llama_backend_init: ["void", []],
  llama_log_set: ["void", [P, P]],
  llama_model_default_params: [modelParamsProbe, []],
  llama_context_default_params: [contextParamsProbe, []],
  llama_model_quantize_default_params: [quantizeParamsProbe, []],
  llama_model_load_from_file: [P, ["str", modelParamsType]],
  llama_model_free: ["void", [P]],
  llama_init_from_model: [P, [P, contextParamsType]],
  llama_free: ["void", [P]],
  llama_decode: [I, [P, batchType]],
  llama_synchronize: ["void", [P]],
  llama_get_logits: [P, [P]],
  llama_n_ctx: [U, [P]],
  llama_n_ctx_seq: [U, [P]],
  llama_n_batch: [U, [P]],
  llama_n_ubatch: [U, [P]],
  llama_n_seq_max: [U, [P]],
  llama_n_rs_seq: [U, [P]],
  llama_get_memory: [P, [P]],
  llama_memory_seq_rm: ["bool", [P, I, I, I]],
  llama_memory_seq_pos_max: [I, [P, I]],
  llama_memory_clear: ["void", [P, "bool"]],
  llama_model_get_vocab: [P, [P]],
  llama_model_n_embd: [I, [P]],
  llama_model_n_embd_out: [I, [P]],
  llama_model_n_ctx_train: [I, [P]],
  llama_model_n_layer: [I, [P]],
  llama_model_n_layer_nextn: [I, [P]],
  llama_model_is_recurrent: ["bool", [P]],
  llama_model_is_hybrid: ["bool", [P]],
  llama_model_has_encoder: ["bool", [P]],
  llama_model_size: ["uint64_t", [P]],
  llama_model_desc: [I, [P, P, SIZE]],
  llama_model_meta_val_str: [I, [P, "str", P, SIZE]],
  llama_model_chat_template: ["str", [P, P]],
  llama_vocab_n_tokens: [I, [P]],
  llama_vocab_is_eog: ["bool", [P, I]],
  llama_vocab_is_control: ["bool", [P, I]],
  llama_vocab_bos: [I, [P]],
  llama_vocab_eos: [I, [P]],
  llama_vocab_eot: [I, [P]],
  llama_vocab_get_add_bos: ["bool", [P]],
  llama_vocab_get_add_eos: ["bool", [P]],
  llama_vocab_get_text: ["str", [P, I]],
  llama_tokenize: [I, [P, P, I, P, I, "bool", "bool"]],
  llama_token_to_piece: [I, [P, I, P, I, I, "bool"]],
  llama_detokenize: [I, [P, P, I, P, I, "bool", "bool"]],
  llama_perf_context: [perfContextType, [P]],
  llama_sampler_chain_init: [P, [samplerChainParamsType]],
  llama_sampler_chain_add: ["void", [P, P]],
  llama_sampler_init: [P, [P, P]],
  llama_sampler_init_greedy: [P, []],
  llama_sampler_init_top_k: [P, [I]],
  llama_sampler_init_grammar: [P, [P, "str", "str"]],
  llama_sampler_apply: ["void", [P, P]],
  llama_sampler_accept: ["void", [P, I]],
  llama_sampler_free: ["void", [P]],
  llama_get_sampled_token_ith: [I, [P, I]],
  llama_get_sampled_logits_ith: [P, [P, I]],
  llama_get_sampled_logits_count_ith: [U, [P, I]],
  llama_get_sampled_candidates_ith: [P, [P, I]],
  llama_get_sampled_candidates_count_ith: [U, [P, I]],
  llama_state_seq_get_size_ext: [SIZE, [P, I, U]],
  llama_state_seq_get_data_ext: [SIZE, [P, P, SIZE, I, U]],
  llama_state_seq_set_data_ext: [SIZE, [P, P, SIZE, I, U]],
  llama_model_quantize: [U, ["str", "str", koffi.pointer(quantizeParamsType)]],
  llama_print_system_info: ["str", []],
  llama_supports_gpu_offload: ["bool", []],
} satisfies Record<string, Spec>;

/** Staging calls: exported with C++ names, Itanium on ELF and Mach-O, Microsoft on Windows. */
const staging = {
  llama_set_embeddings_nextn: ["void", [P, "bool", "bool"], "_Z26llama_set_embeddings_nextnP13llama_contextbb", "?llama_set_embeddings_nextn@@YAXPEAUllama_context@@_N1@Z"],
  llama_get_embeddings_nextn: [P, [P], "_Z26llama_get_embeddings_nextnP13llama_context", "?llama_get_embeddings_nextn@@YAPEAMPEAUllama_context@@@Z"],
  llama_set_nextn_layer_offset: ["void", [P, I], "_Z28llama_set_nextn_layer_offsetP13llama_contexti", "?llama_set_nextn_layer_offset@@YAXPEAUllama_context@@H@Z"],
  llama_set_embeddings_layer_inp: ["void", [P, U, "bool"], "_Z30llama_set_embeddings_layer_inpP13llama_contextjb", "?llama_set_embeddings_layer_inp@@YAXPEAUllama_context@@I_N@Z"],
  llama_get_embeddings_layer_inp: [P, [P, U], "_Z30llama_get_embeddings_layer_inpP13llama_contextj", "?llama_get_embeddings_layer_inp@@YAPEAMPEAUllama_context@@I@Z"],
  llama_model_n_devices: [I, [P], "_Z21llama_model_n_devicesPK11llama_model", "?llama_model_n_devices@@YAHPEBUllama_model@@@Z"],
  llama_model_get_device: [P, [P, I], "_Z22llama_model_get_devicePK11llama_modeli", "?llama_model_get_device@@YAPEAUggml_backend_device@@PEBUllama_model@@H@Z"],
} satisfies Record<string, readonly [TypeSpec, readonly TypeSpec[], string, string]>;

export interface LlamaApi {
  llama_version(): string;
  llama_backend_init(): void;
  llama_log_set(callback: Nullable, userData: Nullable): void;
  llama_model_default_params(): ModelParams;
  llama_context_default_params(): ContextParams;
  llama_model_quantize_default_params(): QuantizeParams;
  llama_model_load_from_file(path: string, params: ModelParams): Nullable;
  llama_model_free(model: Pointer): void;
  llama_init_from_model(model: Pointer, params: ContextParams): Nullable;
  llama_free(context: Pointer): void;
  llama_decode(context: Pointer, batch: Batch): number;
  llama_synchronize(context: Pointer): void;
  llama_get_logits(context: Pointer): Nullable;
  llama_n_ctx(context: Pointer): number;
  llama_n_ctx_seq(context: Pointer): number;
  llama_n_batch(context: Pointer): number;
  llama_n_ubatch(context: Pointer): number;
  llama_n_seq_max(context: Pointer): number;
  llama_n_rs_seq(context: Pointer): number;
  llama_get_memory(context: Pointer): Nullable;
  llama_memory_seq_rm(memory: Pointer, seq: number, from: number, to: number): boolean;
  llama_memory_seq_pos_max(memory: Pointer, seq: number): number;
  llama_memory_clear(memory: Pointer, data: boolean): void;
  llama_model_get_vocab(model: Pointer): Pointer;
  llama_model_n_embd(model: Pointer): number;
  llama_model_n_embd_out(model: Pointer): number;
  llama_model_n_ctx_train(model: Pointer): number;
  llama_model_n_layer(model: Pointer): number;
  llama_model_n_layer_nextn(model: Pointer): number;
  llama_model_is_recurrent(model: Pointer): boolean;
  llama_model_is_hybrid(model: Pointer): boolean;
  llama_model_has_encoder(model: Pointer): boolean;
  llama_model_size(model: Pointer): number;
  llama_model_desc(model: Pointer, buffer: Memory, size: number): number;
  llama_model_meta_val_str(model: Pointer, key: string, buffer: Memory, size: number): number;
  llama_model_chat_template(model: Pointer, name: Nullable): string | null;
  llama_vocab_n_tokens(vocab: Pointer): number;
  llama_vocab_is_eog(vocab: Pointer, token: number): boolean;
  llama_vocab_is_control(vocab: Pointer, token: number): boolean;
  llama_vocab_bos(vocab: Pointer): number;
  llama_vocab_eos(vocab: Pointer): number;
  llama_vocab_eot(vocab: Pointer): number;
  llama_vocab_get_add_bos(vocab: Pointer): boolean;
  llama_vocab_get_add_eos(vocab: Pointer): boolean;
  llama_vocab_get_text(vocab: Pointer, token: number): string | null;
  llama_tokenize(vocab: Pointer, text: Memory, nBytes: number, tokens: Memory, nTokens: number, addSpecial: boolean, parseSpecial: boolean): number;
  llama_token_to_piece(vocab: Pointer, token: number, buffer: Memory, nBytes: number, lstrip: number, special: boolean): number;
  llama_detokenize(vocab: Pointer, tokens: Memory, nTokens: number, text: Memory, nBytes: number, removeSpecial: boolean, unparseSpecial: boolean): number;
  llama_perf_context(context: Pointer): PerfContext;
  llama_sampler_chain_init(params: { no_perf: boolean }): Pointer;
  llama_sampler_chain_add(chain: Pointer, sampler: Pointer): void;
  llama_sampler_init(iface: Pointer, context: Nullable): Pointer;
  llama_sampler_init_greedy(): Pointer;
  llama_sampler_init_top_k(k: number): Pointer;
  llama_sampler_init_grammar(vocab: Pointer, gbnf: string, root: string): Nullable;
  /** `candidates` is a llama_token_data_array. */
  llama_sampler_apply(sampler: Pointer, candidates: Memory): void;
  llama_sampler_accept(sampler: Pointer, token: number): void;
  llama_sampler_free(sampler: Pointer): void;
  llama_get_sampled_token_ith(context: Pointer, row: number): number;
  llama_get_sampled_logits_ith(context: Pointer, row: number): Nullable;
  llama_get_sampled_logits_count_ith(context: Pointer, row: number): number;
  llama_get_sampled_candidates_ith(context: Pointer, row: number): Nullable;
  llama_get_sampled_candidates_count_ith(context: Pointer, row: number): number;
  llama_state_seq_get_size_ext(context: Pointer, seq: number, flags: number): number;
  llama_state_seq_get_data_ext(context: Pointer, destination: Memory, size: number, seq: number, flags: number): number;
  llama_state_seq_set_data_ext(context: Pointer, source: Memory, size: number, seq: number, flags: number): number;
  llama_model_quantize(input: string, output: string, params: QuantizeParams): number;
  llama_print_system_info(): string;
  llama_supports_gpu_offload(): boolean;
  llama_set_embeddings_nextn(context: Pointer, on: boolean, masked: boolean): void;
  llama_get_embeddings_nextn(context: Pointer): Nullable;
  llama_set_nextn_layer_offset(context: Pointer, offset: number): void;
  llama_set_embeddings_layer_inp(context: Pointer, layer: number, on: boolean): void;
  llama_get_embeddings_layer_inp(context: Pointer, layer: number): Nullable;
  llama_model_n_devices(model: Pointer): number;
  llama_model_get_device(model: Pointer, index: number): Pointer;
}

/**
 * Looks every function up.
 * @throws {UserError} that names the first symbol the library lacks.
 */
export function bindLlama(library: LibraryHandle, what: string): LlamaApi {
  const bound: Record<string, unknown> = {};
  const bind = (name: string, symbol: string, result: TypeSpec, args: readonly TypeSpec[]): void => {
    try {
      bound[name] = library.func(symbol, result, [...args]);
    } catch (error) {
      throw new UserError(`${what} has no ${name}; foretoken needs llama.cpp 0.5.0`, { cause: error });
    }
  };
  for (const [name, [result, args]] of Object.entries(specs)) bind(name, name, result, args);
  for (const [name, [result, args, itanium, microsoft]] of Object.entries(staging)) bind(name, process.platform === "win32" ? microsoft : itanium, result, args);
  return bound as unknown as LlamaApi;
}
