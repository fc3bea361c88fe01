/** Reading a file and writing it again gives the same bytes, for every kind of file that the project makes. */
import * as fs from "node:fs";
import * as path from "node:path";
import { beforeAll, expect, test } from "vitest";
import { extractHead, graftHead, stripHead } from "../../src/gguf/edit.ts";
import { headOfGguf } from "../../src/gguf/head-source.ts";
import { readRange } from "../../src/gguf/kv.ts";
import { readGgufHeader } from "../../src/gguf/reader.ts";
import { readGguf } from "../../src/gguf/split.ts";
import { copiedTensor, writeGguf } from "../../src/gguf/writer.ts";
import { bootstrapHead } from "../../src/hf/bootstrap.ts";
import { convertCheckpoint } from "../../src/hf/convert.ts";
import { readSafetensors, readSafetensorsMetadata, writeSafetensors } from "../../src/hf/safetensors.ts";
import { embeddedCheckpoint } from "../../src/util/paths.ts";
import { sha256, splitFile, synthSmall, temporaryFolder } from "./files.ts";

const folder = temporaryFolder("again");
const at = (name: string): string => path.join(folder, name);
const hashOf = (file: string): string => sha256(fs.readFileSync(file));

beforeAll(async () => {
  await convertCheckpoint({ checkpoint: embeddedCheckpoint, output: at("trunk.gguf"), outType: "F16", mtp: "trunk" });
  await bootstrapHead({ checkpoint: embeddedCheckpoint, output: at("head"), ehProjInit: "hidden", dtype: "BF16" });
  await convertCheckpoint({ checkpoint: at("head"), output: at("head.gguf"), outType: "BF16", mtp: "mtp" });
  await graftHead({ input: at("trunk.gguf"), output: at("grafted.gguf") }, headOfGguf(readGguf(at("head.gguf"))));
  await stripHead({ input: at("grafted.gguf"), output: at("stripped.gguf") });
  await extractHead({ input: at("grafted.gguf"), output: at("extracted.gguf") });
  await synthSmall(at("synth.gguf"), {}, 1, "Q4_K_M");
  await splitFile(at("synth.gguf"), at("set"), 2);
});

test.each(["trunk", "head", "grafted", "stripped", "extracted", "synth", "set-00001-of-00002", "set-00002-of-00002"])("%s.gguf", async (name) => {
  const header = readGgufHeader(at(`${name}.gguf`));
  const { alignment, version } = header;
  await writeGguf(at("again.gguf"), { entries: [...header.entries.values()], tensors: header.tensors.map((t) => copiedTensor(t)), alignment, version });
  expect(hashOf(at("again.gguf"))).toBe(hashOf(at(`${name}.gguf`)));
});

test("model.safetensors of a bootstrap head", async () => {
  const file = path.join(at("head"), "model.safetensors");
  const tensors = readSafetensors(file).toSorted((a, b) => a.offset - b.offset);
  const metadata = readSafetensorsMetadata(file);
  expect(metadata).toEqual({ format: "pt", "foretoken.builder": "bootstrap", "foretoken.source_layer": "7", "foretoken.eh_proj_init": "hidden" });
  await writeSafetensors(at("again.safetensors"), tensors.map((t) => ({ ...t, data: () => [readRange(t)] })), { metadata });
  expect(hashOf(at("again.safetensors"))).toBe(hashOf(file));
});
