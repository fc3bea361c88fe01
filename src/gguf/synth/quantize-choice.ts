/**
 * Which type llama-quantize (v0.5.0, src/llama-quant.cpp, without imatrix) gives each tensor of a Qwen3.5 model, for
 * the file types that synth writes.
 */
import { UserError } from "../../util/errors.ts";
import type { ExpectedTensor, ModelShape } from "../model-shape.ts";
import { knownType, type GgmlType } from "../types.ts";

const defaultTypes: ReadonlyMap<string, string> = new Map(
  Object.entries({ F32: "F32", F16: "F16", BF16: "BF16", Q4_0: "Q4_0", Q5_0: "Q5_0", Q8_0: "Q8_0", Q4_K_S: "Q4_K", Q4_K_M: "Q4_K", Q5_K_S: "Q5_K", Q5_K_M: "Q5_K", Q6_K: "Q6_K", IQ4_NL: "IQ4_NL", IQ4_XS: "IQ4_XS" }),
);

export const synthFileTypes: readonly string[] = [...defaultTypes.keys()];

/** What a type with blocks of 256 becomes when rows are no multiple of that. */
const fallbacks: ReadonlyMap<string, string> = new Map(Object.entries({ IQ4_XS: "IQ4_NL", Q4_K: "Q5_0", Q5_K: "Q5_1", Q6_K: "Q8_0" }));

/** The base type of a file type: `Q4_K` of `Q4_K_M`. */
export function baseType(fileType: string): string {
  const name = defaultTypes.get(fileType.toUpperCase());
  if (name === undefined) throw new UserError(`type ${fileType} cannot be synthesized; these can: ${synthFileTypes.join(", ")}`);
  return name;
}

/** True for the tensors that llama-quantize leaves alone: vectors, norms, routers, the short convolution. */
export function isKept({ name, shape }: ExpectedTensor): boolean {
  return shape.filter((d) => d !== 1).length < 2 || !name.endsWith("weight") || name.endsWith("_norm.weight") || name.endsWith("ffn_gate_inp.weight") || name.includes("ssm_conv1d");
}

export function withFallback(typeName: string, shape: readonly number[]): GgmlType {
  const fits = (name: string): boolean => (shape[0] ?? 1) % knownType(name).blockSize === 0;
  if (fits(typeName)) return knownType(typeName);
  const fallback = fallbacks.get(typeName) ?? typeName;
  return knownType(fits(fallback) ? fallback : "F16");
}

export function chooseType(tensor: ExpectedTensor, fileType: string, shape: ModelShape): GgmlType {
  if (isKept(tensor)) return knownType("F32");
  const base = baseType(fileType);
  const isFloat = base === "F32" || base === "F16" || base === "BF16";
  return withFallback(isFloat ? base : mixedType(tensor, fileType.toUpperCase(), base, shape), tensor.shape);
}

function mixedType({ name, shape: [rowLength = 0] }: ExpectedTensor, fileType: string, base: string, shape: ModelShape): string {
  const nBlocks = shape.nLayers + shape.nNextnLayers;
  const layer = Number(/^blk\.(\d+)\./.exec(name)?.[1] ?? -1);
  const part = name.split(".")[2] ?? name;
  const hasEightExperts = shape.experts?.count === 8;
  const hasMoreBits = layer < Math.floor(nBlocks / 8) || layer >= Math.floor((7 * nBlocks) / 8) || (layer - Math.floor(nBlocks / 8)) % 3 === 2;
  if (name === "output.weight" || (shape.isTied && name === "token_embd.weight")) return rowLength % knownType(base).blockSize !== 0 ? "Q8_0" : base === "Q8_0" ? base : "Q6_K";
  if (part === "attn_v" || part === "attn_qkv") {
    if (hasEightExperts) return "Q8_0";
    if ((fileType === "IQ4_NL" || fileType === "IQ4_XS") && shape.nHeads / shape.nKvHeads >= 4) return "Q5_K";
    if ((fileType === "Q4_K_M" || fileType === "Q5_K_M") && hasMoreBits) return "Q6_K";
    return fileType === "Q4_K_S" && layer < 4 ? "Q5_K" : base;
  }
  if (part === "attn_k") return hasEightExperts ? "Q8_0" : base;
  if (part.startsWith("ffn_down")) {
    if ((fileType === "Q4_K_M" || fileType === "Q5_K_M") && hasMoreBits) return "Q6_K";
    return ["IQ4_NL", "IQ4_XS", "Q4_K_S"].includes(fileType) && layer < Math.floor(nBlocks / 8) ? "Q5_K" : base;
  }
  if (part === "attn_output") return hasEightExperts && ["IQ4_NL", "IQ4_XS", "Q4_K_S", "Q4_K_M"].includes(fileType) ? "Q5_K" : base;
  return base;
}
