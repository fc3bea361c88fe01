/** Edited graphs compute what unedited ones do: on a CPU, where nothing is gained by it, with a file of every shape that counts. */
import * as fs from "node:fs";
import * as os from "node:os";
import * as path from "node:path";
import { afterAll, beforeAll, describe, expect, test } from "vitest";
import type { GraphEditName } from "../../src/config/engine-options.ts";
import { namedShapes } from "../../src/gguf/synth/shapes.ts";
import { synthesize } from "../../src/gguf/synth/synthesize.ts";
import { createBackend, type BackendOptions, type LlamaBackend } from "../../src/llama/backend.ts";
import { Bf16Copies } from "../../src/llama/bf16-copies.ts";
import { createContext } from "../../src/llama/create-context.ts";
import { usefulEdits } from "../../src/llama/graph-edits.ts";
import { readModelFacts } from "../../src/llama/head-check.ts";
import { loadLlama } from "../../src/llama/library.ts";
import { loadModel } from "../../src/llama/model.ts";

const folder = fs.mkdtempSync(path.join(os.tmpdir(), "graph-edits-"));
afterAll(() => fs.rmSync(folder, { recursive: true }));
const modelPath = path.join(folder, "tiny.gguf");
const shape = namedShapes.get("tiny") ?? expect.fail();
const nRecurrent = shape.isRecurrent.filter(Boolean).length;
/** Of linear attention all but the last product, which is one for each sequence; of attention and shared experts all; the LM head is left alone. */
const nSmall = nRecurrent * 4 + (shape.nLayers - nRecurrent) * 4 + shape.nLayers * 3;

beforeAll(async () => {
  await synthesize({ shape, type: "IQ4_XS", headType: "Q6_K", output: modelPath, seed: 7 });
});

const options: BackendOptions = { modelPath, useHead: true, nSlots: 6, ctxSize: 1536, threads: 1, nMax: 2, plainTarget: true, targetSampling: "device-greedy", draftSampling: "device-greedy", device: "cpu" };
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
    const decoded = decodeSteps(backend, steps, () => counts.push(backend.target.graphEdits?.nStraightened ?? -1));
    expect(decoded).toEqual(plain);
    expect(counts).toEqual([0, nRecurrent, nRecurrent, nRecurrent, 0, nRecurrent, 0]);
    expect(backend.editProblem).toBeUndefined();
  });

  test("BF16 copies of all small matrices are taken from nine rows on, and say the same but for rounding", () => {
    using backend = edited(["bf16-copies"]);
    const counts: number[] = [];
    const decoded = decodeSteps(backend, steps, () => counts.push(backend.target.graphEdits?.nCopied ?? -1));
    expect(counts).toEqual([0, nSmall, nSmall, nSmall, 0, nSmall, 0]);
    expect(decoded[0]).toEqual(plain[0]);
    expect(decoded[1]).not.toEqual(plain[1]);
    const error = difference(decoded, plain);
    expect(error).toBeGreaterThan(0);
    expect(error).toBeLessThan(0.05);
  });

  test("drafts by a shorter LM head go together with both", () => {
    using backend = edited(["bf16-copies", "contiguous-conv"], { draftVocab: 300 });
    expect(difference(decodeSteps(backend, steps), plain)).toBeLessThan(0.05);
    expect(backend.editProblem).toBeUndefined();
    const [head] = backend.heads;
    const { rows, nEmbd } = head ?? expect.fail();
    rows.n = 1;
    [rows.tokens[0], rows.positions[0], rows.seqs[0], rows.outputs[0]] = [300, 0, 0, 1];
    rows.hidden.fill(0.1, 0, nEmbd);
    head?.decode();
    expect(head?.greedyToken(0)).toBeLessThan(300);
  });

  test("the context that never drafts has its own rows to count", () => {
    using few = edited(["bf16-copies", "contiguous-conv"]);
    expect([few.target.graphEdits === undefined, few.plainTarget?.graphEdits === undefined, few.heads[0]?.graphEdits === undefined]).toEqual([false, true, true]);
    using many = edited(["bf16-copies"], { nSlots: 9 });
    expect(many.plainTarget?.graphEdits).toBeDefined();
  });

  test("a matrix that is not in the file as it was loaded is told, and graphs stay as they are", async () => {
    const other = path.join(folder, "other.gguf");
    await synthesize({ shape, type: "Q4_0", headType: "Q6_K", output: other, seed: 7 });
    const llama = loadLlama({ device: "cpu" });
    using model = loadModel(llama, modelPath, { facts: readModelFacts(modelPath), loadMtp: true, device: "cpu" });
    using copies = new Bf16Copies(llama, other);
    const make = (): string | undefined => {
      using context = createContext(model, { nCells: 256, samplings: Array.from({ length: 16 }, () => "device-greedy" as const), nBatch: 64, nUbatch: 64, nThreads: 1, nThreadsBatch: 1, isKvUnified: true, nRollback: 0, nOutputsPerSeq: 1, isDraft: false, hiddenRows: "none", graphEdits: ["bf16-copies"] }, copies);
      return context.graphEdits?.problem();
    };
    expect(make()).toMatch(/other\.gguf holds no tensor blk\.0\.\S+ as it was loaded/);
  });
});

test("edits are asked for where a step can have the rows that gain by them", () => {
  const all = ["bf16-copies", "contiguous-conv"] as const;
  expect(usefulEdits(all, 8, 1)).toEqual([]);
  expect(usefulEdits(all, 9, 1)).toEqual(["bf16-copies"]);
  expect(usefulEdits(all, 4, 2)).toEqual(["contiguous-conv"]);
  expect(usefulEdits(all, 3, 3)).toEqual(["bf16-copies"]);
  expect(usefulEdits(all, 8, 3)).toEqual(all);
  expect(usefulEdits(["contiguous-conv"], 8, 3)).toEqual(["contiguous-conv"]);
});
