/**
 * `foretoken capture`: the target writes its own continuations, and the hidden row of every token goes to disk. A head
 * must be trained on what the deployed file itself writes: its quantization and its own distribution decide acceptance.
 */
import * as fs from "node:fs";
import * as path from "node:path";
import { createContext } from "../llama/create-context.ts";
import { LayerInput } from "../llama/layer-input.ts";
import { loadLlama } from "../llama/library.ts";
import { loadModel, type Model } from "../llama/model.ts";
import { chooseThreads } from "../llama/threads.ts";
import { Vocab } from "../llama/vocab.ts";
import { UserError } from "../util/errors.ts";
import { requireDiskSpace, sha256File } from "../util/files.ts";
import { formatDuration, formatInteger } from "../util/format.ts";
import { createChatText, type ChatText } from "./chat-text.ts";
import { createDocumentSource, type DocumentPlan, type SourceOptions } from "./document-source.ts";
import { DocumentWriter, type CaptureVocab, type OpeningTokens } from "./document-writer.ts";
import { heldOutOf } from "./held-out.ts";
import type { Prompt, PromptLine } from "./prompts.ts";
import { readManifest, readShardTable, removeCapture, requireSameModel, shardName, writeManifest, writeShard, type CapturedDocument, type Manifest } from "./shards.ts";

export interface CaptureOptions extends SourceOptions {
  readonly modelPath: string;
  readonly output: string;
  readonly lines: readonly PromptLine[];
  /** Prompts whose templates, tasks and texts must stay out. */
  readonly heldOutPrompts: readonly Prompt[];
  /** Stop after so many tokens. */
  readonly nTokens: number;
  /** Stop after so long, with what there is then. */
  readonly maxMs: number;
  readonly nSequences: number;
  readonly maxPrompt: number;
  readonly maxNew: number;
  readonly openingTemperature: number;
  readonly shardTokens: number;
  /** Trunk layer whose input rows a ridge fit needs; undefined: none are kept. */
  readonly inputLayer: number | undefined;
  readonly nLayerInputRows: number;
  readonly threads: number;
  readonly device: string | undefined;
  readonly llamaDir: string | undefined;
  readonly signal: AbortSignal;
  /** Starts a capture over when the folder holds one made with other options. */
  readonly force: boolean;
  /** This process writes one part of a capture that several write; undefined: all of it. */
  readonly part?: CapturePart | undefined;
  readonly onProgress: (progress: CaptureProgress) => void;
}

/** Every `nParts`-th document from document `index` on, apart from those that the folder `of` holds already. */
export interface CapturePart {
  readonly index: number;
  readonly nParts: number;
  readonly of: string;
}

export interface CaptureProgress {
  readonly nTokens: number;
  readonly totalTokens: number;
  readonly nDocuments: number;
  readonly tokensPerSecond: number;
}

/** @throws {UserError} for another model's folder, too little disk, unreadable prompts. Whole shards stay when it is stopped. */
export async function capture(options: CaptureOptions): Promise<Manifest> {
  const llama = loadLlama({ llamaDir: options.llamaDir, device: options.device });
  const sha256 = await sha256File(options.modelPath);
  using model = loadModel(llama, options.modelPath, options.device === undefined ? {} : { device: options.device });
  const manifest = startManifest(options, model, sha256, `llama.cpp ${llama.version}`);
  if (manifest.nTokens >= options.nTokens) return manifest;
  const rowBytes = 2 * model.nEmbd + 4;
  requireDiskSpace(options.output, (options.nTokens - manifest.nTokens) * rowBytes + options.nLayerInputRows * 2 * model.nEmbd, "the capture");
  return await run(options, model, manifest);
}

/** What decides the documents, apart from how many there are. */
function planOf(options: CaptureOptions): Record<string, unknown> {
  const { seed, sampledShare, temperature, chatShare, heldOutShare, startTokens, maxPrompt, maxNew, openingTemperature } = options;
  return { seed, sampledShare, temperature, chatShare, heldOutShare, startTokens, maxPrompt, maxNew, openingTemperature, lines: options.lines.length, heldOutPrompts: options.heldOutPrompts.length, inputLayer: options.inputLayer ?? null };
}

