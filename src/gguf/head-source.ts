/** An MTP head on offer: its tensors without their block number, and what must agree with a target. */
import { createHash } from "node:crypto";
import { UserError } from "../util/errors.ts";
import { arrayKey } from "./keys.ts";
import { entryBytes } from "./kv.ts";
import { shapeOf, type ModelShape } from "./model-shape.ts";
import { mtpStatus } from "./mtp-status.ts";
import type { GgufModel } from "./split.ts";
import { copiedTensor, type TensorInput } from "./writer.ts";

export interface HeadSource {
  /** File or folder, for messages and provenance. */
  readonly origin: string;
  /** Of the whole model that the head belongs to. */
  readonly shape: ModelShape;
  /** Names within a block: `attn_q.weight`, `nextn.eh_proj.weight`. */
  readonly tensors: readonly TensorInput[];
  /** SHA-256 of the token list and the merges, as they stand in GGUF; undefined when the source has none. */
  readonly tokenizer: TokenizerHashes;
}

export interface TokenizerHashes {
  readonly tokens: string | undefined;
  readonly merges: string | undefined;
}

/**
 * The head of a GGUF file: of a whole model or of an MTP-only file.
 * @throws {UserError} when there is none, or it is incomplete.
 */
export function headOfGguf(model: GgufModel): HeadSource {
  const status = mtpStatus(model);
  if (status.blocks.length === 0) throw new UserError(`${model.file} holds no MTP head: ${status.advice}`);
  if (status.missing.length > 0) throw new UserError(`${model.file}: ${status.advice}`);
  if (status.blocks.length > 1) throw new UserError(`${model.file} holds ${status.blocks.length} NextN blocks; llama.cpp runs one for this architecture`);
  const prefix = `blk.${status.blocks[0]}.`;
  return {
    origin: model.file,
    shape: { ...shapeOf(model), nLayers: status.nTrunkLayers, nNextnLayers: 1 },
    tensors: model.tensors.filter((t) => t.name.startsWith(prefix)).map((t) => copiedTensor(t, t.name.slice(prefix.length))),
    tokenizer: tokenizerHashes(model),
  };
}

export function tokenizerHashes(model: GgufModel): TokenizerHashes {
  const hash = (key: string): string | undefined => {
    const entry = arrayKey(model, key);
    return entry === undefined ? undefined : hashEntry(entryBytes(entry));
  };
  return { tokens: hash("tokenizer.ggml.tokens"), merges: hash("tokenizer.ggml.merges") };
}

export const hashEntry = (bytes: Uint8Array): string => createHash("sha256").update(bytes).digest("hex");

/** SHA-256 of each tensor's data, and of all of them together in order. */
export async function hashTensors(tensors: readonly TensorInput[], signal?: AbortSignal): Promise<{ each: Map<string, string>; all: string }> {
  const all = createHash("sha256");
  const each = new Map<string, string>();
  for (const tensor of tensors) {
    const hash = createHash("sha256");
    for await (const piece of tensor.data()) {
      signal?.throwIfAborted();
      hash.update(piece);
      all.update(piece);
    }
    each.set(tensor.name, hash.digest("hex"));
  }
  return { each, all: all.digest("hex") };
}

/**
 * What of a head does not fit a target, one phrase each; empty when it fits.
 * Depth counts as a mismatch: a head reads hidden rows, and a model of another depth is another model.
 */
export function headMismatches(head: HeadSource, target: ModelShape, targetTokenizer: TokenizerHashes): string[] {
  const theirs = comparableSizes(head.shape);
  const ours = comparableSizes(target);
  if (theirs.get("architecture") !== ours.get("architecture")) return [`architecture ${theirs.get("architecture")}, the target's is ${ours.get("architecture")}`];
  const sizes = [...theirs].filter(([name, value]) => ours.get(name) !== value).map(([name, value]) => `${name} ${value}, the target has ${ours.get(name)}`);
  const { tokens, merges } = head.tokenizer;
  if (sizes.length === 0 && tokens !== undefined && targetTokenizer.tokens !== undefined && tokens !== targetTokenizer.tokens) sizes.push("another token list");
  if (sizes.length === 0 && merges !== undefined && targetTokenizer.merges !== undefined && merges !== targetTokenizer.merges) sizes.push("other merges in the tokenizer");
  return sizes;
}

function comparableSizes(s: ModelShape): Map<string, string> {
  const { experts } = s;
  return new Map(
    Object.entries({
      architecture: s.architecture,
      "trunk layers": String(s.nLayers),
      "embedding length": String(s.embeddingLength),
      "vocabulary size": String(s.vocabSize),
      heads: `${s.nHeads} (${s.nKvHeads} for keys)`,
      "head dimension": String(s.headDim),
      "feed-forward": experts === undefined ? String(s.feedForward) : `${experts.count} experts, ${experts.usedCount} used, ${experts.feedForward} (${experts.sharedFeedForward} shared)`,
      "rotary dimensions": `${s.ropeDimension} at base ${Math.fround(s.ropeFreqBase)}, sections ${s.ropeSections.join("/")}`,
    }),
  );
}
