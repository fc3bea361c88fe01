/** Edited graphs compute what unedited ones do: on a CPU, where nothing is gained by it, with a file of every shape that counts. */
import * as fs from "node:fs";
import * as os from "node:os";
import * as path from "node:path";
import koffi from "koffi";
import { afterAll, beforeAll, describe, expect, test } from "vitest";
import { graphEditNames, type GraphEditName } from "../../src/config/engine-options.ts";
import { namedShapes } from "../../src/gguf/synth/shapes.ts";
import { synthesize } from "../../src/gguf/synth/synthesize.ts";
import { knownType } from "../../src/gguf/types.ts";
import { createBackend, type BackendOptions, type LlamaBackend } from "../../src/llama/backend.ts";
import type { LlamaContext } from "../../src/llama/context.ts";
import { createContext } from "../../src/llama/create-context.ts";
import { freeShared } from "../../src/llama/device-matrix.ts";
import { EditMatrices } from "../../src/llama/edit-matrices.ts";
import { automaticEdits, usefulEdits } from "../../src/llama/graph-edits.ts";
import { tensorAt, words } from "../../src/llama/graph-surgery.ts";
import { readModelFacts } from "../../src/llama/head-check.ts";
import { captureLog, loadLlama } from "../../src/llama/library.ts";
import { loadModel, type Model } from "../../src/llama/model.ts";
import { sharedMatrixMemory, SharedMatrices } from "../../src/llama/shared-matrices.ts";

const folder = fs.mkdtempSync(path.join(os.tmpdir(), "graph-edits-"));
afterAll(() => fs.rmSync(folder, { recursive: true }));
const modelPath = path.join(folder, "tiny.gguf");
const shape = namedShapes.get("tiny") ?? expect.fail();
const nRecurrent = shape.isRecurrent.filter(Boolean).length;
/** Of linear attention all but the last product, which is one for each sequence; of attention and shared experts all; the LM head is left alone. */
const nFlat = nRecurrent * 4 + (shape.nLayers - nRecurrent) * 4 + shape.nLayers * 3;

beforeAll(async () => {
  await synthesize({ shape, type: "IQ4_XS", headType: "Q6_K", output: modelPath, seed: 7 });
});

const options: BackendOptions = { modelPath, useHead: true, nSlots: 6, ctxSize: 1536, threads: 1, nMax: 2, plainTarget: true, targetSampling: "device-greedy", draftSampling: "device-greedy", device: "cpu" };
const noneChanged = { "bf16-copies": 0, "bf16-head": 0, "contiguous-conv": 0, "f16-copies": 0, "flat-products": 0, "joined-norms": 0, "joined-products": 0, "joined-snapshots": 0, "split-experts": 0 };
const edited = (graphEdits: readonly GraphEditName[], more: Partial<BackendOptions> = {}): LlamaBackend => createBackend({ ...options, graphEdits, ...more });

interface Decoded {
  readonly tokens: number[];
  readonly hidden: Float32Array;
}

/** Steps of some sequences and rows each, one after the other, on the target. */
function decodeSteps({ target }: LlamaBackend, steps: readonly (readonly [nSeqs: number, nRows: number])[], afterEach: () => void = () => {}): Decoded[] {
  target.setHiddenOutput(true);
  const at = Array.from({ length: 6 }, () => 0);
  return steps.map(([nSeqs, nRows]) => {
    const { rows } = target;
    rows.n = 0;
    for (let seq = 0; seq < nSeqs; seq++) {
      for (let i = 0; i < nRows; i++) {
        const row = rows.n++;
        rows.positions[row] = at[seq] as number;
        rows.tokens[row] = 260 + ((seq * 131 + (at[seq] as number) * 17) % 700);
        at[seq] = (at[seq] as number) + 1;
        rows.seqs[row] = seq;
        rows.outputs[row] = 1;
      }
    }
    target.decode();
    const tokens = Array.from({ length: rows.n }, (_, row) => target.greedyToken(row));
    afterEach();
    return { tokens, hidden: target.hiddenAll().slice() };
  });
}

const steps = [[6, 1], [6, 2], [6, 3], [6, 3], [2, 2], [5, 3], [6, 1]] as const;

