/**
 * What is changed in the graphs that libllama builds for a model, so that CUDA computes them faster. All edits leave what is
 * computed as it is, but for rounding; each has its name for `--graph-edits`.
 *
 * - bf16-copies: products of quantized matrices with more than eight rows take BF16 copies (bf16-copies.ts).
 * - bf16-head: the LM head takes one for 2 to 16 rows.
 * - contiguous-conv: rows are put in order before a recurrent layer's convolution (contiguous-conv.ts).
 * - f16-copies: products of F32 matrices with 4 to 16 rows take F16 copies (f16-copies.ts).
 * - flat-products: a product of one matrix and a stack becomes one of all rows (flat-products.ts).
 * - joined-norms: query and key of linear attention are normed by one node (joined-norms.ts).
 * - joined-products: matrices that multiply the same rows become one (joined-products.ts).
 * - joined-snapshots: states kept for rollback are copied at once (joined-snapshots.ts).
 * - split-experts: experts of more than eight rows are told as those of four or three (split-experts.ts).
 */
import { graphEditNames, type GraphEditName } from "../config/engine-options.ts";
import { errorMessage } from "../util/errors.ts";
import { headRows } from "./bf16-copies.ts";
import { bindIsOnHost, type DerivedMatrices } from "./device-matrix.ts";
import type { EditMatrices } from "./edit-matrices.ts";
import { convRows, straighten } from "./contiguous-conv.ts";
import { halfRows } from "./f16-copies.ts";
import { flattenProduct, leastStack } from "./flat-products.ts";
import { bindGraph, GraphNodes, type Addition, type GraphFunctions } from "./graph-nodes.ts";
import { bindGraphOps, tensorAt, unpadded, words, type GraphOps } from "./graph-surgery.ts";
import { joinNorms } from "./joined-norms.ts";
import { findJoins, joinProducts, mostVectorRows, type Join, type Product } from "./joined-products.ts";
import { joinSnapshots } from "./joined-snapshots.ts";
import type { Llama } from "./library.ts";
import { expertRows, splitExperts } from "./split-experts.ts";
import type { Pointer } from "./structs.ts";
import { createUserSampler, dataWords, type UserSampler } from "./user-sampler.ts";

/** Below nine rows quantized matrices are faster. */
const leastCopyRows = mostVectorRows + 1;

/** Those of `names` that steps of so many sequences, of up to so many rows each, can gain by. */
export function usefulEdits(names: readonly GraphEditName[], nSeqs: number, rowsPerSeq: number): readonly GraphEditName[] {
  const isUseful: Record<GraphEditName, boolean> = {
    // Prompts have rows enough.
    "bf16-copies": true,
    "bf16-head": nSeqs * rowsPerSeq >= headRows.least,
    "contiguous-conv": nSeqs >= convRows.leastSeqs && rowsPerSeq > 1,
    "f16-copies": nSeqs * rowsPerSeq >= halfRows.least,
    "flat-products": nSeqs >= leastStack,
    "joined-norms": true,
    "joined-products": true,
    "joined-snapshots": rowsPerSeq > 1,
    "split-experts": nSeqs * rowsPerSeq >= expertRows.least,
  };
  return names.filter((name) => isUseful[name]);
}

/** H100, H200, H800, H20, GH200; a slice of one has less of its bandwidth. */
const hopper = /\bG?H(?:100|200|800|20)\b(?!.*\bMIG\b)/;

/**
 * Those of "auto": where CUDA computes, those that change no bit and take no memory; on the GPUs on which it was measured
 * split-experts too, which leaves prompts and steps of up to eight rows as they are. The others are asked for: matrices take
 * memory, flat-products rounds otherwise from four sequences on.
 */
export function automaticEdits(devices: readonly { readonly name: string; readonly description: string }[]): readonly GraphEditName[] {
  const cuda = devices.filter(({ name }) => name.startsWith("CUDA"));
  if (cuda.length === 0) return [];
  const exact = ["contiguous-conv", "joined-norms", "joined-snapshots"] as const;
  return cuda.every(({ description }) => hopper.test(description)) ? [...exact, "split-experts"] : exact;
}

/** Fewest rows of a graph that each can change. */
const leastRows: Record<GraphEditName, number> = {
  "bf16-copies": leastCopyRows,
  "bf16-head": headRows.least,
  "contiguous-conv": 2 * convRows.leastSeqs,
  "f16-copies": halfRows.least,
  "flat-products": leastStack,
  "joined-norms": 1,
  "joined-products": 1,
  "joined-snapshots": 1,
  "split-experts": expertRows.least,
};

/**
 * Nodes that are left for what comes after the edits: libllama's pool has a description for each node that a graph may list,
 * and takes some for inputs; samplers add up to eight for each row and for each sequence without one. ggml aborts where there is no room.
 */
const keptFree = (nSeqs: number, nRows: number): number => 256 + 8 * (nSeqs + nRows);

