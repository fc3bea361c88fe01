import * as path from "node:path";
import { beforeAll, expect, test } from "vitest";
import { graftHead } from "../../src/gguf/edit.ts";
import { headOfGguf } from "../../src/gguf/head-source.ts";
import { readGguf } from "../../src/gguf/split.ts";
import { auditCheckpoint } from "../../src/hf/audit.ts";
import { bootstrapHead } from "../../src/hf/bootstrap.ts";
import { convertCheckpoint } from "../../src/hf/convert.ts";
import { headOfCheckpoint } from "../../src/hf/head-source.ts";
import { embeddedCheckpoint } from "../../src/util/paths.ts";
import { sha256, temporaryFolder } from "../gguf/files.ts";
import * as fs from "node:fs";

const folder = temporaryFolder("head");
const at = (name: string): string => path.join(folder, name);

beforeAll(async () => {
  await bootstrapHead({ checkpoint: embeddedCheckpoint, output: at("head"), ehProjInit: "mean", dtype: "BF16" });
  await convertCheckpoint({ checkpoint: at("head"), output: at("head.gguf"), outType: "BF16", mtp: "mtp" });
  await convertCheckpoint({ checkpoint: embeddedCheckpoint, output: at("trunk.gguf"), outType: "BF16", mtp: "trunk" });
});

test("a head grafts alike from a checkpoint and from its converted file", async () => {
  await graftHead({ input: at("trunk.gguf"), output: at("from-hf.gguf") }, headOfCheckpoint(at("head"), "BF16"));
  await graftHead({ input: at("trunk.gguf"), output: at("from-gguf.gguf") }, headOfGguf(readGguf(at("head.gguf"))));
  const [hf, gguf] = [at("from-hf.gguf"), at("from-gguf.gguf")].map((file) => readGguf(file));
  expect(hf?.tensors.map((t) => [t.name, t.typeId, t.offset])).toHaveLength(169);
  const data = (file: string, model: typeof hf): string => sha256(fs.readFileSync(file).subarray(model?.shards[0]?.dataOffset));
  expect(data(at("from-hf.gguf"), hf)).toBe(data(at("from-gguf.gguf"), gguf));
});

test("a checkpoint without a head says how to build one", () => {
  expect(() => headOfCheckpoint(embeddedCheckpoint, "BF16")).toThrow("holds no mtp.* tensor; foretoken bootstrap builds a head");
});

test("the audit of a checkpoint tells promise from presence", () => {
  const without = auditCheckpoint(embeddedCheckpoint);
  expect(without.mtp).toMatchObject({ nAdvertised: 1, nTensors: 0 });
  expect(without.mtp.advice).toContain("config.json promises 1 MTP layer (mtp_num_hidden_layers), the checkpoint holds no mtp.* tensor");
  expect(without.nParameters).toBe(18_398_128);
  const built = auditCheckpoint(at("head"));
  expect(built.mtp).toMatchObject({ nAdvertised: 1, missing: [] });
  expect(built.mtp.nTensors).toBeGreaterThan(20);
});
