/** libllama's word on the files we write: each loads in a child process and decodes. */
import * as path from "node:path";
import { beforeAll, expect, test } from "vitest";
import { extractHead, graftHead, stripHead } from "../../src/gguf/edit.ts";
import { headOfGguf } from "../../src/gguf/head-source.ts";
import { readGguf } from "../../src/gguf/split.ts";
import { chooseType } from "../../src/gguf/synth/quantize-choice.ts";
import { namedShapes } from "../../src/gguf/synth/shapes.ts";
import { synthesize } from "../../src/gguf/synth/synthesize.ts";
import { bootstrapHead } from "../../src/hf/bootstrap.ts";
import { convertCheckpoint } from "../../src/hf/convert.ts";
import { headOfCheckpoint } from "../../src/hf/head-source.ts";
import { quantizeFile } from "../../src/llama/quantize.ts";
import { parseFileType } from "../../src/llama/quantize-types.ts";
import { tryModel } from "../../src/llama/try-model.ts";
import { embeddedCheckpoint } from "../../src/util/paths.ts";
import { deriveCheckpoint } from "../hf/checkpoints.ts";
import { splitFile, temporaryFolder } from "./files.ts";

const folder = temporaryFolder("loads");
const at = (name: string): string => path.join(folder, name);
const prompt = "def add(a, b):\n    return";

async function speak(file: string, text = prompt): Promise<string> {
  return (await tryModel({ modelPath: file, prompt: text, nTokens: 4, llamaDir: undefined })).text;
}

beforeAll(async () => {
  await convertCheckpoint({ checkpoint: embeddedCheckpoint, output: at("trunk.gguf"), outType: "BF16", mtp: "trunk" });
  await bootstrapHead({ checkpoint: embeddedCheckpoint, output: at("head"), ehProjInit: "hidden", dtype: "BF16" });
});

test("a converted checkpoint goes on with the code, and so does its graft", async () => {
  expect(await speak(at("trunk.gguf"))).toBe(" a + b\n");
  await graftHead({ input: at("trunk.gguf"), output: at("grafted.gguf") }, headOfCheckpoint(at("head"), "F16"));
  expect(await speak(at("grafted.gguf"))).toBe(" a + b\n");
});

test("a split set that we wrote is loaded from its first file", async () => {
  const parts = await splitFile(at("trunk.gguf"), at("set"), 3);
  expect(await speak(parts[0] as string)).toBe(" a + b\n");
});

test("fused experts in the multimodal wrapper convert to the same model", async () => {
  const checkpoint = await deriveCheckpoint(at("wrapped"), {
    fuseExperts: true,
    rename: (name) => name.replace(/^model\./, "model.language_model."),
    config: (config) => ({ model_type: "qwen3_5_moe", text_config: config }),
  });
  await convertCheckpoint({ checkpoint, output: at("wrapped.gguf"), outType: "F32", mtp: "trunk" });
  expect(await speak(at("wrapped.gguf"))).toBe(" a + b\n");
});

test("a dense model loads, with its head", async () => {
  const checkpoint = await deriveCheckpoint(at("dense"), {
    config: (config) => ({ ...config, model_type: "qwen3_5_text", intermediate_size: 256 }),
    rename: (name) => (/\.mlp\.(experts\.[1-7]|gate\.|shared)/.test(name) ? undefined : name.replace(".mlp.experts.0.", ".mlp.")),
  });
  await convertCheckpoint({ checkpoint, output: at("dense.gguf"), outType: "BF16", mtp: "trunk" });
  await bootstrapHead({ checkpoint, output: at("dense-head"), ehProjInit: "hidden", dtype: "BF16" });
  await graftHead({ input: at("dense.gguf"), output: at("dense-mtp.gguf") }, headOfCheckpoint(at("dense-head"), "BF16"));
  const [plain, grafted] = [await speak(at("dense.gguf")), await speak(at("dense-mtp.gguf"))];
  expect(plain.length).toBeGreaterThan(0);
  expect(grafted).toBe(plain);
});

test.each(["IQ4_XS", "Q4_K_M"])("a synthesized %s file decodes, whole, stripped and put together again", async (type) => {
  const file = at(`synth-${type}.gguf`);
  await synthesize({ shape: namedShapes.get("tiny") ?? expect.fail(), type, headType: "Q6_K", output: file, seed: 3 });
  const text = await speak(file, "the function returns");
  expect(text.length).toBeGreaterThan(0);
  await stripHead({ input: file, output: at(`bare-${type}.gguf`) });
  expect(await speak(at(`bare-${type}.gguf`), "the function returns")).toBe(text);
  await extractHead({ input: file, output: at(`alone-${type}.gguf`) });
  await graftHead({ input: at(`bare-${type}.gguf`), output: at(`again-${type}.gguf`) }, headOfGguf(readGguf(at(`alone-${type}.gguf`))));
  expect(await speak(at(`again-${type}.gguf`), "the function returns")).toBe(text);
});

test.each(["IQ4_XS", "Q4_K_M"])("synth types a %s file as llama-quantize does", async (name) => {
  const shape = { ...(namedShapes.get("tiny") ?? expect.fail()), nLayers: 8, isRecurrent: Array.from({ length: 8 }, (_, i) => (i + 1) % 4 !== 0), nHeads: 8 };
  await synthesize({ shape, type: "BF16", headType: "BF16", output: at(`source-${name}.gguf`), seed: 4 });
  await quantizeFile({ input: at(`source-${name}.gguf`), output: at(`quantized-${name}.gguf`), type: parseFileType(name), threads: 1 });
  const trunk = readGguf(at(`quantized-${name}.gguf`)).tensors.filter((t) => !t.name.startsWith("blk.8."));
  expect(trunk.map((t) => [t.name, t.type?.name])).toEqual(trunk.map((t) => [t.name, chooseType(t, name, shape).name]));
});
