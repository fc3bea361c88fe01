/**
 * The nodes of a graph that libllama has built, as they are described in memory, and new ones among them.
 *
 * The layout of ggml_cgraph is that of ggml 0.25 (ggml-impl.h): for each graph the number of nodes, the first and the last
 * are compared with ggml's own answers. All descriptions are read as one array of 32-bit halves, in which a tensor is named
 * by its place: a view for each would cost more than libllama takes to build the graph.
 */
import koffi from "koffi";
import { bindGgml, type Ggml } from "./ggml-ops.ts";
import { mostSources, tensorBytes, words, type GraphOps } from "./graph-surgery.ts";
import type { Llama } from "./library.ts";
import type { Pointer } from "./structs.ts";

/** Nodes of a graph lie in one pool of descriptions; a wider range would not be one. */
const mostPoolBytes = 1 << 28;
const functions = ["ggml_graph_n_nodes", "ggml_graph_node", "ggml_build_forward_expand"] as const;
export type GraphFunctions = Pick<Ggml, (typeof functions)[number]>;
export const bindGraph = (llama: Llama): GraphFunctions => bindGgml(llama.base, functions);

/** New nodes before one that is listed, and what makes use of them. */
export interface Addition {
  /** Index of the listed one. */
  readonly before: number;
  /** They and what they are computed from are listed, in this order, where they are not yet. */
  readonly roots: readonly Pointer[];
  /** At most so many become listed. */
  readonly nNew: number;
  /** Changes descriptions; called once all are listed, and must not fail. */
  readonly use: () => void;
}

/** A node that has another as one of its sources. */
export interface Reading {
  readonly index: number;
  readonly at: number;
  /** Which of its sources. */
  readonly source: number;
}

export class GraphNodes {
  readonly n: number;
  /** How many more may be listed. */
  readonly nFree: number;
  readonly #api: GraphFunctions;
  readonly #graph: Pointer;
  /** Pointers to the nodes. */
  readonly #pointers: Uint32Array;
  readonly #halves: Uint32Array;
  readonly #first: number;
  /** Of each place the number of its last reading, and of each reading the one before; 0: none. */
  #readings: { readonly newest: Int32Array; readonly before: Int32Array } | undefined;

  /** @throws where memory is not laid out as is known */
  constructor(api: GraphFunctions, graph: Pointer) {
    this.#api = api;
    this.#graph = graph;
    const n = api.ggml_graph_n_nodes(graph);
    const [size = 0, nNodes, nLeafs = 0, , low = 0, high = 0] = new Uint32Array(koffi.view(graph, 24));
    if (nNodes !== n || n === 0) throw unknownLayout();
    const pointers = new Uint32Array(koffi.view(BigInt(high * 2 ** 32 + low), 8 * n));
    for (const i of [0, n - 1]) if (BigInt(numberAt(pointers, 2 * i)) !== api.ggml_graph_node(graph, i)) throw unknownLayout();
    let [first, last] = [Infinity, 0];
    for (let i = 0; i < pointers.length; i += 2) {
      const address = numberAt(pointers, i);
      if (address < first) first = address;
      if (address > last) last = address;
    }
    if (last - first > mostPoolBytes) throw unknownLayout();
    this.n = n;
    // The scheduler has room for as many nodes and leafs together.
    this.nFree = size - n - nLeafs;
    this.#pointers = pointers;
    this.#first = first;
    this.#halves = new Uint32Array(koffi.view(BigInt(first), last - first + tensorBytes));
  }

  /** Place of a node; before `insert`, which moves them. */
  at(index: number): number {
    return this.#placeOf(numberAt(this.#pointers, 2 * index));
  }

  /** Place of what lies at an address; undefined where that is not among these. */
  find(address: number): number | undefined {
    const at = this.#placeOf(address);
    return at >= 0 && at < this.#halves.length ? at : undefined;
  }

  address(at: number): number {
    return this.#first + 4 * at;
  }

  op(at: number): number {
    return this.#halves[at + 2 * words.op] as number;
  }

  /** Of the operator; they follow its number. */
  parameter(at: number, i: number): number {
    return this.#halves[at + 2 * words.op + 1 + i] as number;
  }

  /** Elements in dimension i. */
  ne(at: number, i: number): number {
    return this.#halves[at + 2 * (words.ne0 + i)] as number;
  }

