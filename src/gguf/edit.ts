/**
 * Moves MTP heads between files: graft, strip, extract, repair. Tensors keep their type and their bytes; only the
 * table and the keys that count layers change. The result is checked before it gets its name.
 */
import * as path from "node:path";
import { UserError } from "../util/errors.ts";
import { blockCount, entriesFor, graftPrefix } from "./block-keys.ts";
import { sha256Range } from "./hash.ts";
import { hashTensors, headMismatches, headOfGguf, tokenizerHashes, type HeadSource } from "./head-source.ts";
import { stringEntry, u32Entry } from "./kv.ts";
import { shapeOf } from "./model-shape.ts";
import { mtpStatus } from "./mtp-status.ts";
import { readGguf, type GgufModel } from "./split.ts";
import { copiedTensor, writeGguf, type TensorInput } from "./writer.ts";

export interface EditOptions {
  readonly input: string;
  readonly output: string;
  readonly signal?: AbortSignal | undefined;
  readonly onBytes?: ((nBytes: number, totalBytes: number) => void) | undefined;
}

export interface EditResult {
  readonly output: string;
  readonly sizeBytes: number;
  readonly nTensors: number;
  readonly blockCount: number;
  readonly nNextnLayers: number;
}

export interface GraftResult extends EditResult {
  /** Of the head's tensors in the output, read back: data in the order of the table. */
  readonly headSha256: string;
  readonly nHeadTensors: number;
  readonly headBytes: number;
}

/**
 * Puts the head into the target as block `N`, after its N trunk layers.
 * @throws {UserError} when the target has a head already, or the head is of another model (every difference is named).
 */
export async function graftHead(options: EditOptions, head: HeadSource): Promise<GraftResult> {
  const target = openForEdit(options);
  const status = mtpStatus(target);
  if (status.blocks.length > 0) throw new UserError(`${target.file} holds an MTP head already (blk.${status.blocks.join(", blk.")}); foretoken strip removes it first`);
  const shape = { ...shapeOf(target), nLayers: status.nTrunkLayers };
  const mismatches = headMismatches(head, shape, tokenizerHashes(target));
  if (mismatches.length > 0) throw new UserError(`the head of ${head.origin} does not fit ${target.file}: ${mismatches.join("; ")}`);
  const block = status.nTrunkLayers;
  const hashes = await hashTensors(head.tensors, options.signal);
  const provenance = [
    stringEntry(`${graftPrefix}donor`, path.basename(head.origin)),
    u32Entry(`${graftPrefix}donor_block`, head.shape.nLayers),
    stringEntry(`${graftPrefix}head_sha256`, hashes.all),
  ];
  const placed = head.tensors.map((t): TensorInput => ({ ...t, name: `blk.${block}.${t.name}`, data: () => t.data() }));
  const result = await rewrite(target, options, {
    counts: { nLayers: block, nNextnLayers: 1, whenNone: "remove" },
    tensors: [...target.tensors.map((t) => copiedTensor(t)), ...placed],
    added: provenance,
    expected: new Map([...hashes.each].map(([name, hash]) => [`blk.${block}.${name}`, hash])),
  });
  return { ...result, headSha256: hashes.all, nHeadTensors: placed.length, headBytes: placed.reduce((n, t) => n + t.sizeBytes, 0) };
}

/** The file without its head; also takes back a promise without tensors. */
export async function stripHead(options: EditOptions): Promise<EditResult> {
  const model = openForEdit(options);
  const { blocks, nTrunkLayers, isHeadOnly, nAdvertised } = mtpStatus(model);
  if (isHeadOnly) throw new UserError(`${model.file} holds an MTP head and no trunk; nothing would be left`);
  if (blocks.length === 0 && nAdvertised === 0) throw new UserError(`${model.file} holds no MTP head and promises none; there is nothing to strip`);
  const tensors = model.tensors.filter((t) => !blocks.includes(blockOf(t.name))).map((t) => copiedTensor(t));
  return rewrite(model, options, { counts: { nLayers: nTrunkLayers, nNextnLayers: 0, whenNone: "remove" }, tensors });
}

