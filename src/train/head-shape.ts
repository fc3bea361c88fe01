/**
 * The MTP block of qwen35moe: its dimensions and its tensors, as llama.cpp v0.5.0 loads them
 * (src/models/qwen35moe.cpp, `graph_mtp`). Shapes are ggml's: ne0 is the contiguous, input dimension.
 */
import { UserError } from "../util/errors.ts";

export interface HeadShape {
  readonly nEmbd: number;
  readonly nVocab: number;
  readonly nHead: number;
  readonly nHeadKv: number;
  readonly nEmbdHead: number;
  readonly nRot: number;
  readonly ropeFreqBase: number;
  readonly ropeFreqScale: number;
  readonly normEps: number;
  readonly nExpert: number;
  readonly nExpertUsed: number;
  readonly nFfExpert: number;
  readonly nFfShared: number;
  /** Factor on the normalised expert weights; 1 for none. */
  readonly expertWeightsScale: number;
}

/** What is frozen or trained together. */
export const freezeGroups = ["fc", "attention", "experts", "router", "shared-expert", "norms"] as const;
export type FreezeGroup = (typeof freezeGroups)[number];

export interface ParameterSpec {
  /** Name in GGUF after `blk.N.`. */
  readonly name: string;
  readonly ne: readonly number[];
  readonly group: FreezeGroup;
}

/** Every tensor of the block, in the order of the computation. */
export function parameterSpecs(s: HeadShape): readonly ParameterSpec[] {
  const d = s.nEmbd;
  const spec = (name: string, group: FreezeGroup, ...ne: number[]): ParameterSpec => ({ name, ne, group });
  return [
    spec("nextn.enorm.weight", "fc", d),
    spec("nextn.hnorm.weight", "fc", d),
    spec("nextn.eh_proj.weight", "fc", 2 * d, d),
    spec("attn_norm.weight", "norms", d),
    spec("attn_q.weight", "attention", d, 2 * s.nEmbdHead * s.nHead),
    spec("attn_k.weight", "attention", d, s.nEmbdHead * s.nHeadKv),
    spec("attn_v.weight", "attention", d, s.nEmbdHead * s.nHeadKv),
    spec("attn_q_norm.weight", "norms", s.nEmbdHead),
    spec("attn_k_norm.weight", "norms", s.nEmbdHead),
    spec("attn_output.weight", "attention", s.nEmbdHead * s.nHead, d),
    spec("post_attention_norm.weight", "norms", d),
    spec("ffn_gate_inp.weight", "router", d, s.nExpert),
    spec("ffn_gate_exps.weight", "experts", d, s.nFfExpert, s.nExpert),
    spec("ffn_up_exps.weight", "experts", d, s.nFfExpert, s.nExpert),
    spec("ffn_down_exps.weight", "experts", s.nFfExpert, d, s.nExpert),
    spec("ffn_gate_inp_shexp.weight", "shared-expert", d),
    spec("ffn_gate_shexp.weight", "shared-expert", d, s.nFfShared),
    spec("ffn_up_shexp.weight", "shared-expert", d, s.nFfShared),
    spec("ffn_down_shexp.weight", "shared-expert", s.nFfShared, d),
    spec("nextn.shared_head_norm.weight", "norms", d),
  ];
}

export const nElements = (ne: readonly number[]): number => ne.reduce((product, n) => product * n, 1);

/** Weights by name, F32, in ggml's order. */
export type HeadWeights = ReadonlyMap<string, Float32Array>;

export function countParameters(shape: HeadShape): number {
  return parameterSpecs(shape).reduce((sum, { ne }) => sum + nElements(ne), 0);
}

/** @throws {UserError} that names the first tensor that is missing or has another size. */
export function checkWeights(shape: HeadShape, weights: HeadWeights, source: string): void {
  for (const { name, ne } of parameterSpecs(shape)) {
    const values = weights.get(name);
    if (values === undefined) throw new UserError(`${source} has no MTP tensor ${name}; a head needs all ${parameterSpecs(shape).length}`);
    if (values.length !== nElements(ne)) throw new UserError(`${source}: ${name} has ${values.length} values, [${ne.join(", ")}] needs ${nElements(ne)}`);
  }
}
