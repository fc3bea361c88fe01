/** Which tensors each `--tensor-type` rule reaches: the first rule that matches a tensor's name wins (llama-quant.cpp). */
import type { GgufTensor } from "../gguf/header.ts";
import { compilePattern, type TensorRule } from "./quantize-types.ts";

export interface RuleReport {
  readonly pattern: string;
  readonly type: string;
  /** Tensors whose name matches. */
  readonly nMatched: number;
  /** Of those, tensors that no earlier rule matches and that libllama quantizes at all. */
  readonly nApplied: number;
  /** Names that match but stay as they are: norms, routers, one-dimensional tensors. */
  readonly nKept: number;
}

export interface RulePlan {
  readonly reports: readonly RuleReport[];
  /** What libllama gets: patterns in lower case; "copy" rules as one rule a tensor. */
  readonly overrides: readonly { readonly pattern: string; readonly typeId: number }[];
}

/** Name parts that libllama never quantizes, for the architectures that have an MTP head. */
const keptParts = ["_norm.weight", "ffn_gate_inp.weight", "ssm_conv1d", "shortconv.conv.weight"];

export function isQuantizable(tensor: GgufTensor, leaveOutput: boolean): boolean {
  const isMatrix = tensor.shape.findLastIndex((n) => n > 1) >= 1;
  return isMatrix && tensor.name.endsWith("weight") && !keptParts.some((part) => tensor.name.includes(part)) && !(leaveOutput && tensor.name === "output.weight");
}

const escape = (name: string): string => name.replace(/[.*+?^${}()|[\]\\]/g, "\\$&");

export function planRules(rules: readonly TensorRule[], tensors: readonly GgufTensor[], leaveOutput: boolean): RulePlan {
  const taken = new Set<string>();
  const reports: RuleReport[] = [];
  const overrides: { pattern: string; typeId: number }[] = [];
  for (const { pattern, type } of rules) {
    const expression = compilePattern(pattern);
    const matched = tensors.filter((tensor) => expression.test(tensor.name));
    const free = matched.filter((tensor) => !taken.has(tensor.name));
    const quantizable = free.filter((tensor) => isQuantizable(tensor, leaveOutput));
    for (const tensor of free) taken.add(tensor.name);
    reports.push({ pattern, type: type === "copy" ? "copy" : type.name, nMatched: matched.length, nApplied: quantizable.length, nKept: free.length - quantizable.length });
    if (type !== "copy") overrides.push({ pattern: pattern.toLowerCase(), typeId: type.id });
    else for (const tensor of quantizable) overrides.push({ pattern: `^${escape(tensor.name)}$`, typeId: tensor.typeId });
  }
  return { reports, overrides };
}
