/**
 * Backend on libllama: one target context and a draft context for each head, with all that is costly to change fixed
 * here. A head in the target's file shares its model; a head in a file of its own is a model of its own.
 */
import type { GraphEditName } from "../config/engine-options.ts";
import type { Backend, BackendDescription, SlotSampling } from "../engine/backend.ts";
import { UserError } from "../util/errors.ts";
import type { LlamaContext } from "./context.ts";
import { createContext, type CacheType, type ContextOptions, type FlashAttention } from "./create-context.ts";
import type { DraftVocab } from "./draft-vocab.ts";
import { EditMatrices } from "./edit-matrices.ts";
import { createGrammar } from "./grammar.ts";
import { usefulEdits } from "./graph-edits.ts";
import { checkHead, checkTarget, readModelFacts, type ModelFacts } from "./head-check.ts";
import { loadLlama } from "./library.ts";
import { loadModel, type Model, type ModelOptions } from "./model.ts";
import { SharedMatrices } from "./shared-matrices.ts";
import { Staging } from "./staging.ts";
import type { Pointer } from "./structs.ts";
import { chooseThreads } from "./threads.ts";
import { Vocab } from "./vocab.ts";

export interface BackendOptions {
  readonly modelPath: string;
  /** Files of draft heads; one drafts every position, several draft one position each. */
  readonly headPaths?: readonly string[];
  /** Without `headPaths`: draft with the head inside the model file. */
  readonly useHead?: boolean;
  /** Sequences that serve requests: ids 0 to nSlots - 1. */
  readonly nSlots: number;
  /** Cells over all slots, as llama-server's --ctx-size; 0: the model's training length for each slot, at most 4096. */
  readonly ctxSize?: number;
  readonly batchSize?: number;
  readonly ubatchSize?: number;
  /** 0 chooses a safe number for this machine now. */
  readonly threads?: number;
  readonly threadsBatch?: number;
  readonly gpuLayers?: number;
  /** "auto", "cpu" or "none", or device names. */
  readonly device?: string;
  /** The same for heads in files of their own; default: the target's. Hidden rows cross through the host either way. */
  readonly headDevice?: string | undefined;
  readonly flashAttn?: FlashAttention;
  readonly cacheTypeK?: CacheType;
  readonly cacheTypeV?: CacheType;
  /** One pool of cells for all sequences; off, each sequence has its own and rows of sequences do not mix in attention. */
  readonly kvUnified?: boolean;
  /** Most draft tokens a step. Fixes the rollback snapshots and output rows of the target. */
  readonly nMax?: number;
  /** A second target context without rollback snapshots, where those cost something (recurrent models, nMax > 0). */
  readonly plainTarget?: boolean;
  /** How slots are sampled; `nHostSlots` more sequences after them keep all logits. */
  readonly targetSampling?: SlotSampling;
  readonly nHostSlots?: number;
  /** Of every draft sequence. */
  readonly draftSampling?: SlotSampling;
  /** "device-greedy" drafts are chosen among so many first tokens of the vocabulary (0: all), or among these. */
  readonly draftVocab?: number | DraftVocab;
  /** More sequences of the draft contexts, after the target's, for padding rows. */
  readonly nScratchSeq?: number;
  /** Output rows of one sequence in a decode, when more than nMax + 1 are wanted (capture, scoring). */
  readonly nOutputsPerSeq?: number;
  readonly graphReuse?: boolean;
  /** "device-greedy": one argmax for all rows of a forward (batched-argmax.ts) instead of libllama's one a row. */
  readonly batchedArgmax?: boolean;
  /** Parts of the vocabulary that each argmax is made of; 0: as many as is best on the devices. */
  readonly argmaxParts?: number;
  /** Changes of the target's graphs, where steps can gain by them. */
  readonly graphEdits?: readonly GraphEditName[];
  /** Cells that the KV caches show from the start, so that graphs need no rebuilding as they fill; 0 off. */
  readonly nPinnedCells?: number;
  /** Repacked CPU weights; off for rows that are bitwise equal at every batch width. */
  readonly useExtraBuffers?: boolean;
  readonly llamaDir?: string | undefined;
  readonly onProgress?: (ratio: number) => boolean;
  /** ggml eval callback of every context; see forward-counter.ts. */
  readonly evalCallback?: Pointer;
  /** The same for contexts of the target alone; see expert-counter.ts. */
  readonly targetEvalCallback?: Pointer;
  /** Models that another thread has loaded by `loadModels` of the same options: contexts are made of them. */
  readonly shared?: SharedModels;
}

/** Addresses of loaded models; heads in the target's file have none of their own. */
export interface SharedModels {
  readonly model: Pointer;
  readonly heads: readonly Pointer[];
  /** Of matrices that one group makes for all (shared-matrices.ts). */
  readonly matrices: SharedArrayBuffer;
}

