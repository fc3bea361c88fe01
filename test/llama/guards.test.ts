/** Each of these ends the process when libllama is asked; here each is an error, and the process lives to run the next. */
import * as fs from "node:fs";
import * as path from "node:path";
import { afterAll, beforeAll, describe, expect, test } from "vitest";
import { DecodeError } from "../../src/engine/backend.ts";
import { arrayEntry, stringEntry, u32Entry } from "../../src/gguf/kv.ts";
import { createBackend, type BackendOptions, type LlamaBackend } from "../../src/llama/backend.ts";
import { createContext, type ContextOptions } from "../../src/llama/create-context.ts";
import { loadLlama } from "../../src/llama/library.ts";
import { loadModel } from "../../src/llama/model.ts";
import { UserError } from "../../src/util/errors.ts";
import { tinyHead, tinyTrunk, tinyWithHead, trunkWith } from "./tiny-model.ts";

const llama = loadLlama();
const base = { nSlots: 2, ctxSize: 512, batchSize: 64, threads: 1, device: "cpu", nMax: 2 } as const;
const contextOptions: ContextOptions = { nCells: 256, samplings: ["host"], nBatch: 32, nUbatch: 32, nThreads: 1, nThreadsBatch: 1, isKvUnified: true, nRollback: 0, nOutputsPerSeq: 1, isDraft: false, hiddenRows: "none" };

function oneLine(call: () => unknown): string {
  try {
    call();
  } catch (error) {
    expect(error).toBeInstanceOf(UserError);
    const { message } = error as Error;
    expect(message).not.toContain("\n");
    return message;
  }
  throw new Error("no error was thrown");
}

const refused = (options: Partial<BackendOptions> & { modelPath: string }): string => oneLine(() => createBackend({ ...base, ...options }));

describe("files that do not fit", () => {
  let trunk: string;
  let head: string;
  beforeAll(async () => {
    trunk = await tinyTrunk();
    head = await tinyHead();
  });

  test("a missing file", () => {
    expect(refused({ modelPath: "nowhere.gguf" })).toContain("nowhere.gguf does not exist");
    expect(refused({ modelPath: trunk, headPaths: ["nowhere.gguf"] })).toContain("nowhere.gguf does not exist");
  });

  test("a truncated file", () => {
    const cut = path.join(path.dirname(trunk), "truncated.gguf");
    fs.writeFileSync(cut, fs.readFileSync(trunk).subarray(0, 2_000_000));
    expect(refused({ modelPath: cut })).toContain("truncated.gguf");
  });

  test("an architecture that libllama does not know, with libllama's reason", async () => {
    const strange = await trunkWith("strange.gguf", [stringEntry("general.architecture", "strange"), u32Entry("strange.block_count", 8), u32Entry("strange.embedding_length", 256)]);
    expect(refused({ modelPath: strange })).toContain("unknown model architecture: 'strange'");
  });

  test("a draft head as the model: a default context on it would crash", async () => {
    expect(refused({ modelPath: head })).toContain("holds a draft head and no trunk; give the model with -m");
    using model = loadModel(llama, head, { device: "cpu", loadMtp: true });
    expect(oneLine(() => createContext(model, contextOptions))).toContain("no trunk");
  });

  test("a model without a head asked to draft: an MTP context on it would abort", async () => {
    expect(refused({ modelPath: trunk, useHead: true })).toContain("has no MTP head");
    expect(refused({ modelPath: trunk, headPaths: [trunk] })).toContain("has no MTP layer");
    using withoutMtp = loadModel(llama, await tinyWithHead(), { device: "cpu", loadMtp: false });
    expect(oneLine(() => createContext(withoutMtp, { ...contextOptions, isDraft: true }))).toContain("no MTP layers loaded");
  });

  test("a head that is advertised but absent", async () => {
    const advertised = await trunkWith("advertised.gguf", [
      u32Entry("qwen35moe.block_count", 9),
      u32Entry("qwen35moe.nextn_predict_layers", 1),
      arrayEntry("qwen35moe.attention.recurrent_layers", "bool", [true, true, true, false, true, true, true, false, false]),
    ]);
    expect(refused({ modelPath: advertised, useHead: true })).toContain("advertises 1 MTP layer but holds none of its tensors");
    expect(refused({ modelPath: trunk, headPaths: [advertised] })).toContain("advertises an MTP layer but holds none");
    // Counted without a block of its own, libllama would drop a trunk layer and say nothing.
    const miscounted = await trunkWith("miscounted.gguf", [u32Entry("qwen35moe.nextn_predict_layers", 1)]);
    expect(refused({ modelPath: miscounted })).toContain("counts block 7 as an MTP layer but it is a trunk layer");
  });

  test("a head of another width, vocabulary or architecture", async () => {
    const asHead = (name: string, entry: ReturnType<typeof u32Entry>): Promise<string> => trunkWith(name, [entry]);
    expect(oneLine(() => createBackend({ ...base, modelPath: trunk, headPaths: [head, "nowhere.gguf"] }))).toContain("nowhere.gguf");
    const wide = await asHead("wide.gguf", u32Entry("qwen35moe.embedding_length", 512));
    expect(refused({ modelPath: wide, headPaths: [head] })).toContain("a head of width 256");
    const words = await asHead("words.gguf", arrayEntry("tokenizer.ggml.tokens", "string", ["a", "b"]));
    expect(refused({ modelPath: words, headPaths: [head] })).toContain("has a vocabulary of 4096 tokens");
    const dense = await trunkWith("dense.gguf", [stringEntry("general.architecture", "qwen35"), u32Entry("qwen35.block_count", 8), u32Entry("qwen35.embedding_length", 256)]);
    expect(refused({ modelPath: dense, headPaths: [head] })).toContain("is a head for qwen35moe");
  });

  test("a device that is not there", () => {
    expect(refused({ modelPath: trunk, device: "CUDA7" })).toMatch(/CUDA7|cuda/);
  });
});