function startManifest(options: CaptureOptions, model: Model, sha256: string, library: string): Manifest {
  const fresh: Manifest = {
    format: "foretoken-capture-1",
    model: { file: path.resolve(options.modelPath), sha256, sizeBytes: fs.statSync(options.modelPath).size },
    library,
    normStage: "post-final-norm",
    nEmbd: model.nEmbd,
    nVocab: model.nVocab,
    layerInput: options.inputLayer === undefined ? null : { layer: options.inputLayer, nRows: 0 },
    plan: planOf(options),
    shards: [],
    nDocuments: 0,
    nTokens: 0,
    nGenerated: 0,
    nExcluded: 0,
    wallMs: 0,
  };
  if (options.part !== undefined) requireSameCapture(options.part.of, readManifest(options.part.of), fresh);
  if (options.force) removeCapture(options.output);
  const before = readManifest(options.output);
  requireSameCapture(options.output, before, fresh);
  return before ?? fresh;
}

function requireSameCapture(folder: string, before: Manifest | undefined, fresh: Manifest): void {
  if (before === undefined) return;
  requireSameModel(folder, before, fresh.model.sha256);
  const changed = Object.keys(fresh.plan).find((key) => JSON.stringify(fresh.plan[key]) !== JSON.stringify(before.plan[key]));
  if (changed !== undefined) throw new UserError(`${folder} was captured with ${changed} ${JSON.stringify(before.plan[changed])}, not ${JSON.stringify(fresh.plan[changed])}; choose another --output, or --force to start over`);
}

async function run(options: CaptureOptions, model: Model, manifest: Manifest): Promise<Manifest> {
  using vocab = new Vocab(model, false);
  using context = openContext(options, model);
  const source = createDocumentSource(options.lines, options);
  const texts = captureVocab(vocab);
  const heldOut = heldOutOf(options.heldOutPrompts);
  const base = options.part === undefined ? undefined : readManifest(options.part.of);
  const wantsInput = options.inputLayer !== undefined && (manifest.layerInput?.nRows ?? 0) + (base?.layerInput?.nRows ?? 0) === 0;
  const writer = new DocumentWriter(
    context,
    texts,
    options,
    (text) => heldOut.matches(text),
    wantsInput ? new LayerInput(model, context, options.inputLayer) : undefined,
  );
  const openings = createOpenings(vocab, texts);
  const done = doneIndices(options.output, manifest);
  if (base !== undefined) for (const index of doneIndices((options.part as CapturePart).of, base)) done.add(index);
  const { index: firstIndex, nParts } = options.part ?? { index: 0, nParts: 1 };
  const startMs = performance.now();
  const before = manifest;
  let [current, nextIndex, pending, nPending]: [Manifest, number, CapturedDocument[], number] = [manifest, firstIndex, [], 0];
  const flush = async (): Promise<void> => {
    if (pending.length === 0) return;
    const file = shardName(current.shards.length);
    await writeShard(path.join(options.output, file), pending, model.nEmbd);
    const nInputRows = pending.reduce((sum, d) => sum + (d.layerInput === undefined ? 0 : d.tokens.length), 0);
    current = {
      ...current,
      layerInput: current.layerInput === null ? null : { ...current.layerInput, nRows: current.layerInput.nRows + nInputRows },
      shards: [...current.shards, { file, nDocuments: pending.length, nTokens: nPending }],
      nDocuments: current.nDocuments + pending.length,
      nTokens: current.nTokens + nPending,
      nGenerated: before.nGenerated + writer.counts.nGenerated,
      nExcluded: before.nExcluded + writer.counts.nExcluded,
      wallMs: before.wallMs + (performance.now() - startMs),
    };
    await writeManifest(options.output, current);
    [pending, nPending] = [[], 0];
  };
  while (current.nTokens + nPending < options.nTokens && performance.now() - startMs < options.maxMs) {
    options.signal.throwIfAborted();
    while (writer.hasRoom && nextIndex < source.size) {
      const plan = source.plan(nextIndex);
      nextIndex += nParts;
      if (!done.has(plan.index)) writer.start(plan, openings(plan));
    }
    if (writer.nActive === 0) break;
    for (const document of writer.step()) {
      pending.push(document);
      nPending += document.tokens.length;
    }
    if (nPending >= options.shardTokens) await flush();
    report(options, current.nTokens + nPending, current.nDocuments + pending.length, current.nTokens + nPending - before.nTokens, startMs);
    // One turn of the event loop a step, so that a signal is seen.
    await new Promise((resolve) => setImmediate(resolve));
  }
  await flush();
  if (options.part === undefined) noteShort(current, options, performance.now() - startMs);
  return current;
}

