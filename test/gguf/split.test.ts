import * as fs from "node:fs";
import * as path from "node:path";
import { beforeAll, expect, test } from "vitest";
import { scalarEntry } from "../../src/gguf/kv.ts";
import { readGguf } from "../../src/gguf/split.ts";
import { rewriteFile, splitFile, synthSmall, temporaryFolder, tensorFacts } from "./files.ts";

const folder = temporaryFolder("split");
let whole: string;
let parts: string[];

beforeAll(async () => {
  whole = await synthSmall(path.join(folder, "whole.gguf"));
  parts = await splitFile(whole, path.join(folder, "set"), 3);
});

/** A copy of the set in a folder of its own. */
function copySet(name: string): string[] {
  fs.mkdirSync(path.join(folder, name));
  return parts.map((part) => {
    const copy = path.join(folder, name, path.basename(part));
    fs.copyFileSync(part, copy);
    return copy;
  });
}

test("any file of a set stands for the set", () => {
  for (const part of parts) {
    const model = readGguf(part);
    expect(model.shards.map((shard) => path.basename(shard.file))).toEqual(["set-00001-of-00003.gguf", "set-00002-of-00003.gguf", "set-00003-of-00003.gguf"]);
    expect(model.entries.has("general.architecture")).toBe(true);
    expect(tensorFacts(part)).toEqual(tensorFacts(whole));
  }
});

test("missing files are named", () => {
  const set = copySet("missing");
  fs.rmSync(set[1] as string);
  fs.rmSync(set[2] as string);
  expect(() => readGguf(set[0] as string)).toThrow("one of 3 files of a split model; missing: set-00002-of-00003.gguf, set-00003-of-00003.gguf");
});

test("a file under another's name is found out", async () => {
  const set = copySet("swapped");
  fs.copyFileSync(parts[2] as string, set[1] as string);
  expect(() => readGguf(set[0] as string)).toThrow("split.no: says 2, its name says 1 (counted from 0)");
  fs.copyFileSync(parts[1] as string, set[1] as string);
  await rewriteFile(parts[2] as string, path.join(folder, "other.gguf"), { entries: { "split.count": scalarEntry("split.count", "u16", 1) } });
  fs.copyFileSync(path.join(folder, "other.gguf"), set[2] as string);
  expect(() => readGguf(set[0] as string)).toThrow("split.count: says 1, set-00001-of-00003.gguf says 3");
});

test("the total number of tensors must be that of the files", async () => {
  const set = copySet("total");
  await rewriteFile(parts[0] as string, path.join(folder, "first.gguf"), { entries: { "split.tensors.count": scalarEntry("split.tensors.count", "i32", 999) } });
  fs.copyFileSync(path.join(folder, "first.gguf"), set[0] as string);
  expect(() => readGguf(set[0] as string)).toThrow(/split\.tensors\.count: says 999, the 3 files hold \d+/);
});

test("a renamed file of a set says which name it needs", () => {
  const copy = path.join(folder, "renamed.gguf");
  fs.copyFileSync(parts[0] as string, copy);
  expect(() => readGguf(copy)).toThrow("its name does not end in -00001-of-00003.gguf");
});
