/**
 * Whether a file advertises an MTP head, whether it holds one, and whether the head is complete. The two disagree
 * often in the wild: llama.cpp then refuses the file with "missing tensor" or "wrong number of tensors".
 */
import { UserError } from "../util/errors.ts";
import { printable } from "./error.ts";
import { architecture, countKey, modelKey } from "./keys.ts";
import { isKnownArchitecture, nextnLayerTensors, sameShape, shapeOf, type ExpectedTensor, type ModelShape } from "./model-shape.ts";
import type { GgufModel } from "./split.ts";

export type MtpVerdict = "none" | "complete" | "incomplete" | "advertised-but-absent" | "present-but-not-advertised" | "keys-disagree";

export interface MtpStatus {
  readonly verdict: MtpVerdict;
  /** `nextn_predict_layers`; 0 when the key is missing. */
  readonly nAdvertised: number;
  /** Block numbers that hold `nextn.*` tensors. */
  readonly blocks: readonly number[];
  /** Trunk layers by their tensors: blocks from 0 on without `nextn.*`. */
  readonly nTrunkLayers: number;
  readonly blockCount: number | undefined;
  /** No trunk layer is in the file: a draft model that goes beside its target. */
  readonly isHeadOnly: boolean;
  /** Names of tensors that llama.cpp asks for and the file lacks, or has in another shape. */
  readonly missing: readonly string[];
  /** What it means and what to do, in one or two sentences. */
  readonly advice: string;
}

/** Parts without which a NextN block of any architecture cannot run. */
const leastParts = ["nextn.eh_proj.weight", "nextn.enorm.weight", "nextn.hnorm.weight", "attn_norm.weight"];

export function mtpStatus(model: GgufModel): MtpStatus {
  const nAdvertised = countKey(model, modelKey(model, "nextn_predict_layers")) ?? 0;
  const names = new Set(model.tensors.map((t) => t.name));
  const blocks = blockNumbers(model, /^blk\.(\d+)\.nextn\./);
  const trunk = blockNumbers(model, /^blk\.(\d+)\./).filter((block) => !blocks.includes(block));
  const isHeadOnly = blocks.length > 0 && trunk.length === 0;
  // A draft file keeps the block's number in the whole model, so the trunk's depth is that number.
  const nTrunkLayers = isHeadOnly ? (blocks[0] as number) : (trunk.at(-1) ?? -1) + 1;
  const missing = blocks.flatMap((block) => missingParts(model, block, nTrunkLayers, blocks.length, names));
  const blockCount = countKey(model, modelKey(model, "block_count"));
  const countsAgree = blockCount === undefined || trunk.length + blocks.length === 0 || blockCount === nTrunkLayers + blocks.length;
  const hasRightKeys = nAdvertised === blocks.length && countsAgree && blocks.every((block, i) => block === nTrunkLayers + i);
  const facts: Facts = { nAdvertised, blocks, nTrunkLayers, blockCount, isHeadOnly, missing };
  const verdict = judge(facts, hasRightKeys);
  return { verdict, ...facts, advice: advice[verdict](model.file, facts) };
}

type Facts = Omit<MtpStatus, "verdict" | "advice">;

function judge({ nAdvertised, blocks, missing }: Facts, hasRightKeys: boolean): MtpVerdict {
  if (blocks.length === 0) return nAdvertised > 0 ? "advertised-but-absent" : hasRightKeys ? "none" : "keys-disagree";
  if (nAdvertised === 0) return "present-but-not-advertised";
  if (missing.length > 0) return "incomplete";
  return hasRightKeys ? "complete" : "keys-disagree";
}

function blockNumbers(model: GgufModel, pattern: RegExp): number[] {
  const found = new Set<number>();
  for (const { name } of model.tensors) {
    const match = pattern.exec(name);
    if (match !== null) found.add(Number(match[1]));
  }
  return [...found].sort((a, b) => a - b);
}

function missingParts(model: GgufModel, block: number, nTrunkLayers: number, nNextnLayers: number, names: ReadonlySet<string>): string[] {
  const known = knownShape(model);
  if (known === undefined) return leastParts.map((part) => `blk.${block}.${part}`).filter((name) => !names.has(name));
  const shape = { ...known, nLayers: nTrunkLayers, nNextnLayers };
  const byName = new Map(model.tensors.map((t) => [t.name, t]));
  const isFused = (expected: ExpectedTensor): boolean => /\.ffn_(gate|up)_exps\./.test(expected.name) && names.has(`blk.${block}.ffn_gate_up_exps.weight`);
  return nextnLayerTensors(shape, block)
    .filter((expected) => {
      const found = byName.get(expected.name);
      return found === undefined ? expected.isOptional !== true && !isFused(expected) : !sameShape(found.shape, expected.shape);
    })
    .map((expected) => expected.name);
}

/** The shape of a supported architecture whose keys are all there. */
function knownShape(model: GgufModel): ModelShape | undefined {
  if (!isKnownArchitecture(architecture(model))) return undefined;
  try {
    return shapeOf(model);
  } catch (error) {
    if (error instanceof UserError) return undefined;
    throw error;
  }
}

const blockName = (s: Facts): string => `blk.${s.blocks[0] ?? s.nTrunkLayers}`;
const someOf = (names: readonly string[]): string => printable(names.slice(0, 4).join(", ")) + (names.length > 4 ? ", ..." : "");

const advice: Readonly<Record<MtpVerdict, (file: string, s: Facts) => string>> = {
  none: (file) => `No MTP head, and none is promised. To draft with one: foretoken graft ${file} DONOR -o OUT, or serve it beside a draft file.`,
  complete: (file, s) =>
    s.isHeadOnly
      ? `An MTP head alone (${blockName(s)}): serve it beside its target with --spec-draft-model ${file}, or graft it into the target.`
      : `MTP head present and complete (${blockName(s)}): serve with --spec-type draft-mtp.`,
  "advertised-but-absent": (file, s) =>
    `nextn_predict_layers says ${s.nAdvertised}, but no tensor of an MTP head is in the file, so llama.cpp refuses it. Either foretoken repair ${file} -o OUT takes the promise back, or foretoken graft ${file} DONOR -o OUT keeps it.`,
  "present-but-not-advertised": (file, s) =>
    `An MTP head is in the file (${blockName(s)}), but nextn_predict_layers does not say so, so llama.cpp refuses the extra tensors. foretoken repair ${file} -o OUT sets the keys.`,
  "keys-disagree": (file, s) =>
    `The file holds ${s.nTrunkLayers} trunk layers and ${s.blocks.length === 0 ? "no NextN layer" : `NextN as blk.${s.blocks.join(", blk.")}`}, its keys say block_count ${s.blockCount ?? "nothing"} and nextn_predict_layers ${s.nAdvertised}. foretoken repair ${file} -o OUT sets the keys.`,
  incomplete: (file, s) =>
    `The MTP head (${blockName(s)}) lacks ${s.missing.length} tensor${s.missing.length === 1 ? "" : "s"}, or has them in another shape: ${someOf(s.missing)}. foretoken strip ${file} -o OUT removes it; a whole head can then be grafted.`,
};