/** The head alone, with embeddings, final norm and output: a draft file beside its target. */
export async function extractHead(options: EditOptions): Promise<EditResult> {
  const model = openForEdit(options);
  const { blocks, nTrunkLayers } = mtpStatus(model);
  headOfGguf(model);
  const outer = new Set(["token_embd.weight", "output_norm.weight", "output.weight"]);
  const tensors = model.tensors.filter((t) => outer.has(t.name) || blocks.includes(blockOf(t.name))).map((t) => copiedTensor(t));
  return rewrite(model, options, { counts: { nLayers: nTrunkLayers, nNextnLayers: 1, whenNone: "remove" }, tensors });
}

export interface RepairResult extends EditResult {
  /** What was wrong, from the audit. */
  readonly found: string;
}

/**
 * Makes the keys tell what the tensors are: `nextn_predict_layers` 0 and `block_count` back when a promised head is
 * absent, both set when a head is there and not promised. Undefined: nothing to repair.
 * @throws {UserError} when the head lacks tensors, which no key can mend.
 */
export async function repairKeys(options: EditOptions): Promise<RepairResult | undefined> {
  const model = openForEdit(options);
  const status = mtpStatus(model);
  if (status.missing.length > 0) throw new UserError(`${model.file}: ${status.advice}`);
  if (status.verdict === "none" || status.verdict === "complete") return undefined;
  const { blocks, nTrunkLayers } = status;
  const tensors = model.tensors.map((t) => copiedTensor(t, renumbered(t.name, blocks, nTrunkLayers)));
  const result = await rewrite(model, options, { counts: { nLayers: nTrunkLayers, nNextnLayers: blocks.length, whenNone: "zero" }, tensors });
  return { ...result, found: status.verdict };
}

/** A NextN block has the number after the last trunk layer. */
function renumbered(name: string, blocks: readonly number[], nTrunkLayers: number): string {
  const block = blockOf(name);
  const rank = blocks.indexOf(block);
  return rank < 0 ? name : `blk.${nTrunkLayers + rank}.${name.slice(`blk.${block}.`.length)}`;
}

function blockOf(name: string): number {
  return Number(/^blk\.(\d+)\./.exec(name)?.[1] ?? -1);
}

function openForEdit({ input, output }: EditOptions): GgufModel {
  const model = readGguf(input);
  if (!model.littleEndian) throw new UserError(`${input} is big-endian and cannot be rewritten here; gguf_convert_endian.py of gguf-py converts it`);
  if (model.shards.some((shard) => path.resolve(shard.file) === path.resolve(output))) throw new UserError(`--output ${output} is the input itself; choose another file`);
  blockCount(model);
  return model;
}

interface Rewrite {
  readonly counts: Parameters<typeof entriesFor>[1];
  readonly tensors: readonly TensorInput[];
  readonly added?: Parameters<typeof entriesFor>[2];
  /** SHA-256 of tensors that are read back before the file gets its name. */
  readonly expected?: ReadonlyMap<string, string>;
}

async function rewrite(model: GgufModel, options: EditOptions, { counts, tensors, added, expected }: Rewrite): Promise<EditResult> {
  const { sizeBytes } = await writeGguf(options.output, {
    entries: entriesFor(model, counts, added),
    tensors,
    alignment: model.alignment,
    version: model.version,
    signal: options.signal,
    onBytes: options.onBytes,
    async check(written) {
      for (const [name, hash] of expected ?? []) {
        const tensor = written.tensors.find((t) => t.name === name);
        if (tensor === undefined || (await sha256Range(tensor, options.signal)) !== hash) throw new UserError(`${options.output}: tensor ${name} does not read back as it was written; is the disk sound?`);
      }
    },
  });
  return { output: options.output, sizeBytes, nTensors: tensors.length, blockCount: counts.nLayers + counts.nNextnLayers, nNextnLayers: counts.nNextnLayers };
}
