/** Names of Qwen3.5 tensors in Hugging Face checkpoints and in GGUF (gguf-py/gguf/tensor_mapping.py of llama.cpp). */

/** Parts of a layer; `.weight` is added where the name has none. */
const layerNames: ReadonlyMap<string, string> = new Map(Object.entries({
  input_layernorm: "attn_norm",
  post_attention_layernorm: "post_attention_norm",
  "self_attn.q_proj": "attn_q",
  "self_attn.k_proj": "attn_k",
  "self_attn.v_proj": "attn_v",
  "self_attn.o_proj": "attn_output",
  "self_attn.q_norm": "attn_q_norm",
  "self_attn.k_norm": "attn_k_norm",
  "linear_attn.in_proj_qkv": "attn_qkv",
  "linear_attn.in_proj_z": "attn_gate",
  "linear_attn.in_proj_a": "ssm_alpha",
  "linear_attn.in_proj_b": "ssm_beta",
  "linear_attn.conv1d": "ssm_conv1d",
  "linear_attn.norm": "ssm_norm",
  "linear_attn.out_proj": "ssm_out",
  "mlp.gate": "ffn_gate_inp",
  "mlp.shared_expert_gate": "ffn_gate_inp_shexp",
  "mlp.shared_expert.gate_proj": "ffn_gate_shexp",
  "mlp.shared_expert.up_proj": "ffn_up_shexp",
  "mlp.shared_expert.down_proj": "ffn_down_shexp",
  "mlp.experts.gate_proj": "ffn_gate_exps",
  "mlp.experts.up_proj": "ffn_up_exps",
  "mlp.experts.down_proj": "ffn_down_exps",
  "mlp.gate_proj": "ffn_gate",
  "mlp.up_proj": "ffn_up",
  "mlp.down_proj": "ffn_down",
  eh_proj: "nextn.eh_proj",
  enorm: "nextn.enorm",
  hnorm: "nextn.hnorm",
  "shared_head.norm": "nextn.shared_head_norm",
}));

/** Of the MTP head, what stands beside its layer. */
const mtpNames: ReadonlyMap<string, string> = new Map(Object.entries({
  fc: "eh_proj",
  pre_fc_norm_embedding: "enorm",
  pre_fc_norm_hidden: "hnorm",
  norm: "shared_head.norm",
}));

/** Vision, audio and other parts beside the text model, as llama.cpp's converter skips them. */
export function isBesideText(name: string): boolean {
  return /visual\.|vision|audio|projector\.|merger\.|patch_embed/.test(name) || name.endsWith(".rotary_emb.inv_freq");
}

/**
 * The name with the wrapper's prefix and the head's own names removed: a head tensor becomes one of layer
 * `nTrunkLayers + its number`. `isMtp` tells the head's tensors.
 */
export function plainName(name: string, nTrunkLayers: number): { name: string; isMtp: boolean } {
  const text = name.replace("language_model.", "").replace(/^model\.mtp\./, "mtp.");
  if (!text.startsWith("mtp.")) return { name: text, isMtp: false };
  const layer = /^mtp\.layers\.(\d+)\.(.+)$/s.exec(text);
  if (layer !== null) return { name: `model.layers.${nTrunkLayers + Number(layer[1])}.${layer[2]}`, isMtp: true };
  const match = /^mtp\.(.+)\.(weight|bias)$/s.exec(text);
  const own = match === null ? undefined : mtpNames.get(match[1] as string);
  return { name: own === undefined ? text : `model.layers.${nTrunkLayers}.${own}.${match?.[2]}`, isMtp: true };
}

/** The layer number of a plain name. */
export function layerOf(name: string): number | undefined {
  const match = /^model\.layers\.(\d+)\./.exec(name);
  return match === null ? undefined : Number(match[1]);
}

/** The GGUF name of a plain name, or undefined when there is none. */
export function ggufName(name: string): string | undefined {
  switch (name) {
    case "model.embed_tokens.weight":
      return "token_embd.weight";
    case "model.norm.weight":
      return "output_norm.weight";
    case "lm_head.weight":
      return "output.weight";
    default:
      break;
  }
  const match = /^model\.layers\.(\d+)\.(.+)$/s.exec(name);
  if (match === null) return undefined;
  const [, layer, rest = ""] = match;
  if (rest === "linear_attn.A_log") return `blk.${layer}.ssm_a`;
  if (rest === "linear_attn.dt_bias") return `blk.${layer}.ssm_dt.bias`;
  const suffix = /\.(weight|bias)$/.exec(rest)?.[0] ?? "";
  const mapped = layerNames.get(suffix === "" ? rest : rest.slice(0, -suffix.length));
  return mapped === undefined ? undefined : `blk.${layer}.${mapped}${suffix}`;
}

const hfOfGguf = new Map([...layerNames].map(([hf, gguf]) => [gguf, hf]));
const mtpOfPlain = new Map([...mtpNames].map(([mtp, plain]) => [plain, mtp]));

/**
 * The `mtp.*` name of a tensor of NextN layer `layer` (counted from the first trunk layer), as real Qwen3.5 checkpoints
 * and vLLM spell it; undefined for another tensor.
 */
export function mtpName(gguf: string, layer: number): string | undefined {
  const match = new RegExp(`^blk\\.${layer}\\.(.+)\\.(weight|bias)$`, "s").exec(gguf);
  const plain = match === null ? undefined : hfOfGguf.get(match[1] as string);
  if (plain === undefined) return undefined;
  const own = mtpOfPlain.get(plain);
  return `mtp.${own === undefined ? `layers.0.${plain}` : own}.${match?.[2]}`;
}