/** Says why there are fewer tokens than asked for. @throws {UserError} when there are none. */
export function noteShort({ nTokens, nDocuments }: Pick<Manifest, "nTokens" | "nDocuments">, options: Pick<CaptureOptions, "nTokens" | "maxMs">, elapsedMs: number): void {
  if (nTokens >= options.nTokens) return;
  const isTimeUp = elapsedMs >= options.maxMs;
  if (nDocuments === 0) throw new UserError(isTimeUp ? "no document was finished in the time given; give --minutes more" : "no document was captured; are all prompts excluded as held out?");
  const reason = isTimeUp ? `in ${formatDuration(options.maxMs)} the model wrote` : "the prompts gave";
  process.stderr.write(`foretoken: ${reason} ${formatInteger(nTokens)} of ${formatInteger(options.nTokens)} tokens${isTimeUp ? "" : "; add prompts or a user-turn line"}\n`);
}

function report(options: CaptureOptions, nTokens: number, nDocuments: number, nNew: number, startMs: number): void {
  options.onProgress({ nTokens, totalTokens: options.nTokens, nDocuments, tokensPerSecond: nNew / ((performance.now() - startMs) / 1000) });
}

function openContext(options: CaptureOptions, model: Model) {
  const perSequence = Math.ceil((options.maxPrompt + options.startTokens[1] + 64 + options.maxNew) / 256) * 256;
  if (perSequence > model.nCtxTrain) throw new UserError(`documents of ${perSequence} tokens are longer than the ${model.nCtxTrain} the model was trained for; lower --max-prompt or --max-new`);
  const nThreads = chooseThreads(options.threads);
  const context = createContext(model, {
    nCells: perSequence * options.nSequences,
    samplings: Array.from({ length: options.nSequences }, () => "host" as const),
    nBatch: Math.max(options.maxPrompt + 64, options.nSequences),
    nUbatch: Math.max(options.maxPrompt + 64, options.nSequences),
    nThreads,
    nThreadsBatch: nThreads,
    isKvUnified: false,
    nRollback: 0,
    nOutputsPerSeq: 1,
    isDraft: false,
    hiddenRows: "all",
  });
  return context;
}

function captureVocab(vocab: Vocab): CaptureVocab {
  return {
    tokenize: (text, parseSpecial) => vocab.tokenize(text, { parseSpecial, addSpecial: true }),
    text: (tokens) => Buffer.from(vocab.detokenize(tokens, true)).toString("utf8"),
    isEndOfGeneration: (token) => vocab.isEndOfGeneration(token),
  };
}

/** Longest user message that the model may write. */
const maxUserTokens = 64;

function createOpenings(vocab: Vocab, texts: CaptureVocab): (plan: DocumentPlan) => OpeningTokens {
  let chat: ChatText | undefined;
  const chatText = (): ChatText => (chat ??= createChatText(vocab.chatTemplate, { bos: vocab.bos?.text ?? "", eos: vocab.eos?.text ?? "" }));
  const nothing = new Int32Array(0);
  return ({ opening }) => {
    if (opening.kind === "start") return { tokens: texts.tokenize(opening.text, false), nSampled: opening.nSampled, closing: nothing };
    if (opening.kind === "user-turn") {
      const { before, after } = chatText().userTurn;
      return { tokens: texts.tokenize(before, true), nSampled: maxUserTokens, closing: vocab.tokenize(after, { parseSpecial: true }) };
    }
    const { prompt } = opening;
    if (prompt.messages !== undefined) return { tokens: texts.tokenize(chatText().render(prompt.messages), true), nSampled: 0, closing: nothing };
    return { tokens: texts.tokenize(prompt.prompt ?? "", false), nSampled: 0, closing: nothing };
  };
}

/** Documents that a capture holds. */
export function doneIndices(folder: string, manifest: Manifest): Set<number> {
  return new Set(manifest.shards.flatMap((shard) => readShardTable(path.join(folder, shard.file)).map((d) => d.index)));
}