  /** Bytes from one element of dimension i to the next. */
  nb(at: number, i: number): number {
    return numberAt(this.#halves, at + 2 * (words.nb0 + i));
  }

  /** Of all dimensions. */
  steps(at: number): number[] {
    return [0, 1, 2, 3].map((i) => this.nb(at, i));
  }

  /** Address of a source; 0: none. */
  source(at: number, i: number): number {
    return numberAt(this.#halves, at + 2 * (words.src0 + i));
  }

  /** Address of what it is a view of, and from which byte of it; 0 for the address: it is none. */
  viewSource(at: number): number {
    return numberAt(this.#halves, at + 2 * words.viewSource);
  }

  viewOffset(at: number): number {
    return numberAt(this.#halves, at + 2 * words.viewOffset);
  }

  /** Who reads it, by falling index. */
  readings(at: number): Reading[] {
    this.#readings ??= this.#findReadings();
    const { newest, before } = this.#readings;
    const found: Reading[] = [];
    for (let i = newest[at >> 1] as number; i > 0; i = before[i] as number) {
      const index = Math.floor((i - 1) / mostSources);
      found.push({ index, at: this.at(index), source: (i - 1) % mostSources });
    }
    return found;
  }

  /** The node that alone reads it, and once. */
  onlyReader(at: number): Reading | undefined {
    const readings = this.readings(at);
    return readings.length === 1 ? readings[0] : undefined;
  }

  setOp(at: number, op: number, parameter = 0): void {
    this.#halves[at + 2 * words.op] = op;
    this.#halves[at + 2 * words.op + 1] = parameter;
  }

  setSource(at: number, i: number, pointer: Pointer): void {
    setPointer(this.#halves, at + 2 * (words.src0 + i), pointer);
  }

  /** The node computes nothing any more: it is what lies in `base` from a byte on, in steps of `nb` bytes. */
  setView(at: number, viewOp: number, base: Pointer, offset: number, nb: readonly number[]): void {
    this.setOp(at, viewOp);
    for (let i = 1; i < mostSources; i++) this.setSource(at, i, 0n);
    this.setSource(at, 0, base);
    this.moveView(at, base, offset, nb);
  }

  /** A view of something becomes one of something else. */
  moveView(at: number, base: Pointer, offset: number, nb: readonly number[]): void {
    setPointer(this.#halves, at + 2 * words.viewSource, base);
    setPointer(this.#halves, at + 2 * words.viewOffset, BigInt(offset));
    nb.forEach((bytes, i) => setPointer(this.#halves, at + 2 * (words.nb0 + i), BigInt(bytes)));
  }

  /** Numbers in order in another shape. */
  setShape(at: number, ne: readonly number[]): void {
    let bytes = this.nb(at, 0);
    ne.forEach((n, i) => {
      setPointer(this.#halves, at + 2 * (words.ne0 + i), BigInt(n));
      setPointer(this.#halves, at + 2 * (words.nb0 + i), BigInt(bytes));
      bytes *= n;
    });
  }

  /**
   * Lists new nodes, then makes use of them. Nodes are computed in the order in which they are listed.
   * @param additions by rising index, of `nFree` nodes at most
   */
  insert(additions: readonly Addition[]): void {
    const ends = additions.map(({ roots }) => {
      for (const root of roots) this.#api.ggml_build_forward_expand(this.#graph, root);
      return this.#api.ggml_graph_n_nodes(this.#graph);
    });
    const nAll = ends.at(-1) ?? this.n;
    if (nAll > this.n) {
      const all = new Uint32Array(koffi.view(BigInt(this.#listAddress()), 8 * nAll));
      const old = all.slice();
      let to = 0;
      let from = 0;
      let added = this.n;
      const copy = (begin: number, end: number): void => {
        all.set(old.subarray(2 * begin, 2 * end), 2 * to);
        to += end - begin;
      };
      additions.forEach(({ before }, i) => {
        copy(from, before);
        from = before;
        copy(added, ends[i] as number);
        added = ends[i] as number;
      });
      copy(from, this.n);
    }
    for (const { use } of additions) use();
  }

  #listAddress(): number {
    const [, , , , low = 0, high = 0] = new Uint32Array(koffi.view(this.#graph, 24));
    return high * 2 ** 32 + low;
  }

  #placeOf(address: number): number {
    return (address - this.#first) / 4;
  }

  #findReadings(): { readonly newest: Int32Array; readonly before: Int32Array } {
    // Descriptions are aligned to eight bytes. A reading's number tells the node and its source.
    const newest = new Int32Array(this.#halves.length >> 1);
    const before = new Int32Array(mostSources * this.n + 1);
    for (let i = 0; i < this.n; i++) {
      const at = this.at(i);
      for (let k = 0; k < mostSources; k++) {
        const address = this.source(at, k);
        const source = address === 0 ? undefined : this.find(address);
        if (source === undefined) continue;
        const reading = mostSources * i + k + 1;
        before[reading] = newest[source >> 1] as number;
        newest[source >> 1] = reading;
      }
    }
    return { newest, before };
  }
}

/** Whether nodes of an operator compute nothing: they are what lies in another one. */
export const isViewOp = (ops: GraphOps, op: number): boolean => op === ops.viewOp || op === ops.reshapeOp || op === ops.permuteOp || op === ops.transposeOp;

/** A node and all views of it. */
export function viewsOf(ops: GraphOps, nodes: GraphNodes, at: number): number[] {
  const views = [at];
  for (const view of views) for (const reading of nodes.readings(view)) if (isViewOp(ops, nodes.op(reading.at))) views.push(reading.at);
  return views;
}

const unknownLayout = (): Error => new Error("this library lays out its graphs otherwise than is known");

/** An address; those of a process are below 2^48. */
const numberAt = (halves: Uint32Array, at: number): number => (halves[at + 1] as number) * 2 ** 32 + (halves[at] as number);

function setPointer(halves: Uint32Array, at: number, pointer: Pointer): void {
  halves[at] = Number(pointer & 0xffff_ffffn);
  halves[at + 1] = Number(pointer >> 32n);
}