export interface LlamaBackend extends Backend, Disposable {
  readonly target: LlamaContext;
  readonly plainTarget: LlamaContext | undefined;
  readonly heads: readonly LlamaContext[];
  readonly vocab: Vocab;
  /** CPU threads of a decode. */
  readonly nThreads: number;
  /** Why some of its graphs are not edited as asked; undefined where they are. */
  readonly editProblem: string | undefined;
}

/** Draft contexts are one forward for ragged rows only when their KV cache is one pool. */
const SCRATCH_CELLS = 256;
const roundUp = (n: number, step: number): number => Math.ceil(n / step) * step;

/**
 * Loads the files and makes the contexts.
 * @throws {UserError} for files that do not fit together (checked before libllama sees them), a missing device, or
 * memory that does not suffice. Nothing stays loaded then.
 */
export function createBackend(options: BackendOptions): LlamaBackend {
  if (options.nSlots < 1) throw new UserError(`--parallel ${options.nSlots}: at least one slot is needed`);
  const open = new Set<{ close(): void }>();
  const closeAll = (): void => {
    // In the order that native memory needs: last made, first freed.
    for (const owner of [...open].toReversed()) owner.close();
    open.clear();
  };
  const keep = <T extends { close(): void }>(owner: T): T => {
    open.add(owner);
    return owner;
  };
  try {
    const { model, headModels } = loadModels(options, keep);
    const { llama } = model;
    const plan = planContexts(options, model, headModels.length);
    const made = options.shared === undefined ? undefined : new SharedMatrices(options.shared.matrices);
    const matrices = keep(new EditMatrices(llama, model.path, made));
    const target = keep(createContext(model, plan.target, matrices));
    const plainTarget = plan.plainTarget === undefined ? undefined : keep(createContext(model, plan.plainTarget, matrices));
    const staging = plainTarget === undefined ? undefined : keep(new Staging(llama, model.devices));
    const heads = headModels.map((head, i) => keep(createContext(head, plan.heads[i] as ContextOptions, head === model ? matrices : keep(new EditMatrices(llama, head.path, made)))));
    const vocab = new Vocab(model, false);
    return {
      target,
      plainTarget,
      staging: staging === undefined ? undefined : (nBytes) => staging.atLeast(nBytes),
      heads,
      vocab,
      nThreads: plan.target.nThreads,
      editProblem: [target, plainTarget, ...heads].map((context) => context?.graphEdits?.problem()).find((problem) => problem !== undefined),
      description: describe(options, model),
      createGrammar: (gbnf) => keep(createGrammar(vocab, llama.api, gbnf, (grammar) => open.delete(grammar))),
      isEndOfGeneration: (token) => vocab.isEndOfGeneration(token),
      tokenBytes: (token, special) => vocab.tokenBytes(token, special),
      close: closeAll,
      [Symbol.dispose]: closeAll,
    };
  } catch (error) {
    closeAll();
    throw error;
  }
}

/** Checks and loads the target and its heads; `keep` learns of each at once, so that nothing leaks when a later one fails. */
export function loadModels(options: BackendOptions, keep: (model: Model) => Model): { readonly model: Model; readonly headModels: readonly Model[] } {
  const { headPaths = [], useHead = false, shared } = options;
  const isInFile = useHead && headPaths.length === 0;
  const targetFacts = readModelFacts(options.modelPath);
  checkTarget(targetFacts, isInFile);
  const headFacts = headPaths.map((path) => readModelFacts(path));
  for (const facts of headFacts) checkHead(facts, targetFacts);
  const llama = loadLlama({ llamaDir: options.llamaDir, device: options.device });
  const load = (facts: ModelFacts, loadMtp: boolean, device: string | undefined, address: Pointer | undefined): Model =>
    keep(loadModel(llama, facts.path, { ...modelOptions(options, facts, loadMtp), ...(device === undefined ? {} : { device }), ...(address === undefined ? {} : { shared: address }) }));
  const model = load(targetFacts, isInFile, options.device, shared?.model);
  const headModels = isInFile ? [model] : headFacts.map((facts, i) => load(facts, true, options.headDevice ?? options.device, shared?.heads[i]));
  return { model, headModels };
}

function modelOptions(options: BackendOptions, facts: ModelFacts, loadMtp: boolean): ModelOptions {
  return {
    facts,
    loadMtp,
    ...(options.gpuLayers === undefined ? {} : { gpuLayers: options.gpuLayers }),
    ...(options.useExtraBuffers === undefined ? {} : { useExtraBuffers: options.useExtraBuffers }),
    ...(options.onProgress === undefined ? {} : { onProgress: options.onProgress }),
  };
}

