/** Typed access to well-known keys: a wrong type is an error that names key, file and both types. */
import { GgufError, quote } from "./error.ts";
import type { GgufArrayEntry, GgufEntry, GgufScalar } from "./header.ts";

export interface HasEntries {
  readonly file: string;
  readonly entries: ReadonlyMap<string, GgufEntry>;
}

function wrongType(entry: GgufEntry, wanted: string, file: string): never {
  const is = entry.kind === "array" ? `an array of ${entry.elementType}` : `${entry.type} ${quote(String(entry.value))}`;
  throw new GgufError(file, entry.range.offset, quote(entry.key), `must be ${wanted}, is ${is}`);
}

function scalar(gguf: HasEntries, key: string, wanted: string): GgufScalar | undefined {
  const entry = gguf.entries.get(key);
  if (entry === undefined) return undefined;
  return entry.kind === "scalar" ? entry.value : wrongType(entry, wanted, gguf.file);
}

/** An integer of any width that fits 53 bits and is not negative. */
export function countKey(gguf: HasEntries, key: string): number | undefined {
  const value = scalar(gguf, key, "a count");
  if (value === undefined) return undefined;
  if (typeof value === "number" && Number.isSafeInteger(value) && value >= 0) return value;
  return wrongType(gguf.entries.get(key) as GgufEntry, "a count", gguf.file);
}

export function numberKey(gguf: HasEntries, key: string): number | undefined {
  const value = scalar(gguf, key, "a number");
  if (value === undefined || typeof value === "number") return value;
  return wrongType(gguf.entries.get(key) as GgufEntry, "a number", gguf.file);
}

export function stringKey(gguf: HasEntries, key: string): string | undefined {
  const value = scalar(gguf, key, "a string");
  if (value === undefined || typeof value === "string") return value;
  return wrongType(gguf.entries.get(key) as GgufEntry, "a string", gguf.file);
}

export function arrayKey(gguf: HasEntries, key: string): GgufArrayEntry | undefined {
  const entry = gguf.entries.get(key);
  if (entry === undefined || entry.kind === "array") return entry;
  return wrongType(entry, "an array", gguf.file);
}

/** The architecture with which the model's own keys begin, for example `qwen35moe`. */
export function architecture(gguf: HasEntries): string {
  const name = stringKey(gguf, "general.architecture");
  if (name === undefined) throw new GgufError(gguf.file, 0, "the metadata", "general.architecture is missing, so this is no model that llama.cpp loads");
  return name;
}

/** `qwen35moe.block_count` for `block_count`. */
export function modelKey(gguf: HasEntries, name: string): string {
  return `${architecture(gguf)}.${name}`;
}
