import * as fs from "node:fs";
import * as path from "node:path";
import { afterAll, beforeAll, describe, expect, test, vi } from "vitest";
import { command as draftVocab } from "../../src/commands/draft-vocab.ts";
import type { Io } from "../../src/config/command.ts";
import { parseArguments } from "../../src/config/options.ts";
import { decodeFloats } from "../../src/hf/elements.ts";
import { createContext } from "../../src/llama/create-context.ts";
import { draftVocabOf } from "../../src/llama/draft-vocab.ts";
import { loadLlama } from "../../src/llama/library.ts";
import { loadModel } from "../../src/llama/model.ts";
import { loadVocab } from "../../src/llama/vocab.ts";
import { capture } from "../../src/train/capture.ts";
import { openDataset, type Dataset } from "../../src/train/dataset.ts";
import { heldOutOf } from "../../src/train/held-out.ts";
import { readManifest, readShardTable, requireSameModel } from "../../src/train/shards.ts";
import { UserError } from "../../src/util/errors.ts";
import { tinyTrunk } from "../llama/tiny-model.ts";
import { captureOptions, smallCapture, temporaryFolder } from "./captured.ts";

vi.setConfig({ testTimeout: 240_000, hookTimeout: 240_000 });

const folder = temporaryFolder();
let dataset: Dataset;

beforeAll(async () => {
  await smallCapture(folder);
  dataset = openDataset(folder);
});

afterAll(() => {
  dataset.close();
  fs.rmSync(folder, { recursive: true });
});

const text = async (tokens: Int32Array): Promise<string> => {
  const vocab = loadVocab(await tinyTrunk());
  try {
    return Buffer.from(vocab.detokenize(tokens, true)).toString("utf8");
  } finally {
    vocab.close();
  }
};

test("the manifest counts what the shards hold", () => {
  const { manifest } = dataset;
  const documents = manifest.shards.flatMap(({ file }) => readShardTable(path.join(folder, file)));
  expect(manifest.nTokens).toBeGreaterThanOrEqual(2400);
  expect(documents.reduce((sum, d) => sum + d.tokens.length, 0)).toBe(manifest.nTokens);
  expect(documents).toHaveLength(manifest.nDocuments);
  expect(new Set(documents.map((d) => d.index)).size).toBe(documents.length);
  expect(manifest.shards.length).toBeGreaterThan(2);
  expect(manifest.normStage).toBe("post-final-norm");
  expect(manifest.layerInput?.nRows).toBeGreaterThan(700);
  expect(dataset.heldOut.length).toBeGreaterThan(0);
  expect(dataset.training.some((d) => d.half === "chat") && dataset.training.some((d) => d.half === "code")).toBe(true);
});

test("hidden rows are the target's own for these tokens, and greedy continuations follow from them", async () => {
  const llama = loadLlama();
  using model = loadModel(llama, await tinyTrunk(), { device: "cpu" });
  using context = createContext(model, { nCells: 256, samplings: ["host"], nBatch: 256, nUbatch: 256, nThreads: 1, nThreadsBatch: 1, isKvUnified: true, nRollback: 0, nOutputsPerSeq: 256, isDraft: false, hiddenRows: "all" });
  const documents = [...dataset.training].toSorted((a, b) => b.tokens.length - a.tokens.length).slice(0, 4);
  let [nGreedy, nSame] = [0, 0];
  for (const document of documents) {
    context.clear(0);
    const n = document.tokens.length - 1;
    context.rows.n = n;
    for (let t = 0; t < n; t++) {
      context.rows.tokens[t] = document.tokens[t] as number;
      context.rows.positions[t] = t;
      context.rows.seqs[t] = 0;
      context.rows.outputs[t] = 1;
    }
    context.decode();
    const expected = context.hiddenAll();
    const rows = document.rows(0, n);
    const captured = new Float32Array(rows.length);
    decodeFloats(new Uint8Array(rows.buffer, rows.byteOffset, rows.byteLength), "F16", captured);
    let [error, size] = [0, 0];
    captured.forEach((x, i) => {
      error += (x - (expected[i] as number)) ** 2;
      size += (expected[i] as number) ** 2;
    });
    // F16 rows, and kernels of another batch width.
    expect(Math.sqrt(error / size)).toBeLessThan(0.02);
    for (let t = document.nPrompt - 1; t < n; t++) {
      nGreedy++;
      if (context.greedyToken(t) === document.tokens[t + 1]) nSame++;
    }
  }
  // A quarter of the continuations is sampled at 0.7, the others are greedy.
  expect(nSame / nGreedy).toBeGreaterThan(0.7);
});

test("no captured prompt touches held-out prompts", async () => {
  const options = await captureOptions(folder);
  const heldOut = heldOutOf(options.heldOutPrompts);
  for (const d of [...dataset.training, ...dataset.heldOut]) {
    const prompt = await text(d.tokens.subarray(0, d.nPrompt));
    expect(heldOut.matches(prompt), prompt).toBe(false);
  }
});

