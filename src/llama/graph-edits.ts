/**
 * What is changed in the graphs that libllama builds for a model, so that CUDA computes them faster. Both edits leave what
 * is computed as it is, but for rounding; each has its name for `--graph-edits`.
 *
 * - bf16-copies: products of small quantized matrices with more than eight rows take BF16 copies (bf16-copies.ts).
 * - contiguous-conv: a recurrent layer prepends its convolution state to the new rows, which are transposed. For rows that
 *   lie apart ggml-cuda has one block of 256 threads for each channel and sequence, to copy six numbers (concat.cu): 42 us a
 *   layer at eight sequences of three rows. Copied into order first, the concatenation takes its fast kernel.
 *
 * The layout of ggml_cgraph is that of ggml 0.25 (ggml-impl.h): for each graph the number of nodes, the first and the last
 * are compared with ggml's own answers.
 */
import koffi from "koffi";
import type { GraphEditName } from "../config/engine-options.ts";
import { errorMessage } from "../util/errors.ts";
import type { Bf16Copies } from "./bf16-copies.ts";
import { bindGgml, type Ggml } from "./ggml-ops.ts";
import { bindGraphOps, tensorAt, tensorBytes, unpadded, words, type GraphOps } from "./graph-surgery.ts";
import type { Llama } from "./library.ts";
import type { Pointer } from "./structs.ts";
import { createUserSampler, dataWords, type UserSampler } from "./user-sampler.ts";

/** Below nine rows quantized matrices are faster; above a hundred or so their kernel for matrices is worth its start. */
const copyRows = { least: 9, most: 128 } as const;
/** Of a sequence, and sequences: what verifying drafts has, and where there is something to gain. */
const convRows = { most: 8, leastSeqs: 4 } as const;

/** Those of `names` that steps of so many sequences, of up to so many rows each, can gain by. */
export function usefulEdits(names: readonly GraphEditName[], nSeqs: number, rowsPerSeq: number): readonly GraphEditName[] {
  const isUseful = { "bf16-copies": nSeqs * rowsPerSeq >= copyRows.least, "contiguous-conv": nSeqs >= convRows.leastSeqs && rowsPerSeq > 1 };
  return names.filter((name) => isUseful[name]);
}

/** Nodes of a graph lie in one pool of descriptions; a wider range would not be one. */
const mostPoolBytes = 1 << 28;

export interface GraphEdits extends UserSampler {
  /** Of the graph built last. */
  readonly nCopied: number;
  readonly nStraightened: number;
  /** Why graphs are not edited; undefined where they are. */
  problem(): string | undefined;
}

/** @param copies of the model's matrices; undefined leaves that edit out. Its owner closes it after the context. */
export function createGraphEdits(llama: Llama, wanted: { readonly copies: Bf16Copies | undefined; readonly isConvContiguous: boolean }): GraphEdits {
  const ops = bindGraphOps(llama);
  const editor = ops === undefined ? undefined : new GraphEditor(llama, ops, wanted);
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
    get nCopied() {
      return editor?.nCopied ?? 0;
    },
    get nStraightened() {
      return editor?.nStraightened ?? 0;
    },
    problem: () => editor?.copyProblem ?? (failure === "" ? undefined : failure),
  };
}

/** A concatenation, and what takes the place of its second part. */
interface Straightening {
  /** Place among the nodes. */
  readonly before: number;
  /** Where its description keeps the pointer to the second part. */
  readonly sourceAt: number;
  readonly node: Pointer;
}

class GraphEditor {
  readonly #ops: GraphOps;
  readonly #api: Pick<Ggml, "ggml_cont" | "ggml_graph_n_nodes" | "ggml_graph_node" | "ggml_build_forward_expand">;
  #copies: Bf16Copies | undefined;
  readonly #isConvContiguous: boolean;
  /** Each row of a step is an output. Graphs with fewer are passed by: looking at all nodes takes a good part of what building them does. */
  readonly #leastOutputs: number;
  #isFirst = true;
  nCopied = 0;
  nStraightened = 0;
  /** Why there are no copies though they were wanted. */
  copyProblem: string | undefined;

  constructor(llama: Llama, ops: GraphOps, { copies, isConvContiguous }: Parameters<typeof createGraphEdits>[1]) {
    this.#ops = ops;
    this.#api = bindGgml(llama.base, ["ggml_cont", "ggml_graph_n_nodes", "ggml_graph_node", "ggml_build_forward_expand"]);
    this.#copies = copies;
    this.#isConvContiguous = isConvContiguous;
    this.#leastOutputs = isConvContiguous ? Math.min(copyRows.least, 2 * convRows.leastSeqs) : copyRows.least;
  }