export interface ContextPlan {
  readonly target: ContextOptions;
  readonly plainTarget: ContextOptions | undefined;
  readonly heads: readonly ContextOptions[];
}

/** Pure but for the thread count: sizes of every context from the options. */
export function planContexts(options: BackendOptions, model: { readonly nCtxTrain: number; readonly isRecurrent: boolean }, nHeads: number): ContextPlan {
  const { nSlots, nMax = 0, nHostSlots = 0, nScratchSeq = 1, kvUnified = true } = options;
  const nSeq = nSlots + nHostSlots;
  const asked = options.ctxSize ?? 0;
  const perSlot = asked > 0 ? Math.max(1, Math.floor(asked / nSlots)) : Math.min(4096, model.nCtxTrain);
  const nCells = kvUnified ? roundUp(asked > 0 ? asked : perSlot * nSeq, 256) : roundUp(perSlot, 256) * nSeq;
  const nThreads = chooseThreads(options.threads ?? 0);
  const nBatch = Math.min(options.batchSize ?? 2048, nCells);
  const shared = {
    nBatch,
    nUbatch: Math.min(options.ubatchSize ?? 512, nBatch),
    nThreads,
    nThreadsBatch: options.threadsBatch !== undefined && options.threadsBatch > 0 ? options.threadsBatch : nThreads,
    flashAttention: options.flashAttn ?? "auto",
    cacheTypeK: options.cacheTypeK ?? "f16",
    cacheTypeV: options.cacheTypeV ?? "f16",
    isGraphReused: options.graphReuse ?? true,
    isArgmaxBatched: options.batchedArgmax ?? true,
    argmaxParts: options.argmaxParts ?? 0,
    nPinnedCells: options.nPinnedCells ?? 0,
    ...(options.evalCallback === undefined ? {} : { evalCallback: options.evalCallback }),
  } as const;
  const editsFor = (rowsPerSeq: number): { graphEdits: readonly GraphEditName[] } => ({ graphEdits: usefulEdits(options.graphEdits ?? [], nSlots, rowsPerSeq) });
  // A head has no linear attention, and one layer is too few for BF16 copies; a device of its own may be of another kind.
  const areHeadsEdited = options.headDevice === undefined && (options.draftSampling ?? "host") !== "host";
  // A shorter LM head is gathered from the file's.
  const hasShortHead = (options.draftVocab ?? 0) !== 0;
  const headEdits = { graphEdits: editsFor(nMax + 1).graphEdits.filter((name) => areHeadsEdited && (["f16-copies", "joined-products", "split-experts"].includes(name) || (name === "bf16-head" && !hasShortHead))) };
  const slots = Array.from({ length: nSeq }, (_, seq): SlotSampling => (seq < nSlots ? (options.targetSampling ?? "host") : "host"));
  const target: ContextOptions = {
    ...shared,
    nCells,
    samplings: slots,
    isKvUnified: kvUnified,
    nRollback: nMax,
    nOutputsPerSeq: Math.max(nMax + 1, options.nOutputsPerSeq ?? 1),
    isDraft: false,
    hiddenRows: nHeads > 0 ? "all" : "none",
    ...editsFor(nMax + 1),
    ...(options.targetEvalCallback === undefined ? {} : { evalCallback: options.targetEvalCallback }),
  };
  const plainTarget = options.plainTarget === true && model.isRecurrent && nMax > 0 ? { ...target, ...editsFor(1), nRollback: 0, nOutputsPerSeq: options.nOutputsPerSeq ?? 1 } : undefined;
  const draftSlots = Array.from({ length: nSeq + nScratchSeq }, (): SlotSampling => options.draftSampling ?? "host");
  const heads = Array.from({ length: nHeads }, (_, i): ContextOptions => {
    const feedsNext = i + 1 < nHeads;
    return {
      ...shared,
      nCells: nCells + nScratchSeq * SCRATCH_CELLS,
      samplings: draftSlots,
      isKvUnified: true,
      nRollback: 0,
      nOutputsPerSeq: feedsNext ? nMax + 1 : 1,
      isDraft: true,
      argmaxTokens: options.draftVocab ?? 0,
      hiddenRows: "all",
      ...headEdits,
    };
  });
  return { target, plainTarget, heads };
}

function describe(options: BackendOptions, model: Model): BackendDescription {
  const { llama } = model;
  const names = model.devices.map((d) => `${d.name} ${d.description}`);
  const cpu = llama.devices.find((d) => d.type === "cpu");
  return {
    device: names.length > 0 ? names.join(", ") : `CPU ${cpu?.description ?? ""}`.trim(),
    library: `llama.cpp ${llama.version} (ggml ${llama.ggmlVersion})`,
    modelPath: options.modelPath,
    headPaths: options.headPaths ?? [],
    isAsynchronous: model.isAsynchronous,
  };
}