describe("going on", () => {
  test("a finished capture is left alone, a larger one adds documents", async () => {
    const other = temporaryFolder();
    await smallCapture(other, { nTokens: 1000, shardTokens: 500 });
    const before = readManifest(other);
    expect((await smallCapture(other, { nTokens: 1000, shardTokens: 500 })).wallMs).toBe(before?.wallMs);
    const after = await smallCapture(other, { nTokens: 1500, shardTokens: 500 });
    expect(after.nTokens).toBeGreaterThanOrEqual(1500);
    expect(after.shards.slice(0, before?.shards.length)).toEqual(before?.shards);
    fs.rmSync(other, { recursive: true });
  });

  test("a stop keeps whole shards, and the rest gives the documents it would have given", async () => {
    const other = temporaryFolder();
    const stop = new AbortController();
    const stopped = capture({ ...(await captureOptions(other)), signal: stop.signal, onProgress: ({ nTokens }) => void (nTokens > 1500 && stop.abort(new UserError("stopped"))) });
    await expect(stopped).rejects.toThrow("stopped");
    const kept = readManifest(other);
    expect(kept?.nTokens).toBeGreaterThanOrEqual(700);
    await smallCapture(other);
    const [a, b] = [dataset, openDataset(other)];
    const texts = (d: Dataset): Map<string, number> => new Map([...d.training, ...d.heldOut].map((x) => [x.tokens.subarray(0, x.nPrompt).join(), x.tokens.length]));
    const whole = texts(a);
    // Which documents end first depends on who decodes beside whom; most prompts are the same.
    const same = [...texts(b).keys()].filter((key) => whole.has(key)).length;
    expect(same / whole.size).toBeGreaterThan(0.7);
    b.close();
    fs.rmSync(other, { recursive: true });
  });

  test("a limit of time ends it with the documents there are, or says that there are none", async () => {
    const other = temporaryFolder();
    const written = vi.spyOn(process.stderr, "write").mockReturnValue(true);
    await expect(smallCapture(other, { maxMs: 0 })).rejects.toThrow(/no document was finished in the time given/);
    await smallCapture(other, { nTokens: 1000, shardTokens: 500 });
    const kept = readManifest(other);
    expect((await smallCapture(other, { maxMs: 0, shardTokens: 500 })).nTokens).toBe(kept?.nTokens);
    expect(written.mock.calls.flat().join("")).toMatch(/in 0 ms the model wrote [\d,]+ of 2,400 tokens/);
    written.mockRestore();
    fs.rmSync(other, { recursive: true });
  });

  test("another model's folder, other settings and an impossible length are refused", async () => {
    const manifest = readManifest(folder);
    expect(manifest).toBeDefined();
    if (manifest !== undefined) expect(() => requireSameModel(folder, manifest, "0".repeat(64))).toThrow(/captured from another model/);
    await expect(smallCapture(folder, { nTokens: 99_999, seed: 2 })).rejects.toThrow(/was captured with seed 1, not 2/);
    await expect(smallCapture(temporaryFolder(), { maxNew: 4000 })).rejects.toThrow(/longer than the 2048/);
    await expect(smallCapture(temporaryFolder(), { lines: [] })).rejects.toThrow(UserError);
  });
});

test("draft-vocab lists what the model wrote most, keeps a file that is there, and says what it cannot do", async () => {
  const file = path.join(folder, "tokens.json");
  const run = async (...argv: string[]): Promise<Record<string, unknown>> => {
    const out: string[] = [];
    const { options } = parseArguments(draftVocab.options, argv, draftVocab.positionals);
    await draftVocab.run(options, { json: true, out: (line: string) => out.push(line), signal: new AbortController().signal } as unknown as Io);
    return JSON.parse(out.join("")) as Record<string, unknown>;
  };
  const written = new Map<number, number>();
  for (const { tokens, nPrompt } of dataset.training) for (const token of tokens.subarray(nPrompt)) written.set(token, (written.get(token) ?? 0) + 1);
  const result = await run(folder, "-o", file, "-n", "300");
  const list = draftVocabOf(file);
  if (typeof list === "number") throw new Error("a file was expected");
  expect(list.nVocab).toBe(4096);
  expect(list.tokens).toHaveLength(300);
  const counts = [...list.tokens].map((token) => written.get(token) ?? 0);
  expect(counts).toEqual([...written.values(), ...Array.from({ length: 300 }, () => 0)].sort((a, b) => b - a).slice(0, 300));
  expect(result).toMatchObject({ nTokens: 300, nSeen: Math.min(300, written.size), nCounted: [...written.values()].reduce((a, b) => a + b, 0) });
  await expect(run(folder, "-o", file, "-n", "200")).rejects.toThrow("--force");
  expect(draftVocabOf(file)).toEqual(list);
  await expect(run(folder, "-o", `${file}2`, "-n", "4096")).rejects.toThrow("the vocabulary has 4096");
  await expect(run(path.join(folder, "nothing"), "-o", `${file}2`)).rejects.toThrow("run foretoken capture first");
  expect(fs.existsSync(`${file}2`)).toBe(false);
});