/** Places that each edit changed in the graph built last. */
export type EditCounts = Readonly<Record<GraphEditName, number>>;
const noCounts = (): Record<GraphEditName, number> => Object.fromEntries(graphEditNames.map((name) => [name, 0])) as Record<GraphEditName, number>;

export interface GraphEdits extends UserSampler {
  readonly counts: EditCounts;
  /** Why graphs are not edited; undefined where they are. */
  problem(): string | undefined;
}

export interface GraphEditsOptions {
  readonly names: readonly GraphEditName[];
  /** Sequences of the context. */
  readonly nSeqs: number;
  /** Made of the model's; their owner closes them after the context. */
  readonly matrices: EditMatrices;
  /** A GPU holds weights of the model. */
  readonly hasGpu: boolean;
  /** The context makes drafts. */
  readonly isDraft: boolean;
}

export function createGraphEdits(llama: Llama, options: GraphEditsOptions): GraphEdits {
  const ops = bindGraphOps(llama);
  const editor = ops === undefined ? undefined : new GraphEditor(llama, ops, options);
  let failure = ops === undefined ? "this library lays out its tensors otherwise than is known" : "no graph was shown: no slot is sampled on the device";
  let isOff = ops === undefined;
  // One graph is built at a time; rows of one graph are views of the same logits.
  let seen = 0n;
  const sampler = createUserSampler(llama, "graph-edits", {
    reset: () => {
      seen = 0n;
    },
    apply: (context, graph, data) => {
      if (seen !== 0n || isOff) return;
      const source = tensorAt(data[dataWords.logits] as bigint)[words.viewSource] as bigint;
      if (source === 0n) return;
      seen = source;
      try {
        editor?.edit(context, graph, source);
        failure = "";
      } catch (error) {
        // The callback of a native caller must return. The graph computes the same as before.
        isOff = true;
        failure = errorMessage(error);
      }
    },
  });
  return {
    ...sampler,
    get counts() {
      return editor?.counts ?? noCounts();
    },
    problem: () => editor?.matrixProblem ?? (failure === "" ? undefined : failure),
  };
}

class GraphEditor {
  readonly #ops: GraphOps;
  readonly #api: GraphFunctions;
  readonly #looks: ReadonlyMap<number, Look>;
  readonly #nSeqs: number;
  readonly #isDraft: boolean;
  readonly #isNear: (weights: Pointer) => boolean;
  #bf16: DerivedMatrices | undefined;
  #head: DerivedMatrices | undefined;
  #f16: DerivedMatrices | undefined;
  #joined: DerivedMatrices | undefined;
  /** Graphs with fewer are passed by: looking at all nodes takes a good part of what building them does. */
  readonly #leastRows: number;
  #isFirst = true;
  counts: EditCounts = noCounts();
  /** Why there are no matrices though they were wanted. */
  matrixProblem: string | undefined;

  constructor(llama: Llama, ops: GraphOps, { names, nSeqs, matrices, hasGpu, isDraft }: GraphEditsOptions) {
    const isOnHost = bindIsOnHost(llama);
    // Layers that stay on the CPU of a machine with a GPU gain nothing.
    const isNear = (weights: Pointer): boolean => !hasGpu || !isOnHost(weights);
    this.#ops = ops;
    this.#nSeqs = nSeqs;
    this.#isDraft = isDraft;
    this.#api = bindGraph(llama);
    this.#looks = looksOf(ops, new Set(names), isNear, matrices);
    this.#bf16 = names.includes("bf16-copies") ? matrices.bf16 : undefined;
    this.#head = names.includes("bf16-head") ? matrices.head : undefined;
    this.#f16 = names.includes("f16-copies") ? matrices.f16 : undefined;
    this.#joined = names.includes("joined-products") ? matrices.joined : undefined;
    this.#isNear = isNear;
    this.#leastRows = Math.min(...names.map((name) => leastRows[name]));
  }

