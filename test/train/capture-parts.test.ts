import * as fs from "node:fs";
import * as path from "node:path";
import { afterEach, expect, test, vi } from "vitest";
import { capture } from "../../src/train/capture.ts";
import { captureInParts, mergeParts, type RunPart } from "../../src/train/capture-parts.ts";
import { openDataset } from "../../src/train/dataset.ts";
import { readManifest, readShardTable } from "../../src/train/shards.ts";
import { captureOptions, temporaryFolder } from "./captured.ts";

vi.setConfig({ testTimeout: 240_000 });

const folders: string[] = [];
afterEach(() => folders.splice(0).forEach((folder) => fs.rmSync(folder, { recursive: true })));
const newFolder = (): string => {
  const folder = temporaryFolder();
  folders.push(folder);
  return folder;
};

const inProcess: RunPart = (options, { signal, onProgress }) => capture({ ...options, signal, onProgress });
const hooks = { signal: new AbortController().signal, onProgress: () => {} };
const small = { nTokens: 1200, shardTokens: 300, nSequences: 4, nLayerInputRows: 600 };

/** Indices of all documents, in the order of the shards; the manifest's counts are checked on the way. */
function indicesOf(folder: string): number[] {
  const manifest = readManifest(folder);
  const documents = (manifest?.shards ?? []).flatMap(({ file }) => readShardTable(path.join(folder, file)));
  expect(documents).toHaveLength(manifest?.nDocuments ?? 0);
  expect(documents.reduce((sum, d) => sum + d.tokens.length, 0)).toBe(manifest?.nTokens ?? 0);
  expect(documents.reduce((sum, d) => sum + (d.hasLayerInput ? d.tokens.length : 0), 0)).toBe(manifest?.layerInput?.nRows);
  return documents.map((d) => d.index);
}

test("parts share the documents out, and the capture is their union", async () => {
  const folder = newFolder();
  const manifest = await captureInParts(await captureOptions(folder, small), 2, inProcess, hooks);
  const indices = indicesOf(folder);
  expect(new Set(indices).size).toBe(indices.length);
  expect(indices.some((i) => i % 2 === 0) && indices.some((i) => i % 2 === 1)).toBe(true);
  expect(manifest.nTokens).toBeGreaterThanOrEqual(1200);
  expect(manifest.layerInput?.nRows).toBeGreaterThan(0);
  expect(fs.readdirSync(folder).filter((name) => name.startsWith("part-"))).toEqual([]);
  const dataset = openDataset(folder);
  expect(dataset.training.length + dataset.heldOut.length).toBeGreaterThan(0);
  dataset.close();
});

test("whole shards of every part stay when one fails, and the rest is written once", async () => {
  const folder = newFolder();
  const options = await captureOptions(folder, small);
  const failing: RunPart = async (part, partHooks) => {
    if (part.part?.index === 0) return await inProcess({ ...part, nTokens: 300 }, partHooks);
    await new Promise((resolve) => setImmediate(resolve));
    while (readManifest(path.join(folder, "part-0")) === undefined) await new Promise((resolve) => setTimeout(resolve, 5));
    throw new Error("part 1 died");
  };
  await expect(captureInParts(options, 2, failing, hooks)).rejects.toThrow("part 1 died");
  const kept = indicesOf(folder);
  expect(kept.length).toBeGreaterThan(0);
  expect(kept.every((i) => i % 2 === 0)).toBe(true);
  await captureInParts(options, 2, inProcess, hooks);
  const all = indicesOf(folder);
  expect(all.slice(0, kept.length)).toEqual(kept);
  expect(new Set(all).size).toBe(all.length);
  expect(readManifest(folder)?.nTokens).toBeGreaterThanOrEqual(1200);
});

test("a part that a kill left behind is merged once, also when the kill came between copy and removal", async () => {
  const folder = newFolder();
  await capture(await captureOptions(path.join(folder, "part-0"), { ...small, nTokens: 600 }));
  fs.cpSync(path.join(folder, "part-0"), path.join(folder, "part-1"), { recursive: true });
  const whole = indicesOf(path.join(folder, "part-0"));
  await mergeParts(folder);
  expect(indicesOf(folder)).toEqual(whole);
});

test("other settings than those of the capture are refused by its parts", async () => {
  const folder = newFolder();
  await captureInParts(await captureOptions(folder, { ...small, nTokens: 700 }), 2, inProcess, hooks);
  await expect(captureInParts(await captureOptions(folder, { ...small, seed: 2 }), 2, inProcess, hooks)).rejects.toThrow(/was captured with seed 1, not 2/);
});
