import { createHash } from "node:crypto";
import * as fs from "node:fs";
import * as os from "node:os";
import * as path from "node:path";
import { afterAll, beforeAll, describe, expect, test } from "vitest";
import { readRange, arrayEntry, u32Entry } from "../../src/gguf/kv.ts";
import type { GgufHeader, GgufTensor } from "../../src/gguf/header.ts";
import { readGgufHeader } from "../../src/gguf/reader.ts";
import { knownType } from "../../src/gguf/types.ts";
import { copiedTensor, newTensor, writeGguf } from "../../src/gguf/writer.ts";
import { normalise, readImatrix } from "../../src/llama/imatrix.ts";
import { parseQuantizeLine } from "../../src/llama/quantize-log.ts";
import { planRules } from "../../src/llama/quantize-rules.ts";
import { compilePattern, parseFileType, parseTensorRule, readTensorRules } from "../../src/llama/quantize-types.ts";
import { quantizeFile, type QuantizeOptions } from "../../src/llama/quantize.ts";
import { UserError } from "../../src/util/errors.ts";
import { smallWithHead } from "./tiny-model.ts";

const folder = fs.mkdtempSync(path.join(os.tmpdir(), "foretoken-quantize-"));
const file = (name: string): string => path.join(folder, name);
afterAll(() => fs.rmSync(folder, { recursive: true, force: true }));

const hashOf = (tensor: GgufTensor): string => createHash("sha256").update(readRange({ file: tensor.file, offset: tensor.offset, sizeBytes: tensor.sizeBytes })).digest("hex");
const headHashes = (header: GgufHeader): Record<string, string> =>
  Object.fromEntries(header.tensors.filter((t) => t.name.startsWith("blk.8.")).map((t) => [t.name, `${t.type?.name} ${hashOf(t)}`]));

let model: string;
beforeAll(async () => {
  model = await smallWithHead();
});
const run = (options: Partial<QuantizeOptions> & { type: QuantizeOptions["type"] }): ReturnType<typeof quantizeFile> => quantizeFile({ input: model, threads: 1, ...options });

async function messageOf(promise: Promise<unknown>): Promise<string> {
  try {
    await promise;
  } catch (error) {
    expect(error).toBeInstanceOf(UserError);
    expect((error as Error).message).not.toContain("\n");
    return (error as Error).message;
  }
  throw new Error("no error was thrown");
}

