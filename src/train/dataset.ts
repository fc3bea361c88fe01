/** A capture as the trainer reads it: tokens in memory, hidden rows from disk when a window needs them. */
import * as fs from "node:fs";
import * as path from "node:path";
import { UserError } from "../util/errors.ts";
import { Rng } from "../util/rng.ts";
import type { Window } from "./batch.ts";
import type { Half } from "./prompts.ts";
import { readFully } from "../util/files.ts";
import { readManifest, readShardTable, type Manifest, type StoredDocument } from "./shards.ts";

/** One document: its tokens and the target's hidden rows (post-final-norm, F16). */
export interface HiddenRows {
  readonly tokens: Int32Array;
  /** Tokens 0 to nPrompt - 1 were given, the rest are the target's own. */
  readonly nPrompt: number;
  readonly nEmbd: number;
  /** Rows start to start + n - 1, F16 [n, nEmbd]; a view, valid until the next call. */
  rows(start: number, n: number): Uint16Array;
}

export interface DatasetDocument extends HiddenRows {
  readonly half: Half;
  readonly isHeldOut: boolean;
  readonly hasLayerInput: boolean;
  /** Input rows of the trunk layer that the manifest names, F16; only where `hasLayerInput`. */
  layerInput(start: number, n: number): Uint16Array;
}

export interface Dataset {
  readonly manifest: Manifest;
  readonly training: readonly DatasetDocument[];
  readonly heldOut: readonly DatasetDocument[];
  close(): void;
}

/** Documents shorter than this have no row that every depth can use. */
const shortest = 8;

/** @throws {UserError} when the folder holds no capture, or a shard that the manifest lists is missing or damaged. */
export function openDataset(folder: string): Dataset {
  const manifest = readManifest(folder);
  if (manifest === undefined) throw new UserError(`${folder} holds no capture (no manifest.json); run foretoken capture first`);
  const fds = new Map<string, number>();
  const open = (file: string): number => {
    const fd = fds.get(file) ?? fs.openSync(file, "r");
    fds.set(file, fd);
    return fd;
  };
  const rowBytes = 2 * manifest.nEmbd;
  let scratch = new Uint8Array(0);
  const read = (document: StoredDocument, offset: number, start: number, n: number): Uint16Array => {
    if (scratch.length < n * rowBytes) scratch = new Uint8Array(n * rowBytes * 2);
    const bytes = scratch.subarray(0, n * rowBytes);
    readFully(open(document.shard), bytes, offset + start * rowBytes);
    return new Uint16Array(bytes.buffer, 0, n * manifest.nEmbd);
  };
  const stored = manifest.shards.flatMap((shard) => readShardTable(path.join(folder, shard.file)));
  const documents = stored
    .toSorted((a, b) => a.index - b.index)
    .filter((d) => d.tokens.length >= shortest)
    .map((d): DatasetDocument => ({
      tokens: d.tokens,
      nPrompt: d.nPrompt,
      nEmbd: manifest.nEmbd,
      half: d.half,
      isHeldOut: d.isHeldOut,
      hasLayerInput: d.hasLayerInput,
      rows: (start, n) => read(d, d.hiddenOffset, start, n),
      layerInput: (start, n) => read(d, d.layerInputOffset, start, n),
    }));
  return {
    manifest,
    training: documents.filter((d) => !d.isHeldOut),
    heldOut: documents.filter((d) => d.isHeldOut),
    close: () => fds.forEach((fd) => fs.closeSync(fd)),
  };
}

/** Where a stream of windows is, for snapshots. */
export interface StreamState {
  readonly rng: readonly [number, number, number, number];
  readonly order: readonly number[];
  readonly at: number;
  /** Next row of the current document. */
  readonly start: number;
  readonly nEpochs: number;
}

/** Endless windows over documents, shuffled anew each epoch; a document longer than the room goes on in the next window. */
export class WindowStream {
  readonly #documents: readonly HiddenRows[];
  #rng: Rng;
  #order: number[] = [];
  #at = 0;
  #start = 0;
  #nEpochs = 0;

  constructor(documents: readonly HiddenRows[], seed: number) {
    if (documents.length === 0) throw new UserError("the capture has no training document; capture more");
    this.#documents = documents;
    this.#rng = new Rng(seed);
  }

  get nEpochs(): number {
    return this.#nEpochs;
  }

  next(maxRows: number): Window {
    if (this.#at >= this.#order.length) {
      this.#order = this.#rng.shuffle(this.#documents.map((_, i) => i));
      this.#at = 0;
      this.#nEpochs++;
    }
    const document = this.#documents[this.#order[this.#at] as number] as HiddenRows;
    const start = this.#start;
    const left = document.tokens.length - 1 - start;
    const length = Math.min(maxRows, left);
    const isDone = left - length < shortest;
    this.#start = isDone ? 0 : start + length;
    if (isDone) this.#at++;
    return { document, start, length };
  }

  save(): StreamState {
    return { rng: this.#rng.save(), order: [...this.#order], at: this.#at, start: this.#start, nEpochs: this.#nEpochs };
  }

  restore(state: StreamState): void {
    this.#rng = Rng.restore(state.rng);
    this.#order = [...state.order];
    this.#at = state.at;
    this.#start = state.start;
    this.#nEpochs = state.nEpochs;
  }
}
