/**
 * Which GGUF tensors a Qwen3.5 checkpoint becomes, and how (conversion/qwen.py of llama.cpp v0.5.0): norms that
 * transformers applies as 1 + weight get the 1 added, A_log becomes -exp(A_log), value heads go from grouped (by key
 * head) to tiled order because ggml broadcasts key heads that way, experts are stacked, gate_up is split.
 */
import { quote } from "../gguf/error.ts";
import { UserError } from "../util/errors.ts";
import type { ModelShape } from "../gguf/model-shape.ts";
import { wholeTensor, type ElementStream, type Span } from "./element-stream.ts";
import { floatType, type FloatType } from "./elements.ts";
import type { HfTensor } from "./safetensors.ts";
import { ggufName, isBesideText, layerOf, plainName } from "./tensor-names.ts";

export type MtpMode = "trunk" | "mtp" | "both";

export interface PlannedTensor {
  readonly name: string;
  /** ggml order. */
  readonly shape: readonly number[];
  readonly type: FloatType;
  readonly stream: ElementStream;
}

export interface TensorPlan {
  readonly tensors: readonly PlannedTensor[];
  /** NextN layers that are among the tensors. */
  readonly nNextnLayers: number;
  /** Checkpoint tensors that are no part of the text model. */
  readonly nBeside: number;
}

/** Kept in `model.layers.N.mlp.experts.` form until a layer has all of them. */
type ExpertTensors = Map<string, HfTensor>;

const projections = ["down_proj", "gate_proj", "up_proj"] as const;

/**
 * @throws {UserError} for a tensor that has no place in GGUF, or experts that are not complete.
 */
export function planTensors(tensors: Iterable<HfTensor>, shape: ModelShape, mode: MtpMode, outType: FloatType): TensorPlan {
  const planned: PlannedTensor[] = [];
  const experts = new Map<number, ExpertTensors>();
  let nBeside = 0;
  let nNextnLayers = 0;
  for (const tensor of tensors) {
    if (isBesideText(tensor.name)) {
      nBeside++;
      continue;
    }
    const { name, isMtp } = plainName(tensor.name, shape.nLayers);
    if (isMtp ? mode === "trunk" : mode === "mtp" && layerOf(name) !== undefined) continue;
    const layer = layerOf(name);
    if (isMtp) nNextnLayers = Math.max(nNextnLayers, (layer ?? shape.nLayers) - shape.nLayers + 1);
    if (shape.isTied && name === "lm_head.weight") continue;
    const expert = /^model\.layers\.\d+\.mlp\.experts\.(\d+)\.(gate|up|down)_proj\.weight$/.exec(name);
    if (expert === null || layer === undefined) planned.push(...planTensor(tensor, name, shape, outType));
    else planned.push(...stackExperts(tensor, name, layer, experts, shape, outType));
  }
  for (const [layer, rest] of experts) if (rest.size > 0) refuseExperts(layer, rest, shape);
  return { tensors: planned, nNextnLayers, nBeside };
}

function planTensor(tensor: HfTensor, name: string, shape: ModelShape, outType: FloatType): PlannedTensor[] {
  const bare = name.replace(/\.weight$/, "");
  if (bare.endsWith("mlp.experts.gate_up_proj")) return splitGateUp(tensor, bare, outType);
  if (bare.endsWith("mlp.experts.down_proj")) return [place(`${bare}.weight`, tensor.shape, { spans: [wholeTensor(tensor)] }, outType)];
  const sizes = name.endsWith("linear_attn.conv1d.weight") ? tensor.shape.filter((d) => d !== 1) : tensor.shape;
  return [place(name, sizes, { ...reorderValueHeads(tensor, name, shape), map: elementMap(name) }, outType, tensor.name)];
}

function place(name: string, hfShape: readonly number[], stream: ElementStream, outType: FloatType, original = name): PlannedTensor {
  const target = ggufName(name);
  if (target === undefined) throw new UserError(`the checkpoint's tensor ${quote(original)} has no place in a Qwen3.5 GGUF file`);
  for (const { tensor } of stream.spans) floatType(tensor.dtype, tensor.name);
  const isSmall = hfShape.length <= 1 || target.endsWith("_norm.weight") || !target.endsWith(".weight");
  const isKeptF32 = /\.(ffn_gate_inp|ffn_gate_inp_shexp|ssm_conv1d)\.weight$/.test(target);
  return { name: target, shape: hfShape.toReversed(), type: isSmall || isKeptF32 ? "F32" : outType, stream };
}

function elementMap(name: string): ((x: number) => number) | undefined {
  if (name.endsWith(".A_log")) return (x) => -Math.exp(x);
  if (name.endsWith("norm.weight") && !name.endsWith("linear_attn.norm.weight")) return (x) => x + 1;
  return undefined;
}

