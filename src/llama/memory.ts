/**
 * What a backend will take, before it is loaded: weights from the tensor tables, the rest from a dry load (no_alloc)
 * whose figures libllama logs. Done in a child, because a dry load still allocates the recurrent states.
 */
import type { GraphEditName } from "../config/engine-options.ts";
import type { GgufTensor } from "../gguf/header.ts";
import { readGguf } from "../gguf/split.ts";
import type { BackendOptions } from "./backend.ts";
import { bytesOfCopies, bytesOfHead } from "./bf16-copies.ts";
import { runInChild } from "./child.ts";
import { deviceMemory, isGpu } from "./devices.ts";
import { bytesOfHalves } from "./f16-copies.ts";
import { bytesOfJoined } from "./joined-matrices.ts";
import type { Llama } from "./library.ts";

export interface ContextMemory {
  readonly kvBytes: number;
  readonly recurrentBytes: number;
  readonly outputBytes: number;
  /** Scratch of the compute graph by buffer: "CPU", "CUDA0", "CUDA_Host". */
  readonly computeBytes: Readonly<Record<string, number>>;
}

export interface MemoryEstimate {
  /** Tensors that are loaded, target and heads. */
  readonly weightBytes: number;
  /** The target's context, its plain one where there are two, then one for each head. */
  readonly contexts: readonly ContextMemory[];
  readonly totalBytes: number;
}

const sizeLine = /^(\S.*?):\s+(?:(\S+)\s+)?(KV buffer|RS buffer|output buffer|compute buffer|size)(?: size)?\s*=\s*([\d.]+) MiB/;

/** Reads the lines that llama_context, llama_kv_cache, llama_memory_recurrent and sched_reserve log, one context after the other. */
export function parseContextMemory(lines: readonly string[]): ContextMemory[] {
  const contexts: { kvBytes: number; recurrentBytes: number; outputBytes: number; computeBytes: Record<string, number> }[] = [];
  for (const line of lines) {
    if (line.includes("constructing llama_context")) contexts.push({ kvBytes: 0, recurrentBytes: 0, outputBytes: 0, computeBytes: {} });
    const context = contexts.at(-1);
    const match = sizeLine.exec(line);
    if (context === undefined || match === null) continue;
    const [, source = "", buffer = "", what, mib] = match;
    const bytes = Math.round(Number(mib) * 2 ** 20);
    // A dry load has empty KV buffers; the summary line has the true size.
    if (what === "size" && source.startsWith("llama_kv_cache")) context.kvBytes += bytes;
    else if (what === "size" && source.startsWith("llama_memory_recurrent")) context.recurrentBytes += bytes;
    else if (what === "output buffer") context.outputBytes += bytes;
    else if (what === "compute buffer" && source === "sched_reserve") context.computeBytes[buffer] = (context.computeBytes[buffer] ?? 0) + bytes;
  }
  return contexts;
}

/** Bytes of the tensors that are loaded: a target without its head leaves the MTP layers out. */
export function weightBytes(path: string, nTrunkLayers: number, loadsMtp: boolean): number {
  return readGguf(path).tensors.reduce((sum, tensor) => {
    const layer = /^blk\.(\d+)\./.exec(tensor.name)?.[1];
    return layer !== undefined && !loadsMtp && Number(layer) >= nTrunkLayers ? sum : sum + tensor.sizeBytes;
  }, 0);
}

/**
 * Bytes beside the weights: what all groups of slots share, matrices for edits of the target's graphs and of the heads', and what each has, the rows of a shorter LM head for each head.
 * @param headPaths the target's own file for a head that is in it
 * @param nDraftTokens 0: drafts choose among all
 */
export function besideBytes({ path, nTrunkLayers }: { readonly path: string; readonly nTrunkLayers: number }, headPaths: readonly string[], nDraftTokens: number, edits: readonly GraphEditName[]): { readonly shared: number; readonly each: number } {
  const { tensors } = readGguf(path);
  const isMtp = ({ name }: GgufTensor): boolean => Number(/^blk\.(\d+)\./.exec(name)?.[1] ?? -1) >= nTrunkLayers;
  const trunk = tensors.filter((tensor) => !isMtp(tensor) && tensor.name !== "output.weight" && tensor.name !== "token_embd.weight");
  const own = (edits.includes("bf16-copies") ? bytesOfCopies(trunk) : 0) + editBytes(trunk, lmHeadOf(tensors, false), edits);
  let [shared, each] = [own, 0];
  for (const headPath of headPaths) {
    const head = readGguf(headPath).tensors;
    const lmHead = lmHeadOf(head, true);
    const nVocab = lmHead?.shape[1] ?? 0;
    const isShort = nDraftTokens > 0 && nDraftTokens < nVocab;
    if (isShort) each += ((lmHead?.sizeBytes ?? 0) / nVocab) * nDraftTokens;
    // A head in the target's file takes the target's LM head, unless it has one of its own.
    const isTargets = headPath === path && lmHead === lmHeadOf(head, false);
    shared += editBytes(headPath === path ? head.filter(isMtp) : head, isShort || isTargets ? undefined : lmHead, edits);
  }
  return { shared, each };
}

function editBytes(layers: readonly GgufTensor[], lmHead: GgufTensor | undefined, edits: readonly GraphEditName[]): number {
  const halves = edits.includes("f16-copies") ? bytesOfHalves(layers) : 0;
  const joined = edits.includes("joined-products") ? bytesOfJoined(layers) : 0;
  return halves + joined + (edits.includes("bf16-head") && lmHead !== undefined ? bytesOfHead(lmHead) : 0);
}

/** A head may have one of its own. */
function lmHeadOf(tensors: readonly GgufTensor[], isHead: boolean): GgufTensor | undefined {
  const own = isHead ? tensors.find(({ name }) => name.endsWith("shared_head_head.weight")) : undefined;
  return own ?? ["output.weight", "token_embd.weight"].map((name) => tensors.find((tensor) => tensor.name === name)).find((tensor) => tensor !== undefined);
}

/** @throws {UserError} for files that do not fit together, or a configuration that libllama refuses. */
export async function estimateMemory(options: BackendOptions): Promise<MemoryEstimate> {
  return runInChild<BackendOptions, MemoryEstimate>({ entry: "memory-child", request: options, what: `estimate for ${options.modelPath}` });
}

export function totalBytes(weights: number, contexts: readonly ContextMemory[]): number {
  return contexts.reduce((sum, { kvBytes, recurrentBytes, outputBytes, computeBytes }) => sum + kvBytes + recurrentBytes + outputBytes + Object.values(computeBytes).reduce((a, b) => a + b, 0), weights);
}

/** Memory in use now: of the GPUs when there are any (by everyone), else this process's resident set. */
export function usedMemory(llama: Llama): number {
  const gpus = llama.devices.filter(isGpu);
  if (gpus.length === 0) return process.memoryUsage.rss();
  return gpus.reduce((sum, gpu) => {
    const { totalBytes: total, freeBytes } = deviceMemory(llama.deviceApi, gpu);
    return sum + total - freeBytes;
  }, 0);
}
