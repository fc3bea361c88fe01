/** A Hugging Face checkpoint folder: config.json and safetensors in one file or in shards with an index. */
import * as fs from "node:fs";
import * as path from "node:path";
import { FormatError, quote } from "../gguf/error.ts";
import { UserError, errorMessage, hasErrorCode } from "../util/errors.ts";
import { readSafetensors, type HfTensor } from "./safetensors.ts";

export type JsonObject = Readonly<Record<string, unknown>>;

export interface Checkpoint {
  readonly folder: string;
  readonly config: JsonObject;
  /** By name; shards in name order, names sorted within a shard, as llama.cpp's converter goes through them. */
  readonly tensors: ReadonlyMap<string, HfTensor>;
}

/** Reads a JSON object, or undefined when there is no such file. */
export function readJson(file: string): JsonObject | undefined {
  let text: string;
  try {
    text = fs.readFileSync(file, "utf8");
  } catch (error) {
    if (hasErrorCode(error, "ENOENT")) return undefined;
    throw new UserError(`${file} cannot be read: ${errorMessage(error)}`);
  }
  let json: unknown;
  try {
    json = JSON.parse(text);
  } catch (error) {
    throw new FormatError(file, 0, "JSON", quote(errorMessage(error)));
  }
  if (typeof json !== "object" || json === null || Array.isArray(json)) throw new FormatError(file, 0, "JSON", "must be an object");
  return json as JsonObject;
}

export function isCheckpoint(folder: string): boolean {
  return fs.existsSync(path.join(folder, "config.json"));
}

/**
 * @throws {UserError} when the folder is no checkpoint, or a shard is missing (named).
 * @throws {FormatError} when a file is damaged or index and shards disagree.
 */
export function readCheckpoint(folder: string): Checkpoint {
  if (!fs.existsSync(folder)) throw new UserError(`the checkpoint folder ${folder} does not exist; check the path`);
  const config = readJson(path.join(folder, "config.json"));
  if (config === undefined) throw new UserError(`${folder} has no config.json, so it is not a Hugging Face checkpoint`);
  const indexFile = path.join(folder, "model.safetensors.index.json");
  const index = readJson(indexFile);
  const files = index === undefined ? listSafetensors(folder) : shardsOf(indexFile, index);
  if (files.length === 0) {
    const hasPickle = fs.readdirSync(folder).some((name) => name.endsWith(".bin") || name.endsWith(".pt"));
    throw new UserError(`${folder} has no *.safetensors file${hasPickle ? "; pickled weights are not read, save them as safetensors first" : ""}`);
  }
  const missing = files.filter((file) => !fs.existsSync(path.join(folder, file)));
  if (missing.length > 0) throw new UserError(`${folder}: missing ${missing.join(", ")} (named in ${path.basename(indexFile)}); fetch the checkpoint again`);
  const tensors = new Map<string, HfTensor>();
  for (const file of files) {
    for (const tensor of readSafetensors(path.join(folder, file))) {
      const other = tensors.get(tensor.name);
      if (other !== undefined) throw new FormatError(tensor.file, tensor.offset, `tensor ${quote(tensor.name)}`, `is also in ${path.basename(other.file)}`);
      tensors.set(tensor.name, tensor);
    }
  }
  if (index !== undefined) compareWithIndex(indexFile, index, tensors);
  return { folder, config, tensors };
}

function listSafetensors(folder: string): string[] {
  return fs
    .readdirSync(folder)
    .filter((name) => name.startsWith("model") && name.endsWith(".safetensors"))
    .toSorted();
}

function weightMap(indexFile: string, index: JsonObject): Record<string, string> {
  const map = index["weight_map"];
  if (typeof map !== "object" || map === null || Array.isArray(map) || !Object.values(map).every((file) => typeof file === "string")) throw new FormatError(indexFile, 0, "weight_map", "must be an object of file names");
  return map as Record<string, string>;
}

function shardsOf(indexFile: string, index: JsonObject): string[] {
  const files = [...new Set(Object.values(weightMap(indexFile, index)))].toSorted();
  const outside = files.find((file) => path.basename(file) !== file);
  if (outside !== undefined) throw new FormatError(indexFile, 0, "weight_map", `${quote(outside)} is not a file name`);
  return files;
}

function compareWithIndex(indexFile: string, index: JsonObject, tensors: ReadonlyMap<string, HfTensor>): void {
  const map = weightMap(indexFile, index);
  const absent = Object.keys(map).filter((name) => !tensors.has(name));
  if (absent.length > 0) throw new FormatError(indexFile, 0, "weight_map", `${absent.length} tensors are in no shard, the first is ${quote(absent[0] as string)}; fetch the checkpoint again`);
  const extra = [...tensors.keys()].filter((name) => !Object.hasOwn(map, name));
  if (extra.length > 0) throw new FormatError(indexFile, 0, "weight_map", `${extra.length} tensors of the shards are not listed, the first is ${quote(extra[0] as string)}`);
}