describe("quantize", () => {
  test("a grafted head stays bit for bit through a quantization and a requantization, by copy rules and by types in a file", async () => {
    const before = readGgufHeader(model);
    const first = file("first.gguf");
    const report = await run({ output: first, type: parseFileType("Q4_K_M"), rules: [parseTensorRule("blk\\.8\\.=copy", "")] });
    const middle = readGgufHeader(first);
    expect(headHashes(middle)).toEqual(headHashes(before));
    expect(report.rules[0]).toMatchObject({ nMatched: 19, nApplied: 11, nKept: 8 });
    expect(report.result.sizeBytes).toBe(middle.tensors.reduce((n, t) => n + t.sizeBytes, 0));
    expect(report.nByType["Q4_K"]).toBeGreaterThan(2);

    // As the trained report does it: a file of PATTERN=TYPE lines with the types the head has.
    const rules = file("types.txt");
    fs.writeFileSync(rules, `# the head\n${middle.tensors.filter((t) => t.name.startsWith("blk.8.")).map((t) => `^${t.name.replaceAll(".", "\\.")}$=${t.type?.name.toLowerCase()}`).join("\n")}\n`);
    const second = file("second.gguf");
    const requantized = await run({ input: first, output: second, type: parseFileType("Q8_0"), rules: readTensorRules(rules), allowRequantize: true });
    expect(headHashes(readGgufHeader(second))).toEqual(headHashes(before));
    expect(requantized.source.sizeBytes).toBe(report.result.sizeBytes);
    expect(requantized.nByType["Q8_0"]).toBeGreaterThan(5);
  });

  test("a dry run says what the run then does, and writes nothing", async () => {
    const output = file("dry.gguf");
    const dry = await run({ output, type: parseFileType("iq4_xs"), dryRun: true });
    expect(fs.existsSync(output)).toBe(false);
    const real = await run({ output, type: parseFileType("iq4_xs") });
    expect(real.result).toEqual(dry.result);
    expect(real.nByType).toEqual(dry.nByType);
    expect(real.source.bpw).toBeGreaterThan(16);
    expect(fs.readdirSync(folder).filter((name) => name.includes("tmp"))).toEqual([]);
  });

  test("COPY copies, output and embedding types are taken", async () => {
    const copy = file("copy.gguf");
    await run({ output: copy, type: parseFileType("copy") });
    const hashes = (name: string): Map<string, string> => new Map(readGgufHeader(name).tensors.map((t) => [t.name, hashOf(t)]));
    expect(hashes(copy)).toEqual(hashes(model));
    const dry = await run({ type: parseFileType("q4_0"), dryRun: true, outputType: knownType("Q6_K"), embeddingType: knownType("Q5_K"), pure: true });
    expect(dry.nByType).toMatchObject({ Q6_K: 1, Q5_K: 1 });
    expect(dry.nByType["Q8_0"]).toBeUndefined();
  });

  test("rows that do not fit a block are named with what they became", async () => {
    const odd = file("odd.gguf");
    const header = readGgufHeader(model);
    const extra = newTensor("blk.0.odd.weight", [160, 4], knownType("F32"), () => [new Uint8Array(new Float32Array(640).fill(0.5).buffer)]);
    await writeGguf(odd, { entries: [...header.entries.values()], tensors: [...header.tensors.map((t) => copiedTensor(t)), extra] });
    const report = await run({ input: odd, type: parseFileType("IQ4_XS"), dryRun: true });
    expect(report.fallbacks).toEqual([{ tensor: "blk.0.odd.weight", rowLength: 160, wanted: "IQ4_XS", got: "IQ4_NL" }]);
    expect(report.nByType["IQ4_NL"]).toBe(1);
  });

  test("an importance matrix: what lacks rows is named, a wrong width is refused, low-bit types need one", async () => {
    const quantized = readGgufHeader(model).tensors.filter((t) => t.shape.length > 1);
    const write = async (name: string, tensors: readonly GgufTensor[], factor: number): Promise<string> => {
      await writeGguf(file(name), {
        entries: [arrayEntry("imatrix.datasets", "string", ["text.txt"]), u32Entry("imatrix.chunk_count", 4), u32Entry("imatrix.chunk_size", 512)],
        tensors: tensors.flatMap((t) => {
          const [columns = 1, experts = 1] = [t.shape[0], t.shape[2]];
          const sums = Float32Array.from({ length: columns * experts * factor }, (_, i) => 2 * (1 + (i % 5)));
          const f32 = (suffix: string, shape: number[], data: Float32Array) => newTensor(`${t.name}.${suffix}`, shape, knownType("F32"), () => [new Uint8Array(data.buffer)]);
          return [f32("in_sum2", [columns * factor, experts], sums), f32("counts", [1, experts], new Float32Array(experts).fill(2))];
        }),
      });
      return file(name);
    };
    const type = parseFileType("IQ3_XXS");
    const keepHead = parseTensorRule("blk.8.=copy", "");
    expect(await messageOf(run({ output: file("low.gguf"), type, pure: true, rules: [keepHead] }))).toContain("give --imatrix");
    expect(fs.existsSync(file("low.gguf"))).toBe(false);
    const without = "blk.0.attn_gate.weight";
    const imatrix = await write("imatrix.gguf", quantized.filter((t) => t.name !== without), 1);
    expect(readImatrix(imatrix).entries.get("blk.3.attn_q.weight")?.slice(0, 3)).toEqual(Float32Array.from([1, 2, 3]));
    const rules = [keepHead, parseTensorRule("blk.0.attn_gate=q4_k", "")];
    const report = await run({ output: file("low.gguf"), type, pure: true, imatrix, rules });
    expect(report.withoutImatrix).toEqual([without]);
    expect(readGgufHeader(file("low.gguf")).entries.get("quantize.imatrix.chunks_count")).toMatchObject({ value: 4 });
    const wide = await write("wide.gguf", quantized, 2);
    expect(await messageOf(run({ output: file("x.gguf"), type, imatrix: wide, pure: true, rules: [keepHead] }))).toMatch(/512 values for .*, which needs 256; it was made from another model/);
    expect(await messageOf(run({ type, dryRun: true, imatrix: model }))).toContain("is it an importance matrix");
  });

  test("an abort of libllama is one line, and leaves nothing behind", async () => {
    const message = await messageOf(run({ output: file("abort.gguf"), type: parseFileType("Q8_0"), embeddingType: knownType("IQ2_XXS") }));
    expect(message).toMatch(/quantize of .* died in libllama: .*GGML_ASSERT/);
    expect(fs.readdirSync(folder).filter((name) => name.includes("abort"))).toEqual([]);
  });

  test("wrong use", async () => {
    expect(await messageOf(run({ output: file("x.gguf"), type: parseFileType("Q8_0"), rules: [parseTensorRule("nothing=q8_0", "")] }))).toContain("nothing matches no tensor");
    expect(await messageOf(run({ output: model, type: parseFileType("Q8_0") }))).toContain("is the input");
    expect(await messageOf(run({ type: parseFileType("Q8_0") }))).toContain("--dry-run");
    expect(await messageOf(run({ type: parseFileType("F16"), dryRun: true, rules: [parseTensorRule("a=q8_0", "")] }))).toContain("takes no --tensor-type rules");
    expect(await messageOf(run({ input: file("second.gguf"), output: file("x.gguf"), type: parseFileType("Q4_0") }))).toContain("add --allow-requantize");
    expect(() => parseFileType("iq4_xz")).toThrow("did you mean IQ4_XS?");
    expect(() => parseTensorRule("ffn=q9_9", "--tensor-type")).toThrow("unknown tensor type q9_9");
    expect(() => parseTensorRule("ffn", "--tensor-type")).toThrow("PATTERN=TYPE");
    expect(() => parseTensorRule("ffn=q8_k", "--tensor-type")).toThrow("not a type that tensors are stored in");
  });

  test("stops at the signal, and leaves nothing behind", async () => {
    const controller = new AbortController();
    const promise = run({ output: file("stopped.gguf"), type: parseFileType("Q4_K_M"), signal: controller.signal, onTensor: () => controller.abort(new UserError("stopped by SIGINT")) });
    expect(await messageOf(promise)).toBe("stopped by SIGINT");
    expect(fs.readdirSync(folder).filter((name) => name.includes("stopped"))).toEqual([]);
  });
});

