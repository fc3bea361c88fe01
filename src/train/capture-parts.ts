/**
 * A capture that several processes write side by side. A decode of a small model gains nothing from a second thread
 * when a neighbour is busy (ggml's threads wait for one another at every operator); a second process always takes what
 * is free. Each process writes every n-th document into a folder of its own below the capture, and the parts are merged
 * at the end, or at the start of the next run when this one is killed.
 */
import * as fs from "node:fs";
import * as path from "node:path";
import { doneIndices, noteShort, type CaptureOptions, type CaptureProgress } from "./capture.ts";
import { readManifest, readShardTable, removeCapture, shardName, writeManifest, type Manifest } from "./shards.ts";

type PartOptions = Omit<CaptureOptions, "signal" | "onProgress">;
export type RunPart = (options: PartOptions, hooks: { readonly onProgress: (progress: CaptureProgress) => void; readonly signal: AbortSignal }) => Promise<Manifest>;

const partPattern = /^part-\d+$/;
const partFolder = (folder: string, index: number): string => path.join(folder, `part-${index}`);
const partFolders = (folder: string): string[] => (fs.existsSync(folder) ? fs.readdirSync(folder).filter((name) => partPattern.test(name)).toSorted() : []).map((name) => path.join(folder, name));

/**
 * `run` starts the process of one part.
 * @throws {UserError} what the first part to fail throws; whole shards of all parts stay.
 */
export async function captureInParts(options: PartOptions, nParts: number, run: RunPart, hooks: { readonly onProgress: (progress: CaptureProgress) => void; readonly signal: AbortSignal }): Promise<Manifest> {
  const { output } = options;
  if (options.force) {
    removeCapture(output);
    for (const part of partFolders(output)) fs.rmSync(part, { recursive: true });
  }
  await mergeParts(output);
  const before = readManifest(output);
  const nLeft = options.nTokens - (before?.nTokens ?? 0);
  const startMs = performance.now();
  if (nParts === 1 || nLeft <= 0) {
    const manifest = await run({ ...options, force: false }, hooks);
    // A child's own note is not seen.
    noteShort(manifest, options, performance.now() - startMs);
    return manifest;
  }
  const failed = new AbortController();
  const signal = AbortSignal.any([hooks.signal, failed.signal]);
  const progress = new Map<number, CaptureProgress>();
  const runs = Array.from({ length: nParts }, async (_, index) => {
    const part = { index, nParts, of: output };
    const partOptions = { ...options, force: false, output: partFolder(output, index), nTokens: Math.ceil(nLeft / nParts), nLayerInputRows: Math.ceil(options.nLayerInputRows / nParts), part };
    const onProgress = (p: CaptureProgress): void => {
      progress.set(index, p);
      hooks.onProgress(sumOf([...progress.values()], before, options.nTokens));
    };
    try {
      await run(partOptions, { signal, onProgress });
    } catch (error) {
      failed.abort(error);
      throw error;
    }
  });
  await Promise.allSettled(runs);
  await mergeParts(output);
  if (signal.aborted) throw signal.reason;
  const merged = readManifest(output);
  noteShort(merged ?? { nTokens: 0, nDocuments: 0 }, options, performance.now() - startMs);
  return merged as Manifest;
}

function sumOf(parts: readonly CaptureProgress[], before: Manifest | undefined, totalTokens: number): CaptureProgress {
  const sum = (of: (p: CaptureProgress) => number): number => parts.reduce((total, p) => total + of(p), 0);
  return { nTokens: (before?.nTokens ?? 0) + sum((p) => p.nTokens), totalTokens, nDocuments: (before?.nDocuments ?? 0) + sum((p) => p.nDocuments), tokensPerSecond: sum((p) => p.tokensPerSecond) };
}

/** Moves the shards of all parts into the capture; a kill in between leaves each shard in one place or, for a moment, in both. */
export async function mergeParts(folder: string): Promise<void> {
  let wallMs = 0;
  for (const part of partFolders(folder)) {
    const manifest = readManifest(part);
    if (manifest !== undefined) {
      await mergePart(folder, part, manifest);
      wallMs = Math.max(wallMs, manifest.wallMs);
    }
    fs.rmSync(part, { recursive: true });
  }
  const merged = readManifest(folder);
  if (merged !== undefined && wallMs > 0) await writeManifest(folder, { ...merged, wallMs: merged.wallMs + wallMs });
}

async function mergePart(folder: string, part: string, manifest: Manifest): Promise<void> {
  const { nGenerated, nExcluded } = manifest;
  const empty: Manifest = { ...manifest, layerInput: manifest.layerInput === null ? null : { ...manifest.layerInput, nRows: 0 }, shards: [], nDocuments: 0, nTokens: 0, nGenerated: 0, nExcluded: 0, wallMs: 0 };
  for (const [i, shard] of manifest.shards.entries()) {
    const from = path.join(part, shard.file);
    if (!fs.existsSync(from)) continue;
    const before = readManifest(folder) ?? empty;
    const documents = readShardTable(from);
    const done = doneIndices(folder, before);
    if (!documents.some((d) => done.has(d.index))) {
      const file = shardName(before.shards.length);
      fs.copyFileSync(from, path.join(folder, file), fs.constants.COPYFILE_FICLONE);
      const nInputRows = documents.reduce((sum, d) => sum + (d.hasLayerInput ? d.tokens.length : 0), 0);
      // What is counted by part and not by shard goes with the first one.
      const counts = i === 0 ? { nGenerated: before.nGenerated + nGenerated, nExcluded: before.nExcluded + nExcluded } : {};
      await writeManifest(folder, {
        ...before,
        layerInput: before.layerInput === null ? null : { ...before.layerInput, nRows: before.layerInput.nRows + nInputRows },
        shards: [...before.shards, { ...shard, file }],
        nDocuments: before.nDocuments + shard.nDocuments,
        nTokens: before.nTokens + shard.nTokens,
        ...counts,
      });
    }
    fs.rmSync(from);
  }
}
