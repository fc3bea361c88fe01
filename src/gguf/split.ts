/**
 * A model in one file or in several (`NAME-00001-of-00003.gguf`), seen as one. As gguf-split writes them:
 * `split.no` counts from 0, `split.count` is the number of files, `split.tensors.count` the total over all files, and
 * only the first file carries the model's metadata.
 */
import * as fs from "node:fs";
import * as path from "node:path";
import { UserError } from "../util/errors.ts";
import { GgufError, quote } from "./error.ts";
import type { GgufEntry, GgufHeader, GgufTensor } from "./header.ts";
import { countKey } from "./keys.ts";
import { readGgufHeader } from "./reader.ts";

export interface GgufModel {
  /** The file that was asked for. */
  readonly file: string;
  /** In order of `split.no`; one for a model in one file. */
  readonly shards: readonly GgufHeader[];
  /** Metadata of the first file. */
  readonly entries: ReadonlyMap<string, GgufEntry>;
  /** Of all files, in order. */
  readonly tensors: readonly GgufTensor[];
  readonly fileBytes: number;
  readonly version: number;
  readonly alignment: number;
  readonly littleEndian: boolean;
  readonly remarks: readonly string[];
}

/**
 * Reads the headers of a model; any file of a split set stands for the set.
 * @throws {GgufError} for a damaged file, a set whose files disagree, a tensor in two files.
 * @throws {UserError} for a missing file; a missing shard is named.
 */
export function readGguf(file: string): GgufModel {
  const header = readGgufHeader(file);
  const nShards = countKey(header, "split.count") ?? 1;
  return joinShards(file, nShards <= 1 ? [header] : readShards(header, nShards));
}

/** The name of one file of a set; `no` counts from 0. */
export function shardName(prefix: string, no: number, count: number): string {
  return `${prefix}-${String(no + 1).padStart(5, "0")}-of-${String(count).padStart(5, "0")}.gguf`;
}

function readShards(header: GgufHeader, nShards: number): GgufHeader[] {
  const { file } = header;
  if (nShards > 99_999) throw new GgufError(file, header.entries.get("split.count")?.range.offset ?? 0, "split.count", `${nShards} files, the limit is 99999`);
  const match = /^(.*)-\d{5}-of-\d{5}\.gguf$/s.exec(path.basename(file));
  if (match === null) throw new UserError(`${file} is one of ${nShards} files of a split model, but its name does not end in -00001-of-${String(nShards).padStart(5, "0")}.gguf; give the files their names back`);
  const names = Array.from({ length: nShards }, (_, no) => path.join(path.dirname(file), shardName(match[1] as string, no, nShards)));
  const missing = names.filter((name) => !fs.existsSync(name));
  if (missing.length > 0) throw new UserError(`${file} is one of ${nShards} files of a split model; missing: ${missing.map((name) => path.basename(name)).join(", ")}`);
  return names.map((name, no) => {
    const shard = path.resolve(name) === path.resolve(file) ? header : readGgufHeader(name);
    const is = countKey(shard, "split.no");
    if (is !== no) throw new GgufError(name, shard.entries.get("split.no")?.range.offset ?? 0, "split.no", is === undefined ? "the key is missing" : `says ${is}, its name says ${no} (counted from 0)`);
    const count = countKey(shard, "split.count");
    if (count !== nShards) throw new GgufError(name, shard.entries.get("split.count")?.range.offset ?? 0, "split.count", `says ${count ?? "nothing"}, ${path.basename(file)} says ${nShards}`);
    return shard;
  });
}

function joinShards(file: string, shards: readonly GgufHeader[]): GgufModel {
  const first = shards[0] as GgufHeader;
  const tensors = shards.flatMap((shard) => shard.tensors);
  const places = new Map<string, string>();
  for (const tensor of tensors) {
    const other = places.get(tensor.name);
    if (other !== undefined) throw new GgufError(tensor.file, tensor.offset, `tensor ${quote(tensor.name)}`, `is also in ${path.basename(other)}`);
    places.set(tensor.name, tensor.file);
  }
  if (shards.length > 1) {
    const total = countKey(first, "split.tensors.count");
    if (total !== tensors.length) throw new GgufError(first.file, first.entries.get("split.tensors.count")?.range.offset ?? 0, "split.tensors.count", `says ${total ?? "nothing"}, the ${shards.length} files hold ${tensors.length}`);
  }
  return {
    file,
    shards,
    entries: first.entries,
    tensors,
    fileBytes: shards.reduce((n, shard) => n + shard.fileBytes, 0),
    version: first.version,
    alignment: first.alignment,
    littleEndian: first.littleEndian,
    remarks: shards.flatMap((shard) => shard.remarks.map((remark) => (shards.length > 1 ? `${path.basename(shard.file)}: ${remark}` : remark))),
  };
}
