import * as fs from "node:fs";
import * as path from "node:path";
import { afterAll, beforeAll, expect, test } from "vitest";
import type { GgufTensor } from "../../src/gguf/header.ts";
import { readGguf } from "../../src/gguf/split.ts";
import { convertCheckpoint } from "../../src/hf/convert.ts";
import { readCheckpoint } from "../../src/hf/checkpoint.ts";
import type { HfTensor } from "../../src/hf/safetensors.ts";
import { openGgmlDevice, type GgmlDevice } from "../../src/llama/ggml.ts";
import { quantizeFile } from "../../src/llama/quantize.ts";
import { parseFileType } from "../../src/llama/quantize-types.ts";
import { checkpointTensors, writeHeadCheckpoint, writeHeadGguf } from "../../src/train/export.ts";
import { nElements, parameterSpecs } from "../../src/train/head-shape.ts";
import { bootstrapWeights, readHeadWeights, readTarget, type Target } from "../../src/train/target.ts";
import { readTensorValues } from "../../src/train/tensor-values.ts";
import { embeddedCheckpoint } from "../../src/util/paths.ts";
import { tinyHead, tinyTrunk } from "../llama/tiny-model.ts";
import { temporaryFolder } from "./captured.ts";

const folder = temporaryFolder();
let device: GgmlDevice;
let target: Target;
let weights: Map<string, Float32Array>;

beforeAll(async () => {
  device = openGgmlDevice({ device: "cpu" });
  target = readTarget(await tinyTrunk());
  // Every tensor its own, so that none can stand for another.
  weights = new Map([...bootstrapWeights(target, device)].map(([name, values], i) => [name, values.map((x, j) => x + 0.01 * Math.sin(i + j))]));
});
afterAll(() => {
  device.close();
  fs.rmSync(folder, { recursive: true });
});

test("a head written as GGUF has the tensors and keys of a converted one, and reads back as it was, in BF16", async () => {
  const file = path.join(folder, "head.gguf");
  await writeHeadGguf(file, target, weights, "BF16");
  const [written, reference] = [readGguf(file), readGguf(await tinyHead())];
  const describe = (tensors: typeof written.tensors): string[] => tensors.map((t) => `${t.name} ${t.shape.join("x")}`).toSorted();
  const ofReference = describe(reference.tensors);
  expect(describe(written.tensors)).toEqual([...ofReference, "blk.8.nextn.shared_head_norm.weight 256"].toSorted());
  const scalars = (g: typeof written): Record<string, unknown> => Object.fromEntries([...g.entries.values()].flatMap((e) => (e.kind === "scalar" ? [[e.key, e.value]] : [[e.key, e.length]])));
  expect(scalars(written)).toEqual(scalars(reference));
  const read = readHeadWeights(file, target.head, device);
  for (const { name } of parameterSpecs(target.head)) {
    const [want, got] = [weights.get(name) as Float32Array, read.get(name) as Float32Array];
    const worst = want.reduce((max, x, i) => Math.max(max, Math.abs(x - (got[i] as number)) / Math.max(Math.abs(x), 1e-3)), 0);
    expect(worst, name).toBeLessThan(1 / 128);
  }
});

test("written as mtp.* of the checkpoint, the converter makes the same GGUF of it", async () => {
  const output = path.join(folder, "checkpoint");
  const gguf = path.join(folder, "head.gguf");
  const back = path.join(folder, "back.gguf");
  await writeHeadGguf(gguf, target, weights, "F32");
  await writeHeadCheckpoint({ checkpoint: embeddedCheckpoint, output, weights, shape: target.head, dtype: "F32", force: false, provenance: { builder: "test" } });
  expect([...readCheckpoint(output).tensors.keys()].filter((name) => name.startsWith("mtp."))).toContain("mtp.layers.0.mlp.experts.7.gate_proj.weight");
  await convertCheckpoint({ checkpoint: output, output: back, outType: "F32", mtp: "mtp" });
  const [a, b] = [readHeadWeights(gguf, target.head, device), readHeadWeights(back, target.head, device)];
  for (const { name, ne } of parameterSpecs(target.head)) {
    const [want, got] = [a.get(name) as Float32Array, b.get(name) as Float32Array];
    expect(got).toHaveLength(nElements(ne));
    // Norms are stored as weight - 1: one rounding each way.
    const worst = want.reduce((max, x, i) => Math.max(max, Math.abs(x - (got[i] as number))), 0);
    expect(worst, name).toBeLessThan(name.includes("norm") ? 1e-6 : 1e-30);
  }
});

test("experts are fused where the trunk's are: gate rows, then up rows, of each expert", () => {
  const trunk = readCheckpoint(embeddedCheckpoint);
  const [name, tensor] = [...trunk.tensors][0] as [string, HfTensor];
  const fused = checkpointTensors({ ...trunk, tensors: new Map([[name, tensor], ["model.layers.0.mlp.experts.gate_up_proj", tensor]]) }, target.head, weights);
  const gateUp = fused.find((t) => t.name === "mtp.layers.0.mlp.experts.gate_up_proj");
  const { nExpert, nFfExpert, nEmbd } = target.head;
  expect(gateUp?.shape).toEqual([nExpert, 2 * nFfExpert, nEmbd]);
  const values = gateUp?.data as Float32Array;
  const at = (expert: number, row: number, column: number): number => values[(expert * 2 * nFfExpert + row) * nEmbd + column] as number;
  const of = (part: string, expert: number, row: number, column: number): number => (weights.get(`ffn_${part}_exps.weight`) as Float32Array)[(expert * nFfExpert + row) * nEmbd + column] as number;
  for (const [expert, row, column] of [[0, 0, 0], [3, 17, 5], [7, 255, 255]] as const) {
    expect(at(expert, row, column)).toBe(of("gate", expert, row, column));
    expect(at(expert, nFfExpert + row, column)).toBe(of("up", expert, row, column));
  }
  expect(fused.find((t) => t.name === "mtp.layers.0.mlp.experts.down_proj")?.shape).toEqual([nExpert, nEmbd, nFfExpert]);
  expect(fused.filter((t) => t.name.includes("experts."))).toHaveLength(2);
});

test("quantized tensors are read as ggml dequantizes them", async () => {
  const output = path.join(folder, "q8.gguf");
  await quantizeFile({ input: await tinyTrunk(), output, type: parseFileType("Q8_0") });
  const tensorOf = (file: string): GgufTensor => readGguf(file).tensors.find((t) => t.name === "output.weight") as GgufTensor;
  expect(tensorOf(output).type?.name).toBe("Q8_0");
  const [exact, rounded] = [readTensorValues(device, tensorOf(await tinyTrunk())), readTensorValues(device, tensorOf(output))];
  expect(rounded).toHaveLength(exact.length);
  const error = Math.sqrt(exact.reduce((sum, x, i) => sum + (x - (rounded[i] as number)) ** 2, 0) / exact.reduce((sum, x) => sum + x * x, 0));
  expect(error).toBeGreaterThan(0);
  expect(error).toBeLessThan(0.01);
});