describe("calls that libllama would not survive", () => {
  let backend: LlamaBackend;
  beforeAll(async () => {
    backend = createBackend({ ...base, modelPath: await tinyWithHead(), useHead: true });
    decodeText(backend, 4);
  });
  afterAll(() => backend.close());

  function decodeText({ target }: LlamaBackend, n: number): void {
    target.clear(0);
    for (let i = 0; i < n; i++) {
      target.rows.tokens[i] = i + 3;
      target.rows.positions[i] = i;
      target.rows.seqs[i] = 0;
      target.rows.outputs[i] = Number(i === n - 1);
    }
    target.rows.n = n;
    target.decode();
  }

  test("more rows than n_batch, more outputs than were planned", () => {
    const { target } = backend;
    for (const [n, outputs] of [[65, 0], [4, 1]] as const) {
      target.clear(0);
      for (let i = 0; i < Math.min(n, 64); i++) {
        target.rows.tokens[i] = 3;
        target.rows.positions[i] = i;
        target.rows.seqs[i] = 0;
        target.rows.outputs[i] = outputs;
      }
      target.rows.n = n;
      expect(() => target.decode()).toThrow(DecodeError);
    }
    decodeText(backend, 4);
  });

  test("rows outside the last decode, and rows that were no output", () => {
    const { target } = backend;
    expect(target.hidden(3).length).toBe(256);
    for (const row of [4, -1, 64, 1.5, NaN]) {
      expect(() => target.hidden(row)).toThrow();
      expect(() => target.logits(row)).toThrow();
      expect(() => target.greedyToken(row)).toThrow();
    }
    expect(() => target.logits(0)).toThrow("not an output");
    expect(() => target.candidates(3)).toThrow("no top-k chain");
    expect(() => target.samplingOf(2)).toThrow();
    expect(() => target.removeFrom(9, 1)).toThrow();
    expect(() => target.clear(-1)).toThrow();
  });

  test("a state of something else is refused, and the sequence is empty", () => {
    const { target, heads } = backend;
    expect(target.restoreSequence(1, new Uint8Array(0))).toBe(false);
    expect(target.restoreSequence(1, new Uint8Array(4096).fill(7))).toBe(false);
    const state = target.saveSequence(0);
    expect(target.restoreSequence(1, state.subarray(0, state.length - 1))).toBe(false);
    expect(heads[0]?.restoreSequence(1, state)).toBe(false);
    expect(target.lastPosition(1)).toBe(-1);
  });

  test("everything after close", () => {
    const closed = createBackend({ ...base, modelPath: backend.description.modelPath, useHead: true, nSlots: 1 });
    decodeText(closed, 3);
    const { target } = closed;
    const grammar = closed.createGrammar('root ::= "a"');
    closed.close();
    closed.close();
    for (const call of [() => target.decode(), () => target.logits(2), () => target.hidden(2), () => target.greedyToken(2), () => target.clear(0), () => target.lastPosition(0), () => target.saveSequence(0), () => target.counters(), () => target.synchronize(), () => grammar.allows(3), () => closed.vocab.tokenize("a")])
      expect(call).toThrow("closed");
  });

  test("a model is not freed under its contexts", async () => {
    const model = loadModel(llama, await tinyTrunk(), { device: "cpu" });
    const context = createContext(model, contextOptions);
    expect(() => model.close()).toThrow("1 open contexts");
    context.close();
    model.close();
    expect(() => model.pointer).toThrow("closed");
  });

  test("a grammar that does not parse, nests too deep, or is given a token it does not allow", () => {
    expect(oneLine(() => backend.createGrammar("root ::= ("))).toContain("does not parse");
    expect(oneLine(() => backend.createGrammar("list ::= [a-z]+"))).toContain("root");
    expect(oneLine(() => backend.createGrammar("root ::= root [a-z]"))).toContain("left recursion");
    expect(oneLine(() => backend.createGrammar(`root ::= ${"(".repeat(5000)}"a"${")".repeat(5000)}`))).toContain("nests 5000 groups");
    const grammar = backend.createGrammar('root ::= "return"');
    const wrong = backend.vocab.tokenize("def")[0] as number;
    expect(() => grammar.accept(wrong)).toThrow("does not allow");
    grammar.close();
  });
});

describe("grammar", () => {
  test("allows exactly the texts of the grammar and then the end", async () => {
    using backend = createBackend({ ...base, modelPath: await tinyTrunk() });
    const { vocab } = backend;
    const grammar = backend.createGrammar('root ::= "return " ("a" | "b")');
    const logits = new Float32Array(vocab.nTokens);
    grammar.mask(logits);
    const allowed = [...logits.keys()].filter((token) => logits[token] === 0).map((token) => Buffer.from(vocab.tokenBytes(token)).toString());
    expect(allowed.length).toBeGreaterThan(0);
    for (const text of allowed) expect("return ".startsWith(text) || text.startsWith("return ")).toBe(true);
    for (const token of vocab.tokenize("return b")) {
      expect(grammar.allows(token)).toBe(true);
      grammar.accept(token);
    }
    grammar.mask(logits.fill(0));
    expect([...logits.keys()].filter((token) => logits[token] === 0)).toEqual(vocab.endOfGenerationTokens());
    grammar.close();
  });
});