  /** @param logits made by the LM head, which samplers that follow may shorten and which is left alone */
  edit(context: Pointer, graph: Pointer, logits: Pointer): void {
    this.nCopied = 0;
    this.nStraightened = 0;
    const head = unpadded(this.#ops, logits);
    if (!this.#isFirst && (tensorAt(head)[words.ne1] as bigint) < this.#leastOutputs) return;
    const nodes = this.#nodesOf(graph);
    const pool = new NodePool(nodes.pointers);
    const products: number[] = [];
    const added: Straightening[] = [];
    for (let i = 0; i < nodes.n; i++) {
      const at = pool.halfOf(numberAt(nodes.pointers, 2 * i));
      const op = pool.halves[at + 2 * words.op];
      if (op === this.#ops.mulMatOp) products.push(at);
      else if (op === this.#ops.concatOp && this.#isConvContiguous && added.length < nodes.nFree && isApart(pool, at)) {
        const sourceAt = at + 2 * words.src1;
        added.push({ before: i, sourceAt, node: this.#api.ggml_cont(context, BigInt(pool.pointerAt(sourceAt))) });
      }
    }
    const headAt = pool.halfOf(Number(head));
    this.#useCopies(pool, products.filter((at) => at !== headAt && isFlat(pool.halves, at)));
    if (added.length > 0) this.#insert(graph, nodes.n, added);
    // Nothing can fail from here on: a node that is listed and not used changes nothing.
    for (const { sourceAt, node } of added) setPointer(pool.halves, sourceAt, node);
    this.nStraightened = added.length;
  }

  #useCopies(pool: NodePool, products: readonly number[]): void {
    const weightsOf = (at: number): number => pool.pointerAt(at + 2 * words.src0);
    // The first graph is made with the context: all copies are made then, and serving never waits for them.
    if (this.#isFirst) this.#makeCopies(products.map(weightsOf));
    this.#isFirst = false;
    if (this.#copies === undefined) return;
    for (const at of products) {
      const nRows = pool.halves[at + 2 * words.ne1] as number;
      const copy = nRows < copyRows.least || nRows > copyRows.most ? undefined : this.#copies.of(weightsOf(at));
      if (copy === undefined) continue;
      setPointer(pool.halves, at + 2 * words.src0, copy);
      this.nCopied++;
    }
  }

  #makeCopies(weights: readonly number[]): void {
    try {
      this.#copies?.make(weights);
    } catch (error) {
      this.#copies = undefined;
      this.copyProblem = errorMessage(error);
    }
  }

  /** Nodes are computed in the order in which they are listed, and new ones are listed last. */
  #insert(graph: Pointer, n: number, added: readonly Straightening[]): void {
    for (const { node } of added) this.#api.ggml_build_forward_expand(graph, node);
    const after = this.#nodesOf(graph);
    if (after.n !== n + added.length) throw new Error(`${added.length} nodes became ${after.n - n}`);
    const old = after.pointers.slice(0, 2 * n);
    let to = 0;
    let from = 0;
    for (const { before, node } of added) {
      after.pointers.set(old.subarray(2 * from, 2 * before), to);
      to += 2 * (before - from);
      from = before;
      setPointer(after.pointers, to, node);
      to += 2;
    }
    after.pointers.set(old.subarray(2 * from), to);
  }

  /** Pointers to the nodes, as halves of 64-bit words, and how many more may be listed. */
  #nodesOf(graph: Pointer): { readonly pointers: Uint32Array; readonly n: number; readonly nFree: number } {
    const n = this.#api.ggml_graph_n_nodes(graph);
    const [size = 0, nNodes, , , low = 0, high = 0] = new Uint32Array(koffi.view(graph, 24));
    if (nNodes !== n || n === 0) throw unknownLayout();
    const pointers = new Uint32Array(koffi.view(BigInt(high * 2 ** 32 + low), 8 * n));
    for (const i of [0, n - 1]) if (BigInt(numberAt(pointers, 2 * i)) !== this.#api.ggml_graph_node(graph, i)) throw unknownLayout();
    return { pointers, n, nFree: size - n };
  }
}

const unknownLayout = (): Error => new Error("this library lays out its graphs otherwise than is known");

/** An address; those of a process are below 2^48. */
const numberAt = (halves: Uint32Array, at: number): number => (halves[at + 1] as number) * 2 ** 32 + (halves[at] as number);

function setPointer(halves: Uint32Array, at: number, pointer: Pointer): void {
  halves[at] = Number(pointer & 0xffff_ffffn);
  halves[at + 1] = Number(pointer >> 32n);
}

/** The descriptions of all nodes as one array of 32-bit halves: a view for each would cost more than libllama takes to build the graph. */
class NodePool {
  readonly halves: Uint32Array;
  readonly #first: number;

  constructor(pointers: Uint32Array) {
    let [first, last] = [Infinity, 0];
    for (let i = 0; i < pointers.length; i += 2) {
      const address = numberAt(pointers, i);
      if (address < first) first = address;
      if (address > last) last = address;
    }
    if (last - first > mostPoolBytes) throw unknownLayout();
    this.halves = new Uint32Array(koffi.view(BigInt(first), last - first + tensorBytes));
    this.#first = first;
  }

  /** Where a description begins; undefined where it is not among these. */
  find(address: number): number | undefined {
    const at = this.halfOf(address);
    return at >= 0 && at < this.halves.length ? at : undefined;
  }

  halfOf(address: number): number {
    return (address - this.#first) / 4;
  }

  pointerAt(half: number): number {
    return numberAt(this.halves, half);
  }
}

/** A product of two matrices, not of stacks of them. */
const isFlat = (halves: Uint32Array, at: number): boolean => halves[at + 2 * (words.ne1 + 1)] === 1 && halves[at + 2 * (words.ne1 + 2)] === 1;

/** A concatenation along rows, of several sequences, whose second part has its numbers apart. */
function isApart(pool: NodePool, at: number): boolean {
  const { halves } = pool;
  // The first of an operator's parameters follows its number: the dimension.
  if (halves[at + 2 * words.op + 1] !== 0) return false;
  const part = pool.find(pool.pointerAt(at + 2 * words.src1));
  if (part === undefined) return false;
  const nRows = halves[part + 2 * words.ne0] as number;
  return nRows > 1 && nRows <= convRows.most && (halves[part + 2 * (words.ne1 + 1)] as number) >= convRows.leastSeqs && halves[part + 2 * words.nb0] !== 4;
}
