/**
 * Which experts the routers of a mixture-of-experts model select, counted where libllama computes them: ggml's eval
 * callback asks for every node of a graph, and the nodes "ffn_moe_topk-LAYER" (llama-graph.cpp `build_moe_ffn`) hold
 * the chosen ids of every row. A weight is read once a forward however many rows chose its expert, so the number of
 * distinct experts says what a forward of many rows reads.
 *
 * Only these nodes are asked for; each cuts the graph there (a fused router runs unfused) and waits for the device, and
 * every other node costs a call into JavaScript: a run with this callback has no times worth telling.
 */
import koffi from "koffi";
import { countKey, modelKey } from "../gguf/keys.ts";
import { readGguf } from "../gguf/split.ts";
import { UserError } from "../util/errors.ts";
import type { Llama } from "./library.ts";
import type { Memory, Pointer } from "./structs.ts";

/** One router in one forward. */
export interface RoutedLayer {
  readonly layer: number;
  readonly nRows: number;
  /** Experts that each row selects. */
  readonly nUsed: number;
  /** Different experts that all rows together select. */
  readonly nDistinct: number;
}

/** The routers of one forward, in order of layers. */
export type RoutedForward = readonly RoutedLayer[];

export interface ExpertCounter {
  /** For `BackendOptions.targetEvalCallback`. */
  readonly callback: Pointer;
  readonly nExperts: number;
  /** Nothing is read or kept while false. */
  isOn: boolean;
  /** Forwards since the last call, in order. @throws when a node was not what a router's choice looks like. */
  take(): readonly RoutedForward[];
  /** After every context that has the callback is closed. */
  close(): void;
}

/** Experts of each layer of a model. @throws {UserError} for a model without any. */
export function readExpertCount(path: string): number {
  const gguf = readGguf(path);
  const nExperts = countKey(gguf, modelKey(gguf, "expert_count")) ?? 0;
  if (nExperts === 0) throw new UserError(`${path} has no experts to count (no ${modelKey(gguf, "expert_count")}); leave out --experts for a dense model`);
  return nExperts;
}

export interface IdMatrix {
  readonly nRows: number;
  readonly nUsed: number;
  /** Elements from one row to the next; a row of a top-k view is as long as all experts. */
  readonly stride: number;
}

/**
 * Different ids in the first `nUsed` of each row.
 * @param marks one per expert, all zero, and zero again afterwards
 * @throws {RangeError} for an id that is not an expert's
 */
export function countDistinct(ids: Int32Array, { nRows, nUsed, stride }: IdMatrix, marks: Uint8Array): number {
  let nDistinct = 0;
  try {
    for (let row = 0; row < nRows; row++) {
      for (let i = row * stride; i < row * stride + nUsed; i++) {
        const mark = marks[ids[i] as number];
        if (mark === undefined) throw new RangeError(`expert ${ids[i]} of ${marks.length}`);
        if (mark === 0) nDistinct++;
        marks[ids[i] as number] = 1;
      }
    }
  } finally {
    marks.fill(0);
  }
  return nDistinct;
}

const evalCallbackType = koffi.pointer(koffi.proto("bool", ["void *", "bool", "void *"]));
const nodePrefix = "ffn_moe_topk-";
const idBytes = 4;

/** The layer of a router's choice; undefined for every other node (views of one are named "ffn_moe_topk-3 (view)"). */
export function layerOfNode(name: string): number | undefined {
  if (!name.startsWith(nodePrefix)) return undefined;
  const layer = name.slice(nodePrefix.length);
  return /^\d+$/.test(layer) ? Number(layer) : undefined;
}

/** @param nExperts experts of each layer, see `readExpertCount` */
export function createExpertCounter(llama: Llama, nExperts: number): ExpertCounter {
  const nameOf = llama.base.func("ggml_get_name", "str", ["void *"]) as (tensor: Pointer) => string;
  const reader = createIdReader(llama);
  const marks = new Uint8Array(nExperts);
  let forwards: RoutedLayer[][] = [];
  let failure: Error | undefined;
  const note = (tensor: Pointer): void => {
    const name = nameOf(tensor);
    const layer = layerOfNode(name);
    if (layer === undefined) return;
    const { ids, matrix } = reader(tensor, name);
    const routed = { layer, nRows: matrix.nRows, nUsed: matrix.nUsed, nDistinct: countDistinct(ids, matrix, marks) };
    const last = forwards.at(-1);
    // Layers rise within a forward.
    if (last === undefined || layer <= (last.at(-1) as RoutedLayer).layer) forwards.push([routed]);
    else last.push(routed);
  };
  const onNode = (tensor: Pointer, isQuestion: boolean): boolean => {
    if (isQuestion) return counter.isOn && failure === undefined && layerOfNode(nameOf(tensor)) !== undefined;
    try {
      note(tensor);
    } catch (error) {
      // An exception must not cross native frames; false would end the forward half way.
      failure = error instanceof Error ? error : new Error(String(error));
    }
    return true;
  };
  const callback = koffi.register(onNode, evalCallbackType);
  const counter: ExpertCounter = {
    callback,
    nExperts,
    isOn: false,
    take() {
      const taken = forwards;
      forwards = [];
      if (failure !== undefined) throw failure;
      return taken;
    },
    close: () => koffi.unregister(callback),
  };
  return counter;
}

/** Copies a choice [nRows, nUsed] of I32 from whatever memory it is in. What is returned is valid until the next call. */
function createIdReader(llama: Llama): (tensor: Pointer, name: string) => { ids: Int32Array; matrix: IdMatrix } {
  const { base } = llama;
  const nRowsOf = base.func("ggml_nrows", "int64_t", ["void *"]) as (tensor: Pointer) => number | bigint;
  const nElementsOf = base.func("ggml_nelements", "int64_t", ["void *"]) as (tensor: Pointer) => number | bigint;
  const sizeOf = base.func("ggml_nbytes", "size_t", ["void *"]) as (tensor: Pointer) => number | bigint;
  const get = base.func("ggml_backend_tensor_get", "void", ["void *", "void *", "size_t", "size_t"]) as (tensor: Pointer, into: Memory, offset: number, size: number) => void;
  let buffer = new Int32Array(1024);
  return (tensor, name) => {
    const nRows = Number(nRowsOf(tensor));
    const nUsed = Number(nElementsOf(tensor)) / nRows;
    const sizeBytes = Number(sizeOf(tensor));
    // ggml_nbytes spans from the first element to the last: (nRows - 1) strides and one row of nUsed.
    const stride = nRows === 1 ? nUsed : (sizeBytes / idBytes - nUsed) / (nRows - 1);
    if (!Number.isInteger(stride) || stride < nUsed) throw new Error(`${name}: ${sizeBytes} bytes are not ${nRows} rows of ${nUsed} expert ids`);
    if (buffer.byteLength < sizeBytes) buffer = new Int32Array(sizeBytes / idBytes);
    get(tensor, buffer, 0, sizeBytes);
    return { ids: buffer, matrix: { nRows, nUsed, stride } };
  };
}
