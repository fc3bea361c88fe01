/**
 * The keys that count layers, rewritten for another number of trunk and NextN layers. llama.cpp demands that
 * `block_count` covers both, and that an array with one value per layer has exactly that many.
 */
import { UserError } from "../util/errors.ts";
import type { GgufArrayEntry, GgufEntry, GgufScalar } from "./header.ts";
import { countKey, modelKey } from "./keys.ts";
import { arrayEntry, entryBytes, scalarEntry, u32Entry, type EntryInput, type NewEntry } from "./kv.ts";
import type { GgufModel } from "./split.ts";

/** Keys that llama.cpp reads as one value, or one per layer. */
const perLayerKeys = ["attention.recurrent_layers", "attention.head_count", "attention.head_count_kv", "feed_forward_length", "expert_feed_forward_length", "expert_used_count"];

export const graftPrefix = "foretoken.graft.";

export interface BlockCounts {
  readonly nLayers: number;
  readonly nNextnLayers: number;
  /** What to do with `nextn_predict_layers` when there is no NextN layer. */
  readonly whenNone: "remove" | "zero";
}

/**
 * The model's entries for other counts: changed in place, all others byte for byte. The keys of a split set are left
 * out, and those of an earlier graft when its head goes.
 */
export function entriesFor(model: GgufModel, counts: BlockCounts, added: readonly NewEntry[] = []): EntryInput[] {
  const changes = new Map<string, NewEntry | undefined>();
  const nBlocks = counts.nLayers + counts.nNextnLayers;
  const nextnKey = modelKey(model, "nextn_predict_layers");
  const blockKey = modelKey(model, "block_count");
  changes.set(blockKey, withValue(model.entries.get(blockKey), blockKey, nBlocks));
  const isRemoved = counts.nNextnLayers === 0 && counts.whenNone === "remove";
  changes.set(nextnKey, isRemoved ? undefined : withValue(model.entries.get(nextnKey), nextnKey, counts.nNextnLayers));
  for (const name of perLayerKeys) {
    const entry = model.entries.get(modelKey(model, name));
    if (entry?.kind === "array" && entry.length !== nBlocks) changes.set(entry.key, resized(entry, nBlocks, model.file));
  }
  const result: EntryInput[] = [];
  const losesHead = counts.nNextnLayers === 0 || added.length > 0;
  for (const entry of model.entries.values()) {
    if (entry.key.startsWith("split.") || (losesHead && entry.key.startsWith(graftPrefix))) continue;
    const change = changes.has(entry.key) ? changes.get(entry.key) : entry;
    if (change !== undefined) result.push(change);
    if (entry.key === blockKey && !model.entries.has(nextnKey) && !isRemoved) result.push(u32Entry(nextnKey, counts.nNextnLayers));
  }
  return [...result, ...added];
}

function withValue(entry: GgufEntry | undefined, key: string, value: number): NewEntry {
  if (entry === undefined) return u32Entry(key, value);
  if (entry.kind === "array" || entry.type === "string" || entry.type === "bool") throw new UserError(`${entry.range.file}: ${key} is no number, so the file cannot be rewritten`);
  if (entry.value === value) return { key, bytes: entryBytes(entry) };
  return scalarEntry(key, entry.type, value);
}

/** Cut at the end, or lengthened for a NextN layer: not recurrent, otherwise like the last layer that has attention. */
function resized(entry: GgufArrayEntry, length: number, file: string): NewEntry {
  const { elementType, values } = entry;
  if (values === undefined || elementType === "array" || elementType === "string") throw new UserError(`${file}: ${entry.key} is no list of one number per layer, so the file cannot be rewritten`);
  const filler: GgufScalar = elementType === "bool" ? false : entry.key.endsWith("recurrent_layers") ? 0 : (values.findLast((v) => v !== 0) ?? 0);
  return arrayEntry(entry.key, elementType, Array.from({ length }, (_, i) => values[i] ?? filler));
}

/** `block_count`, which every file to be edited must have. */
export function blockCount(model: GgufModel): number {
  const key = modelKey(model, "block_count");
  const count = countKey(model, key);
  if (count === undefined) throw new UserError(`${model.file}: the key ${key} is missing, so the file is no model that can be edited`);
  return count;
}