function difference(a: readonly Decoded[], b: readonly Decoded[]): number {
  let [square, norm] = [0, 0];
  a.forEach(({ hidden }, i) => hidden.forEach((x, j) => {
    const y = b[i]?.hidden[j] as number;
    square += (x - y) ** 2;
    norm += y ** 2;
  }));
  return Math.sqrt(square / norm);
}

describe("edits of libllama's graphs", () => {
  let plain: Decoded[];
  beforeAll(() => {
    using backend = edited([]);
    expect(backend.target.graphEdits).toBeUndefined();
    plain = decodeSteps(backend, steps);
  });

  test("a copy into order before the convolution changes no bit, and is made where four sequences or more have several rows", () => {
    using backend = edited(["contiguous-conv"]);
    const counts: number[] = [];
    const decoded = decodeSteps(backend, steps, () => counts.push(backend.target.graphEdits?.counts["contiguous-conv"] ?? -1));
    expect(decoded).toEqual(plain);
    expect(counts).toEqual([0, nRecurrent, nRecurrent, nRecurrent, 0, nRecurrent, 0]);
    expect(backend.editProblem).toBeUndefined();
  });

  test("BF16 copies of all matrices outside of experts are taken from nine rows on, and say the same but for rounding", () => {
    using backend = edited(["bf16-copies"]);
    const counts: number[] = [];
    const decoded = decodeSteps(backend, steps, () => counts.push(backend.target.graphEdits?.counts["bf16-copies"] ?? -1));
    expect(counts).toEqual([0, nFlat, nFlat, nFlat, 0, nFlat, 0]);
    expect(decoded[0]).toEqual(plain[0]);
    expect(decoded[1]).not.toEqual(plain[1]);
    const error = difference(decoded, plain);
    expect(error).toBeGreaterThan(0);
    expect(error).toBeLessThan(0.05);
  });

  test("both at once are the copies' numbers", () => {
    using copies = edited(["bf16-copies"]);
    using both = edited(["bf16-copies", "contiguous-conv"]);
    expect(decodeSteps(both, steps)).toEqual(decodeSteps(copies, steps));
    expect([both.target.graphEdits?.counts, both.editProblem]).toEqual([noneChanged, undefined]);
  });

  test("experts of nine rows and more are computed in parts, to the same numbers", () => {
    using backend = edited(["split-experts"]);
    const counts: number[] = [];
    const decoded = decodeSteps(backend, steps, () => counts.push(backend.target.graphEdits?.counts["split-experts"] ?? -1));
    expect(counts).toEqual([0, shape.nLayers, shape.nLayers, shape.nLayers, 0, shape.nLayers, 0]);
    expect(difference(decoded, plain)).toBeLessThan(1e-3);
    expect(decoded.map(({ tokens }) => tokens)).toEqual(plain.map(({ tokens }) => tokens));
  });

  test("of more than eight rows of experts none is computed as such, and each layer has three products", () => {
    const { base } = loadLlama({ device: "cpu" });
    const opOf = base.func("ggml_op_desc", "str", ["void *"]) as (tensor: bigint) => string;
    let rows: number[] = [];
    const callback = koffi.register((tensor: bigint, isQuestion: boolean) => {
      if (isQuestion && opOf(tensor) === "MUL_MAT_ID") rows.push(Number(tensorAt(tensor)[words.ne2]));
      return false;
    }, koffi.pointer(koffi.proto("bool", ["void *", "bool", "void *"])));
    try {
      using backend = edited(["split-experts"], { evalCallback: callback, useHead: false, plainTarget: false });
      const seen: number[][] = [];
      decodeSteps(backend, [[6, 3], [3, 3], [5, 2], [4, 2]], () => {
        seen.push(rows);
        rows = [];
      });
      const each = (...parts: number[]): number[] => Array.from({ length: shape.nLayers }, () => parts.flatMap((n) => [n, n, n])).flat();
      expect(seen).toEqual([each(3), each(3), each(4, 2), each(8)]);
    } finally {
      koffi.unregister(callback);
    }
  });

  test("the last product of linear attention is one of all rows where four sequences or more are decoded", () => {
    using backend = edited(["flat-products"]);
    const counts: number[] = [];
    const decoded = decodeSteps(backend, [...steps, [4, 1], [3, 2]], () => counts.push(backend.target.graphEdits?.counts["flat-products"] ?? -1));
    expect(counts).toEqual([...steps.map(([nSeqs]) => (nSeqs < 4 ? 0 : nRecurrent)), nRecurrent, 0]);
    expect(difference(decoded.slice(0, steps.length), plain)).toBeLessThan(1e-3);
  });

  test("routers take F16 copies in steps of 4 to 16 rows, and say the same but for rounding", () => {
    using backend = edited(["f16-copies"]);
    const counts: number[] = [];
    const decoded = decodeSteps(backend, steps, () => counts.push(backend.target.graphEdits?.counts["f16-copies"] ?? -1));
    expect(counts).toEqual(steps.map(([nSeqs, nRows]) => (nSeqs * nRows >= 4 && nSeqs * nRows <= 16 ? shape.nLayers : 0)));
    const error = difference(decoded, plain);
    expect(error).toBeGreaterThan(0);
    expect(error).toBeLessThan(0.01);
    const { rows } = backend.target;
    rows.n = 3;
    for (let row = 0; row < 3; row++) [rows.tokens[row], rows.positions[row], rows.seqs[row], rows.outputs[row]] = [300 + row, 15 + row, 0, 1];
    backend.target.decode();
    expect(backend.target.graphEdits?.counts["f16-copies"]).toBe(0);
  });

  test("the LM head takes a BF16 copy for 2 to 16 rows, of drafts too, unless they have a shorter one", () => {
    using backend = edited(["bf16-head"]);
    const counts: number[] = [];
    const decoded = decodeSteps(backend, [...steps, [1, 1], [1, 2]], () => counts.push(backend.target.graphEdits?.counts["bf16-head"] ?? -1));
    expect(counts).toEqual([...steps.map(([nSeqs, nRows]) => (nSeqs * nRows <= 16 ? 1 : 0)), 0, 1]);
    // Hidden rows are those before it; of random logits the greatest seldom change.
    expect(decoded.slice(0, steps.length).map(({ hidden }) => hidden)).toEqual(plain.map(({ hidden }) => hidden));
    const [a, b] = [decoded, plain].map((all) => all.slice(0, steps.length).flatMap(({ tokens }) => tokens)) as [number[], number[]];
    expect(a.filter((token, i) => token === b[i]).length / a.length).toBeGreaterThan(0.9);
    expect(backend.heads[0]?.graphEdits).toBeDefined();
    using short = edited(["bf16-head"], { draftVocab: 300 });
    expect([short.heads[0]?.graphEdits, short.editProblem]).toEqual([undefined, undefined]);
  });

  const joinedSteps = [[1, 1], [1, 3], [2, 2], [3, 2], [6, 1], [2, 3], [6, 3], [1, 1], [2, 3], [1, 2]] as const;
  const joinedEdits = (["joined-norms", "joined-products", "joined-snapshots"] as const).flatMap((name) => (["on", "off"] as const).map((flashAttn) => ({ name, flashAttn })));
  test.each(joinedEdits)("$name: the same numbers, whatever the shape, flash attention $flashAttn", ({ name, flashAttn }) => {
    using unedited = edited([], { flashAttn });
    using backend = edited([name], { flashAttn });
    const counts: number[] = [];
    const decoded = decodeSteps(backend, joinedSteps, () => counts.push(backend.target.graphEdits?.counts[name] ?? -1));
    expect(decoded).toEqual(decodeSteps(unedited, joinedSteps));
    const nAll = name === "joined-products" ? shape.nLayers : nRecurrent;
    expect(counts).toEqual(joinedSteps.map(([nSeqs, nRows]) => (name === "joined-products" && nSeqs * nRows > 8 ? 0 : nAll)));
    expect(backend.editProblem).toBeUndefined();
  });

  test("joined all, with copies", () => {
    using copies = edited(["bf16-copies"]);
    using both = edited(["bf16-copies", "joined-products", "joined-norms", "joined-snapshots", "contiguous-conv"]);
    const counts: unknown[] = [];
    expect(difference(decodeSteps(both, joinedSteps, () => counts.push(both.target.graphEdits?.counts)), decodeSteps(copies, joinedSteps))).toBeLessThan(1e-3);
    expect(counts[6]).toEqual({ ...noneChanged, "bf16-copies": nFlat - 4 * nRecurrent - 3 * (shape.nLayers - nRecurrent), "contiguous-conv": nRecurrent, "joined-norms": nRecurrent, "joined-products": shape.nLayers, "joined-snapshots": nRecurrent });
  });

  test("all at once: experts in parts, one product more that takes its copy", () => {
    using backend = edited(["bf16-copies", "contiguous-conv", "flat-products", "split-experts"]);
    const counts: unknown[] = [];
    const decoded = decodeSteps(backend, steps, () => counts.push(backend.target.graphEdits?.counts));
    expect(counts[2]).toEqual({ ...noneChanged, "bf16-copies": nFlat + nRecurrent, "contiguous-conv": nRecurrent, "flat-products": nRecurrent, "split-experts": shape.nLayers });
    expect(difference(decoded, plain)).toBeLessThan(0.05);
    expect(backend.editProblem).toBeUndefined();
  });

  test("a head's experts of nine rows and more are computed in parts as well", () => {
    using unedited = edited([]);
    using backend = edited(["bf16-copies", "split-experts"]);
    const draft = ({ heads: [head] }: LlamaBackend): { tokens: number[]; hidden: Float32Array } => {
      const { rows, nEmbd } = head ?? expect.fail();
      rows.n = 18;
      for (let row = 0; row < 18; row++) [rows.tokens[row], rows.positions[row], rows.seqs[row], rows.outputs[row]] = [300 + 7 * row, row % 3, Math.floor(row / 3), row % 3 === 2 ? 1 : 0];
      for (let i = 0; i < 18 * nEmbd; i++) rows.hidden[i] = Math.sin(i);
      head?.decode();
      return { tokens: [2, 5, 8, 11, 14, 17].map((row) => head?.greedyToken(row) as number), hidden: head?.hiddenAll().slice() ?? expect.fail() };
    };
    const [a, b] = [draft(backend), draft(unedited)];
    expect(a.tokens).toEqual(b.tokens);
    expect(difference([a], [b])).toBeLessThan(1e-3);
    expect(backend.heads[0]?.graphEdits?.counts).toEqual({ ...noneChanged, "split-experts": 1 });
  });

  test("the context that never drafts has its own rows to count", () => {
    using few = edited(["contiguous-conv"]);
    expect([few.target.graphEdits === undefined, few.plainTarget?.graphEdits === undefined, few.heads[0]?.graphEdits === undefined]).toEqual([false, true, true]);
    using many = edited(["split-experts"], { nSlots: 9, nHostSlots: 1 });
    expect(many.plainTarget?.graphEdits).toBeDefined();
    using withHost = edited(["split-experts"], { nSlots: 8, nMax: 0, nHostSlots: 1 });
    expect(withHost.target.graphEdits).toBeUndefined();
  });

  test("a prompt's experts are left as they are", () => {
    using backend = edited(["split-experts"]);
    const { target } = backend;
    const counts = [1, 12].map((nOutputs) => {
      const { rows } = target;
      rows.n = 12;
      for (let row = 0; row < 12; row++) [rows.tokens[row], rows.positions[row], rows.seqs[row], rows.outputs[row]] = nOutputs === 1 ? [300 + row, row, 0, row === 11 ? 1 : 0] : [300 + row, row % 3, 1 + Math.floor(row / 3), 1];
      target.decode();
      return target.graphEdits?.counts["split-experts"];
    });
    expect(counts).toEqual([0, shape.nLayers]);
  });

  test("prompts take copies in a context whose steps have too few rows for them", () => {
    using backend = edited(["bf16-copies"], { nSlots: 2 });
    const { plainTarget } = backend;
    const { rows } = plainTarget ?? expect.fail();
    rows.n = 12;
    for (let row = 0; row < 12; row++) [rows.tokens[row], rows.positions[row], rows.seqs[row], rows.outputs[row]] = [300 + row, row, 0, row === 11 ? 1 : 0];
    plainTarget?.decode();
    expect(plainTarget?.graphEdits?.counts["bf16-copies"]).toBe(nFlat);
  });

  /** A context of sixteen rows a step; `matrices` are closed after it. */
  const contextWith = (model: Model, matrices: EditMatrices, graphEdits: readonly GraphEditName[], samplings: "device-greedy" | "host" = "device-greedy", nOutputsPerSeq = 2): LlamaContext =>
    createContext(model, { nCells: 512, samplings: Array.from({ length: 16 }, () => samplings), nBatch: 64, nUbatch: 64, nThreads: 1, nThreadsBatch: 1, isKvUnified: true, nRollback: 1, nOutputsPerSeq, isDraft: false, hiddenRows: "none", graphEdits }, matrices);
  const tokensOf = (context: LlamaContext): number[] => {
    const { rows } = context;
    rows.n = 32;
    for (let row = 0; row < 32; row++) [rows.tokens[row], rows.positions[row], rows.seqs[row], rows.outputs[row]] = [300 + 7 * row, row % 2, row >> 1, 1];
    context.decode();
    return Array.from({ length: 32 }, (_, row) => context.greedyToken(row));
  };

  test("where copies cannot be made the reason is told, none is left, and the other edit stays", async () => {
    const other = path.join(folder, "other.gguf");
    // The first layers have the same types, the last one has others: some copies are made before one fails.
    await synthesize({ shape, type: "IQ4_XS", headType: "Q6_K", output: other, seed: 7, rules: [{ pattern: /blk\.3\./, type: knownType("Q4_0") }] });
    const llama = loadLlama({ device: "cpu" });
    using model = loadModel(llama, modelPath, { facts: readModelFacts(modelPath), loadMtp: true, device: "cpu" });
    using none = new EditMatrices(llama, modelPath);
    using unedited = contextWith(model, none, []);
    using matrices = new EditMatrices(llama, other);
    using context = contextWith(model, matrices, ["bf16-copies", "contiguous-conv"]);
    expect(context.graphEdits?.problem()).toMatch(/other\.gguf holds no tensor blk\.3\.\S+ as it was loaded/);
    expect(tokensOf(context)).toEqual(tokensOf(unedited));
    expect(context.graphEdits?.counts).toEqual({ ...noneChanged, "contiguous-conv": nRecurrent });
    // Nor are some products joined and others not.
    using joined = contextWith(model, matrices, ["joined-products", "contiguous-conv"]);
    expect(joined.graphEdits?.problem()).toMatch(/other\.gguf holds no tensor blk\.3\.\S+ as it was loaded/);
    const { rows } = joined;
    rows.n = 4;
    for (let row = 0; row < 4; row++) [rows.tokens[row], rows.positions[row], rows.seqs[row], rows.outputs[row]] = [300 + row, 0, row, 1];
    joined.decode();
    expect(joined.graphEdits?.counts).toEqual(noneChanged);
    // A second context finds nothing of the first one's attempt.
    using again = contextWith(model, matrices, ["bf16-copies"]);
    expect(again.graphEdits?.problem()).toMatch(/holds no tensor/);
  });

  test("two contexts of a model take the same copies", () => {
    const llama = loadLlama({ device: "cpu" });
    using model = loadModel(llama, modelPath, { facts: readModelFacts(modelPath), loadMtp: true, device: "cpu" });
    using matrices = new EditMatrices(llama, modelPath);
    using first = contextWith(model, matrices, ["bf16-copies"]);
    const tokens = tokensOf(first);
    using second = contextWith(model, matrices, ["bf16-copies"]);
    expect(tokensOf(second)).toEqual(tokens);
    expect([first.graphEdits?.problem(), second.graphEdits?.problem()]).toEqual([undefined, undefined]);
  });

  test("one group makes matrices for all, and they outlive it", () => {
    const llama = loadLlama({ device: "cpu" });
    using model = loadModel(llama, modelPath, { facts: readModelFacts(modelPath), loadMtp: true, device: "cpu" });
    const shared = new SharedMatrices(sharedMatrixMemory());
    const names = ["bf16-copies", "bf16-head", "f16-copies", "joined-products"] as const;
    try {
      // The second group reads no file: its path holds nothing.
      using second = new EditMatrices(llama, "no file", shared);
      let tokens: number[];
      {
        using first = new EditMatrices(llama, modelPath, shared);
        using context = contextWith(model, first, names);
        tokens = tokensOf(context);
        expect([context.graphEdits?.problem(), context.graphEdits?.counts["joined-products"]]).toEqual([undefined, shape.nLayers]);
      }
      using context = contextWith(model, second, names);
      expect(context.graphEdits?.problem()).toBeUndefined();
      expect(tokensOf(context)).toEqual(tokens);
      expect(context.graphEdits?.counts["joined-products"]).toBe(shape.nLayers);
    } finally {
      freeShared(llama, shared);
    }
  });

  test("default edits take no memory for computing, by libllama's own figure, but for one layer's rows in order", () => {
    const llama = loadLlama({ device: "cpu" });
    using model = loadModel(llama, modelPath, { facts: readModelFacts(modelPath), loadMtp: true, device: "cpu" });
    const sizeWith = (graphEdits: readonly GraphEditName[]): number => {
      using matrices = new EditMatrices(llama, modelPath);
      // Each row of the graphs that memory is reserved for is an output, as in steps.
      const { result: context, lines } = captureLog(llama, () => contextWith(model, matrices, graphEdits, "device-greedy", 4));
      for (const name of graphEdits) expect([name, context.graphEdits?.counts[name]]).not.toEqual([name, 0]);
      context.close();
      const size = Number(lines.map((line) => /compute buffer size = +([\d.]+) MiB/.exec(line)?.[1]).find((figure) => figure !== undefined));
      expect(size).toBeGreaterThan(1);
      return size;
    };
    const unedited = sizeWith([]);
    // 64 rows of 512 channels; figures have two digits.
    for (const name of automaticEdits([{ name: "CUDA0", description: "NVIDIA H200" }])) expect(sizeWith([name]) - unedited).toBeLessThan(name === "contiguous-conv" ? 0.13 : 0.005);
  });

  test("a context whose slots are all sampled on the host says that it is not edited", () => {
    const llama = loadLlama({ device: "cpu" });
    using model = loadModel(llama, modelPath, { facts: readModelFacts(modelPath), loadMtp: true, device: "cpu" });
    using matrices = new EditMatrices(llama, modelPath);
    using context = contextWith(model, matrices, ["contiguous-conv"], "host");
    expect(context.graphEdits?.problem()).toBe("no graph was shown: no slot is sampled on the device");
  });
});