  /** @param logits made by the LM head, which samplers that follow may shorten and which is left alone */
  edit(context: Pointer, graph: Pointer, logits: Pointer): void {
    this.counts = noCounts();
    const head = unpadded(this.#ops, logits);
    // libllama begins with the embeddings of all rows; a prompt has fewer outputs.
    const [nOutputs = 0, nEmbeddings = 0] = [head, this.#api.ggml_graph_node(graph, 0)].map((tensor) => Number(tensorAt(tensor)[words.ne1]));
    const nRows = Math.max(nOutputs, nEmbeddings);
    if (!this.#isFirst && nRows < this.#leastRows) return;
    const nodes = new GraphNodes(this.#api, graph);
    const counts = noCounts();
    const additions: Addition[] = [];
    const products: Product[] = [];
    let nFree = Math.max(0, nodes.nFree - keptFree(this.#nSeqs, nRows));
    const add = (name: GraphEditName, added: readonly Addition[]): void => {
      const nNew = added.reduce((sum, addition) => sum + addition.nNew, 0);
      if (added.length === 0 || nNew > nFree) return;
      additions.push(...added);
      nFree -= nNew;
      counts[name]++;
    };
    for (let index = 0; index < nodes.n; index++) {
      const at = nodes.at(index);
      const op = nodes.op(at);
      if (op === this.#ops.mulMatOp && nodes.address(at) !== Number(head)) products.push({ index, at });
      const look = this.#looks.get(op);
      if (look === undefined || (look.isForSteps && !this.#isDraft && nOutputs < nRows)) continue;
      const addition = look.at(context, nodes, index, nFree);
      if (addition !== undefined) add(look.name, [addition]);
    }
    const joins = this.#joined === undefined ? [] : findJoins(this.#ops, nodes, products, this.#isNear);
    if (this.#isFirst) this.#makeJoined(joins);
    for (const join of joins) {
      const weights = (nRows < leastCopyRows ? this.#joined : this.#bf16)?.of(join.parts);
      if (weights !== undefined) add("joined-products", joinProducts(this.#ops, context, nodes, join, weights, nFree));
    }
    nodes.insert(additions.toSorted((a, b) => a.before - b.before));
    // Of those that were joined nothing is left to compute, and what was a stack may be a product now.
    const left = products.map(({ at }) => at).filter((at) => nodes.op(at) === this.#ops.mulMatOp && nodes.ne(at, 2) === 1 && nodes.ne(at, 3) === 1);
    const isNearProduct = (at: number): boolean => nodes.op(at) === this.#ops.mulMatOp && this.#isNear(BigInt(nodes.source(at, 0)));
    const headProduct = [nodes.find(Number(head))].filter((at) => at !== undefined).filter(isNearProduct);
    const near = left.filter((at) => this.#isNear(BigInt(nodes.source(at, 0))));
    if (this.#isFirst) {
      const each = near.map((at) => [nodes.source(at, 0)]);
      this.#making(() => this.#bf16?.make(each), () => { this.#bf16 = undefined; });
      this.#making(() => this.#f16?.make(each), () => { this.#f16 = undefined; });
      this.#making(() => this.#head?.make(headProduct.map((at) => [nodes.source(at, 0)])), () => { this.#head = undefined; });
    }
    counts["bf16-copies"] = useCopies(nodes, near, this.#bf16, leastCopyRows, Infinity);
    counts["bf16-head"] = useCopies(nodes, headProduct, this.#head, headRows.least, headRows.most);
    counts["f16-copies"] = useCopies(nodes, near, this.#f16, halfRows.least, halfRows.most);
    this.#isFirst = false;
    this.counts = counts;
  }

  /** The first graph is made with the context: all matrices are made then, and serving never waits for them. */
  #makeJoined(joins: readonly Join[]): void {
    const sets = joins.map(({ parts }) => parts);
    this.#making(() => this.#joined?.make(sets), () => { this.#joined = undefined; });
    if (this.#joined !== undefined) this.#making(() => this.#bf16?.make(sets), () => { this.#bf16 = undefined; });
  }

  #making(make: () => void, giveUp: () => void): void {
    try {
      make();
    } catch (error) {
      giveUp();
      this.matrixProblem = errorMessage(error);
    }
  }
}

/** Products of so many rows take copies where there are some; says how many do. */
function useCopies(nodes: GraphNodes, products: readonly number[], copies: DerivedMatrices | undefined, least: number, most: number): number {
  let nCopied = 0;
  for (const at of copies === undefined ? [] : products) {
    const nRows = nodes.ne(at, 1);
    const copy = nRows < least || nRows > most ? undefined : copies?.of([nodes.source(at, 0)]);
    if (copy === undefined) continue;
    nodes.setSource(at, 0, copy);
    nCopied++;
  }
  return nCopied;
}

interface Look {
  readonly name: GraphEditName;
  /** Only where each row is an output, but for heads: a short prompt alone is read as without the edit. */
  readonly isForSteps?: boolean;
  /** What this edit makes of the node at `index`. */
  readonly at: (context: Pointer, nodes: GraphNodes, index: number, nFree: number) => Addition | undefined;
}

/** By operator. */
function looksOf(ops: GraphOps, names: ReadonlySet<GraphEditName>, isNear: (weights: Pointer) => boolean, { constants }: EditMatrices): ReadonlyMap<number, Look> {
  const looks: readonly (readonly [op: number, look: Look])[] = [
    [ops.concatOp, { name: "contiguous-conv", at: (context, nodes, index, nFree) => straighten(ops, context, nodes, index, nFree) }],
    [ops.mulMatOp, { name: "flat-products", at: (_context, nodes, index) => flattenProduct(ops, nodes, index) }],
    [ops.normOp, { name: "joined-norms", at: (context, nodes, index, nFree) => joinNorms(ops, context, nodes, index, nFree, constants) }],
    [ops.cpyOp, { name: "joined-snapshots", at: (context, nodes, index, nFree) => joinSnapshots(ops, context, nodes, index, nFree, isNear) }],
    [ops.mulMatIdOp, { name: "split-experts", isForSteps: true, at: (context, nodes, index, nFree) => splitExperts(ops, context, nodes, index, nFree, isNear) }],
  ];
  return new Map(looks.filter(([, { name }]) => names.has(name)));
}
