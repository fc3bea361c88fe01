/**
 * The ggml functions that are called, by training for the most part, each with its signature in short: result, then arguments, one letter each.
 * p pointer, n pointer or null, m memory of ours or a pointer, i int, l int64, z size_t, f float, b bool, s string, v void.
 * Tensors, contexts, graphs, backends and buffers are pointers. Signatures: ggml.h, ggml-alloc.h, ggml-backend.h of ggml 0.25.1.
 *
 * A wrong shape or type makes ggml abort the process (GGML_ASSERT): build graphs in a child process.
 */
import koffi, { type LibraryHandle } from "koffi";
import { UserError } from "../util/errors.ts";
import type { Memory, Nullable, Pointer } from "./structs.ts";

const signatures = {
  // contexts and tensors
  ggml_free: "v(p)",
  ggml_reset: "v(p)",
  ggml_tensor_overhead: "z()",
  ggml_graph_overhead_custom: "z(zb)",
  ggml_new_tensor_1d: "p(pil)",
  ggml_new_tensor_2d: "p(pill)",
  ggml_new_tensor_3d: "p(pilll)",
  ggml_new_tensor_4d: "p(pillll)",
  ggml_dup_tensor: "p(pp)",
  ggml_set_name: "p(ps)",
  ggml_get_name: "s(p)",
  ggml_set_input: "v(p)",
  ggml_set_output: "v(p)",
  ggml_set_param: "v(p)",
  ggml_nbytes: "z(p)",
  ggml_nelements: "l(p)",
  ggml_is_contiguous: "b(p)",
  ggml_op_desc: "s(p)",
  ggml_type_name: "s(i)",
  ggml_row_size: "z(il)",
  ggml_blck_size: "l(i)",
  // shape
  ggml_cont: "p(pp)",
  ggml_dup: "p(pp)",
  ggml_cpy: "p(ppp)",
  ggml_cast: "p(ppi)",
  ggml_reshape_1d: "p(ppl)",
  ggml_reshape_2d: "p(ppll)",
  ggml_reshape_3d: "p(pplll)",
  ggml_reshape_4d: "p(ppllll)",
  ggml_view_1d: "p(pplz)",
  ggml_view_2d: "p(ppllzz)",
  ggml_view_3d: "p(pplllzzz)",
  ggml_view_4d: "p(ppllllzzzz)",
  ggml_permute: "p(ppiiii)",
  ggml_transpose: "p(pp)",
  ggml_concat: "p(pppi)",
  ggml_repeat: "p(ppp)",
  ggml_repeat_4d: "p(ppllll)",
  ggml_repeat_back: "p(ppp)",
  ggml_pad: "p(ppiiii)",
  // arithmetic
  ggml_add: "p(ppp)",
  ggml_add_id: "p(pppp)",
  ggml_sub: "p(ppp)",
  ggml_mul: "p(ppp)",
  ggml_div: "p(ppp)",
  ggml_neg: "p(pp)",
  ggml_sqr: "p(pp)",
  ggml_sqrt: "p(pp)",
  ggml_log: "p(pp)",
  ggml_exp: "p(pp)",
  ggml_scale: "p(ppf)",
  ggml_scale_bias: "p(ppff)",
  ggml_clamp: "p(ppff)",
  ggml_step: "p(pp)",
  ggml_fill: "p(ppf)",
  ggml_sum: "p(pp)",
  ggml_sum_rows: "p(pp)",
  ggml_mean: "p(pp)",
  ggml_argmax: "p(pp)",
  ggml_count_equal: "p(ppp)",
  // products
  ggml_mul_mat: "p(ppp)",
  ggml_mul_mat_id: "p(pppp)",
  ggml_out_prod: "p(ppp)",
  // rows
  ggml_get_rows: "p(ppp)",
  ggml_set_rows: "p(pppp)",
  ggml_argsort_top_k: "p(ppi)",
  ggml_argsort: "p(ppi)",
  // layers
  ggml_rms_norm: "p(ppf)",
  ggml_rms_norm_back: "p(pppf)",
  ggml_norm: "p(ppf)",
  ggml_l2_norm: "p(ppf)",
  ggml_silu: "p(pp)",
  ggml_silu_back: "p(ppp)",
  ggml_sigmoid: "p(pp)",
  ggml_tanh: "p(pp)",
  ggml_softplus: "p(pp)",
  ggml_swiglu_split: "p(ppp)",
  ggml_soft_max: "p(pp)",
  ggml_soft_max_ext: "p(ppnff)",
  ggml_soft_max_ext_back: "p(pppff)",
  ggml_rope_ext: "p(pppniiiffffff)",
  ggml_rope_ext_back: "p(pppniiiffffff)",
  ggml_rope_multi: "p(pppnimiiffffff)",
  ggml_rope_multi_back: "p(pppnimiiffffff)",
  ggml_flash_attn_ext: "p(ppppnfff)",
  ggml_cross_entropy_loss: "p(ppp)",
  ggml_opt_step_adamw: "p(pppppp)",
  // graphs
  ggml_new_graph_custom: "p(pzb)",
  ggml_build_forward_expand: "v(pp)",
  ggml_graph_n_nodes: "i(p)",
  ggml_graph_node: "p(pi)",
  ggml_graph_add_node: "v(pp)",
  ggml_graph_clear: "v(p)",
  // memory and devices
  ggml_backend_dev_init: "n(pn)",
  ggml_backend_dev_backend_reg: "p(p)",
  ggml_backend_dev_supports_op: "b(pp)",
  ggml_backend_name: "s(p)",
  ggml_backend_free: "v(p)",
  ggml_backend_synchronize: "v(p)",
  ggml_backend_get_default_buffer_type: "p(p)",
  ggml_backend_graph_compute: "i(pp)",
  ggml_backend_graph_compute_async: "i(pp)",
  ggml_backend_alloc_ctx_tensors: "n(pp)",
  ggml_backend_buffer_clear: "v(pi)",
  ggml_backend_alloc_ctx_tensors_from_buft: "n(pp)",
  ggml_backend_buffer_get_size: "z(p)",
  ggml_backend_buffer_get_type: "p(p)",
  ggml_backend_buffer_set_usage: "v(pi)",
  ggml_backend_buft_get_device: "n(p)",
  ggml_backend_buft_is_host: "b(p)",
  ggml_backend_dev_buffer_type: "p(p)",
  ggml_backend_cpu_buffer_type: "p()",
  ggml_backend_buffer_free: "v(p)",
  ggml_backend_tensor_set: "v(pmzz)",
  ggml_backend_tensor_get: "v(pmzz)",
  ggml_backend_tensor_copy: "v(pp)",
  ggml_backend_tensor_memset: "v(pizz)",
  ggml_gallocr_new: "p(p)",
  ggml_gallocr_reserve: "b(pp)",
  ggml_gallocr_alloc_graph: "b(pp)",
  ggml_gallocr_get_buffer_size: "z(pi)",
  ggml_gallocr_free: "v(p)",
  // conversion on the host
  ggml_fp32_to_bf16_row: "v(mml)",
  ggml_bf16_to_fp32_row: "v(mml)",
  ggml_fp32_to_fp16_row: "v(mml)",
  ggml_fp16_to_fp32_row: "v(mml)",
  ggml_quantize_chunk: "z(immllln)",
} as const;