describe("rules", () => {
  const tensor = (name: string, shape: number[], type: string): GgufTensor => ({ name, shape, typeId: knownType(type).id, type: knownType(type), nElements: 1, file: "", offset: 0, sizeBytes: 1 });
  const tensors = [tensor("blk.40.attn_q.weight", [256, 256], "Q6_K"), tensor("blk.40.attn_norm.weight", [256], "F32"), tensor("blk.4.attn_q.weight", [256, 256], "BF16"), tensor("output.weight", [256, 9], "BF16")];

  test("the first rule that matches wins; copy becomes a rule a tensor", () => {
    const plan = planRules([parseTensorRule("blk\\.40\\.=copy", ""), parseTensorRule("ATTN_Q=q8_0", ""), parseTensorRule("attn_q=q4_0", "")], tensors, false);
    expect(plan.reports.map(({ nMatched, nApplied, nKept }) => [nMatched, nApplied, nKept])).toEqual([
      [2, 1, 1],
      [2, 1, 0],
      [2, 0, 0],
    ]);
    expect(plan.overrides[0]).toEqual({ pattern: "^blk\\.40\\.attn_q\\.weight$", typeId: knownType("Q6_K").id });
    expect(plan.overrides[1]).toEqual({ pattern: "attn_q", typeId: knownType("Q8_0").id });
  });

  test("patterns are std::regex: searched anywhere, lower case, POSIX classes", () => {
    expect(compilePattern("blk\\.[[:digit:]]+\\.ATTN").test("xblk.12.attn_q")).toBe(true);
    expect(compilePattern("blk.4.").test("blk.40.attn")).toBe(true);
    expect(() => compilePattern("a(")).toThrow("not a regular expression");
  });
});

test("lines of llama-quant.cpp", () => {
  expect(parseQuantizeLine("[   7/ 168] blk.0.ffn_down_exps.weight           - [   256,    256,      8,      1], type =   bf16, size =     1.00 MiB ->     0.41 MiB (q6_K)")).toEqual({ kind: "tensor", index: 7, count: 168, tensor: "blk.0.ffn_down_exps.weight", to: "Q6_K" });
  expect(parseQuantizeLine("[   7/ 168] a.weight - [   256,    256,      8,      1], type =   bf16, converting to iq4_xs .. size =     1.00 MiB ->     0.41 MiB")).toMatchObject({ to: "IQ4_XS" });
  expect(parseQuantizeLine("[   8/ 168] a_norm.weight - [   256,      1,      1,      1], type =    f32, size =    0.001 MiB")).toMatchObject({ to: undefined });
  expect(parseQuantizeLine("warning: blk.0.x.weight                       - ncols    160 not divisible by 256 (required for type  iq4_xs) -> falling back to  iq4_nl")).toEqual({ kind: "fallback", tensor: "blk.0.x.weight", rowLength: 160, wanted: "IQ4_XS", got: "IQ4_NL" });
  expect(parseQuantizeLine("[   1/ 168] a - [1], type = q4_K, llama_model_quantize: failed to quantize: requantizing from type q4_K is disabled")).toEqual({ kind: "failure", reason: "requantizing from type q4_K is disabled" });
  expect(parseQuantizeLine("llama_model_loader: - type bf16:   98 tensors")).toBeUndefined();
});

describe("imatrix files", () => {
  test("normalises by the counts of each expert; an unseen expert weighs columns alike", () => {
    expect([...normalise(Float32Array.from([2, 4, 9, 9]), Float32Array.from([2, 0]))]).toEqual([1, 2, 1, 1]);
  });

  test("reads the older format, and refuses what is cut off", () => {
    const name = Buffer.from("blk.0.attn_q.weight");
    const int = (n: number): Buffer => Buffer.from(Int32Array.from([n]).buffer);
    const bytes = Buffer.concat([int(1), int(name.length), name, int(2), int(2), Buffer.from(Float32Array.from([2, 8]).buffer), int(7), int(3), Buffer.from("abc")]);
    const legacy = file("legacy.dat");
    fs.writeFileSync(legacy, bytes);
    const imatrix = readImatrix(legacy);
    expect([...(imatrix.entries.get(name.toString()) ?? [])]).toEqual([1, 4]);
    expect([imatrix.nChunks, imatrix.datasets]).toEqual([7, ["abc"]]);
    fs.writeFileSync(legacy, bytes.subarray(0, 30));
    expect(() => readImatrix(legacy)).toThrow("not an importance matrix, or is cut off");
    fs.writeFileSync(legacy, Buffer.alloc(64, 255));
    expect(() => readImatrix(legacy)).toThrow("not an importance matrix");
  });
});