test("edits are asked for where a step can have the rows that gain by them", () => {
  const always = ["bf16-copies", "joined-norms", "joined-products"];
  const useful = (nSeqs: number, rowsPerSeq: number): GraphEditName[] => usefulEdits(graphEditNames, nSeqs, rowsPerSeq).filter((name) => !always.includes(name));
  expect(usefulEdits(graphEditNames, 1, 1)).toEqual(always);
  expect(useful(1, 3)).toEqual(["bf16-head", "joined-snapshots"]);
  expect(useful(3, 2)).toEqual(["bf16-head", "f16-copies", "joined-snapshots"]);
  expect(useful(8, 1)).toEqual(["bf16-head", "f16-copies", "flat-products"]);
  expect(useful(9, 1)).toEqual(["bf16-head", "f16-copies", "flat-products", "split-experts"]);
  expect(useful(4, 2)).toEqual(["bf16-head", "contiguous-conv", "f16-copies", "flat-products", "joined-snapshots"]);
  expect(useful(3, 3)).toEqual(["bf16-head", "f16-copies", "joined-snapshots", "split-experts"]);
  expect(usefulEdits(graphEditNames, 8, 3)).toEqual(graphEditNames);
  expect(usefulEdits(["contiguous-conv"], 8, 3)).toEqual(["contiguous-conv"]);
});

test("what was measured on Hopper is on there; edits that change no bit with any CUDA device", () => {
  const gpu = (name: string, description: string): { name: string; description: string } => ({ name, description });
  const exact = ["contiguous-conv", "joined-norms", "joined-snapshots"];
  const all = [...exact, "split-experts"];
  for (const description of ["NVIDIA H200", "NVIDIA H100 80GB HBM3", "NVIDIA GH200 480GB", "NVIDIA H20"]) expect(automaticEdits([gpu("CUDA0", description)])).toEqual(all);
  for (const description of ["NVIDIA GeForce RTX 4090", "NVIDIA A100-SXM4-80GB", "NVIDIA H2000", "NVIDIA H100 80GB HBM3 MIG 1g.10gb"]) expect(automaticEdits([gpu("CUDA0", description)])).toEqual(exact);
  expect(automaticEdits([gpu("CUDA0", "NVIDIA H200"), gpu("CUDA1", "NVIDIA L40S")])).toEqual(exact);
  expect(automaticEdits([gpu("Vulkan0", "NVIDIA H200")])).toEqual([]);
  expect(automaticEdits([])).toEqual([]);
});