interface Types {
  p: Pointer;
  n: Nullable;
  m: Memory;
  i: number;
  l: number | bigint;
  z: number;
  f: number;
  b: boolean;
  s: string;
}
type Letter = keyof Types;
type Args<S extends string> = S extends `${infer L extends Letter}${infer Rest}` ? [Types[L], ...Args<Rest>] : [];
type Result<L> = L extends "v" ? void : L extends "l" ? number : L extends Letter ? Types[L] : never;
type FunctionOf<S> = S extends `${infer R}(${infer A})` ? (...args: Args<A>) => Result<R> : never;

export type Ggml = { readonly [K in keyof typeof signatures]: FunctionOf<(typeof signatures)[K]> } & {
  /** A context whose tensors have no data yet; `sizeBytes` is for their descriptions. */
  readonly ggml_init: (params: { mem_size: number; mem_buffer: Nullable; no_alloc: boolean }) => Nullable;
};

const koffiTypes: Record<string, string> = { p: "void *", n: "void *", m: "void *", i: "int32_t", l: "int64_t", z: "size_t", f: "float", b: "bool", s: "str", v: "void" };
const initParamsType = koffi.struct({ mem_size: "size_t", mem_buffer: "void *", no_alloc: "bool" });

/**
 * @param names those that are wanted; all without
 * @throws {UserError} naming the first function that the library lacks.
 */
export function bindGgml<K extends keyof Ggml = keyof Ggml>(base: LibraryHandle, names?: readonly K[]): Pick<Ggml, K> {
  const ops: Record<string, unknown> = {};
  const wanted = names === undefined ? undefined : new Set<string>(names);
  for (const [name, signature] of Object.entries(signatures)) {
    if (wanted?.has(name) === false) continue;
    const result = koffiTypes[signature[0] as string] as string;
    const args = signature.slice(2, -1).split("").map((letter) => koffiTypes[letter] as string);
    try {
      ops[name] = base.func(name, result, args);
    } catch (error) {
      throw new UserError(`libggml-base has no ${name}; foretoken needs the ggml of llama.cpp 0.5.0`, { cause: error });
    }
  }
  ops["ggml_init"] = base.func("ggml_init", "void *", [initParamsType]);
  return ops as unknown as Pick<Ggml, K>;
}