/** [experts, 2 * ff, d] -> gate and up, [experts, ff, d] each. */
function splitGateUp(tensor: HfTensor, bare: string, outType: FloatType): PlannedTensor[] {
  const [nExperts = 0, nRows = 0, d = 0] = tensor.shape;
  if (tensor.shape.length !== 3 || nRows % 2 !== 0) throw new UserError(`tensor ${tensor.name} has shape [${tensor.shape.join(", ")}], expected [experts, 2 * ff, d]`);
  const half = (nRows / 2) * d;
  const base = bare.slice(0, -".gate_up_proj".length);
  return [0, 1].map((part) => {
    const spans = Array.from({ length: nExperts }, (_, e): Span => ({ tensor, start: (2 * e + part) * half, length: half }));
    return place(`${base}.${part === 0 ? "gate_proj" : "up_proj"}.weight`, [nExperts, nRows / 2, d], { spans }, outType);
  });
}

/** Remembers an expert's tensor; when the layer has all of them, gives the three stacks. */
function stackExperts(tensor: HfTensor, name: string, layer: number, experts: Map<number, ExpertTensors>, shape: ModelShape, outType: FloatType): PlannedTensor[] {
  const nExperts = shape.experts?.count ?? 0;
  const seen: ExpertTensors = experts.get(layer) ?? new Map<string, HfTensor>();
  experts.set(layer, seen);
  const base = `model.layers.${layer}.mlp.experts.`;
  seen.set(name.slice(base.length), tensor);
  if (seen.size < nExperts * projections.length) return [];
  const stacks = projections.map((projection) => {
    const parts = Array.from({ length: nExperts }, (_, e) => seen.get(`${e}.${projection}.weight`) ?? refuseExperts(layer, seen, shape));
    const sizes = (parts[0] as HfTensor).shape;
    const odd = parts.find((part) => part.shape.join() !== sizes.join());
    if (odd !== undefined) throw new UserError(`tensor ${odd.name} has shape [${odd.shape.join(", ")}], its neighbours have [${sizes.join(", ")}]`);
    return place(`${base}${projection}.weight`, [nExperts, ...sizes], { spans: parts.map(wholeTensor) }, outType);
  });
  experts.delete(layer);
  return stacks;
}

function refuseExperts(layer: number, seen: ExpertTensors, shape: ModelShape): never {
  throw new UserError(`layer ${layer} has ${seen.size} expert tensors, num_experts ${shape.experts?.count ?? 0} asks for ${(shape.experts?.count ?? 0) * 3} (0 to ${(shape.experts?.count ?? 0) - 1}, three each)`);
}

/** Old head of each new place: tiled (v, k) from grouped (k, v). */
function headOrder({ ssm }: ModelShape): number[] {
  const perKey = ssm.timeStepRank / ssm.groupCount;
  return Array.from({ length: ssm.timeStepRank }, (_, i) => (i % ssm.groupCount) * perKey + Math.floor(i / ssm.groupCount));
}

function reorderValueHeads(tensor: HfTensor, name: string, shape: ModelShape): ElementStream {
  const { stateSize, groupCount, timeStepRank } = shape.ssm;
  const part = /\.linear_attn\.([^.]+)/.exec(name)?.[1];
  if (part === undefined || part === "norm" || groupCount === 0 || groupCount === timeStepRank) return { spans: [wholeTensor(tensor)] };
  if (timeStepRank % groupCount !== 0) throw new UserError(`linear_num_value_heads ${timeStepRank} is not a multiple of linear_num_key_heads ${groupCount}`);
  const [nRows = 0, ...rest] = tensor.shape;
  const rowLength = rest.reduce((n, d) => n * d, 1);
  if (part === "out_proj") return { spans: [wholeTensor(tensor)], columns: Uint32Array.from(headOrder(shape).flatMap((head) => Array.from({ length: stateSize }, (_, i) => head * stateSize + i))) };
  const rowsPerHead = part === "in_proj_qkv" || part === "conv1d" || part === "in_proj_z" ? stateSize : 1;
  const nBefore = nRows - rowsPerHead * timeStepRank;
  if (nBefore < 0) throw new UserError(`tensor ${tensor.name} has ${nRows} rows, ${timeStepRank} value heads need ${rowsPerHead * timeStepRank}`);
  const before: Span[] = nBefore === 0 ? [] : [{ tensor, start: 0, length: nBefore * rowLength }];
  return { spans: [...before, ...headOrder(shape).map((head) => ({ tensor, start: (nBefore + head * rowsPerHead) * rowLength, length: rowsPerHead * rowLength }))] };
}
