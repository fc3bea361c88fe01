/**
 * What a header already tells about a target and its draft heads. libllama aborts on some of these, silently drops a
 * trunk layer on one (a file that counts an MTP layer it does not hold), and names none of them to the user.
 */
import { UserError } from "../util/errors.ts";
import { architecture, arrayKey, countKey, modelKey } from "../gguf/keys.ts";
import { readGguf, type GgufModel } from "../gguf/split.ts";

export interface ModelFacts {
  readonly path: string;
  readonly architecture: string;
  readonly nEmbd: number;
  readonly nVocab: number;
  /** Layers that decode, MTP layers not counted. */
  readonly nTrunkLayers: number;
  /** MTP layers that the metadata advertises. */
  readonly nMtpLayers: number;
  /** MTP layers whose tensors are there. */
  readonly nMtpPresent: number;
  readonly hasTrunk: boolean;
  readonly fileBytes: number;
}

/** Reads the header only. @throws {UserError} for a file that is no model. */
export function readModelFacts(path: string): ModelFacts {
  const gguf = readGguf(path);
  const nBlocks = countKey(gguf, modelKey(gguf, "block_count"));
  const nEmbd = countKey(gguf, modelKey(gguf, "embedding_length"));
  if (nBlocks === undefined || nEmbd === undefined) throw new UserError(`${path} has no block_count or embedding_length: it is not a language model that libllama loads`);
  const nMtpLayers = countKey(gguf, modelKey(gguf, "nextn_predict_layers")) ?? 0;
  const names = new Set(gguf.tensors.map((tensor) => tensor.name));
  const nTrunkLayers = nBlocks - nMtpLayers;
  let nMtpPresent = 0;
  for (let i = nTrunkLayers; i < nBlocks; i++) if (names.has(`blk.${i}.nextn.eh_proj.weight`)) nMtpPresent++;
  const hasTrunk = [...names].some((name) => name.startsWith("blk.0.")) && nTrunkLayers > 0;
  if (nMtpPresent < nMtpLayers && names.has(`blk.${nTrunkLayers}.attn_norm.weight`) && !names.has(`blk.${nTrunkLayers}.nextn.eh_proj.weight`))
    throw new UserError(`${path} counts block ${nTrunkLayers} as an MTP layer but it is a trunk layer, which libllama would leave out; "foretoken strip" repairs the metadata`);
  return { path, architecture: architecture(gguf), nEmbd, nVocab: vocabularySize(gguf), nTrunkLayers, nMtpLayers, nMtpPresent, hasTrunk, fileBytes: gguf.fileBytes };
}

function vocabularySize(gguf: GgufModel): number {
  return arrayKey(gguf, "tokenizer.ggml.tokens")?.length ?? gguf.tensors.find((tensor) => tensor.name === "token_embd.weight")?.shape[1] ?? 0;
}

/** @throws {UserError} when the file cannot be a target, or `wantsHead` and it has no complete MTP head. */
export function checkTarget(target: ModelFacts, wantsHead: boolean): void {
  const { path } = target;
  if (!target.hasTrunk) throw new UserError(`${path} holds a draft head and no trunk; give the model with -m and this file with --spec-draft-model`);
  if (!wantsHead || target.nMtpPresent > 0) return;
  if (target.nMtpLayers > 0) throw new UserError(`${path} advertises ${target.nMtpLayers} MTP layer but holds none of its tensors; graft a head, or give one with --spec-draft-model`);
  throw new UserError(`${path} has no MTP head; graft one, give one with --spec-draft-model, or use --spec-type none`);
}

/** @throws {UserError} when the file cannot draft for the target. */
export function checkHead(head: ModelFacts, target: ModelFacts): void {
  const { path } = head;
  if (head.nMtpPresent === 0) throw new UserError(`${path} ${head.nMtpLayers > 0 ? "advertises an MTP layer but holds none of its tensors" : "has no MTP layer"}; a draft head needs one`);
  if (head.architecture !== target.architecture) throw new UserError(`${path} is a head for ${head.architecture}, ${target.path} is ${target.architecture}; use a head of the same architecture`);
  if (head.nEmbd !== target.nEmbd) throw new UserError(`${path} is a head of width ${head.nEmbd}, ${target.path} has width ${target.nEmbd}; use a head made for this model`);
  if (head.nVocab !== target.nVocab) throw new UserError(`${path} has a vocabulary of ${head.nVocab} tokens, ${target.path} of ${target.nVocab}; use a head made for this model`);
}
