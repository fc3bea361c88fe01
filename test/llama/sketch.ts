/** Small graphs of our own, computed on the CPU as they are and edited. */
import { expect } from "vitest";
import { knownType } from "../../src/gguf/types.ts";
import { GgmlDevice, ggmlType } from "../../src/llama/ggml.ts";
import { bindGraph, GraphNodes, type Addition } from "../../src/llama/graph-nodes.ts";
import { bindGraphOps, mostSources, tensorAt, words } from "../../src/llama/graph-surgery.ts";
import { loadLlama } from "../../src/llama/library.ts";
import type { Pointer } from "../../src/llama/structs.ts";

export const llama = loadLlama({ device: "cpu" });
export const device = new GgmlDevice(llama, llama.devices.find(({ type }) => type === "cpu") ?? expect.fail("no CPU"), 1);
export const { ggml } = device;
export const ops = bindGraphOps(llama) ?? expect.fail("unknown layout");
export const api = bindGraph(llama);
export const gegluSplit = llama.base.func("ggml_geglu_split", "void *", ["void *", "void *", "void *"]) as Join;

export const { F32, I32, Q8_0 } = ggmlType;
const { blockSize, blockBytes } = knownType("Q8_0");
export type Join = (context: Pointer, a: Pointer, b: Pointer) => Pointer;

function quantized(data: Float32Array): Uint8Array {
  const nBlocks = data.length / blockSize;
  const blocks = new Uint8Array(nBlocks * blockBytes);
  ggml.ggml_quantize_chunk(Q8_0, data, blocks, 0, nBlocks, blockSize, null);
  return blocks;
}

/** A graph that is computed on the CPU. Inputs are made before all nodes, so that none is taken for one. */
export class Sketch implements Disposable {
  readonly context = device.newContext(1 << 20);
  readonly graph: Pointer;
  readonly #stores: (() => void)[] = [];
  readonly #inputs: { readonly tensor: Pointer; readonly type: number; readonly n: number }[] = [];

  constructor(size = 1024) {
    this.graph = ggml.ggml_new_graph_custom(this.context, size, false);
  }

  input(type: number, a: number, b = 1, c = 1): Pointer {
    const tensor = ggml.ggml_new_tensor_3d(this.context, type, a, b, c);
    this.#inputs.push({ tensor, type, n: a * b * c });
    return tensor;
  }

  /** A matrix that has memory before any graph, as weights do; the same for the same seed; zeros but in F32 and Q8_0. */
  weights(type: number, width: number, nRows: number, seed: number): Pointer {
    const data = Float32Array.from({ length: width * nRows }, (_, i) => Math.cos(1.3 * i + seed * i * i + seed));
    if (type !== F32 && type !== Q8_0) return this.#stored(type, width, nRows, new Uint8Array(nRows * ggml.ggml_row_size(type, width)));
    return this.#stored(type, width, nRows, type === Q8_0 ? quantized(data) : new Uint8Array(data.buffer));
  }

  /** Matrices one behind the other. */
  joined(type: number, width: number, parts: readonly Pointer[]): Pointer {
    const bytes = parts.map((part) => device.get(part, new Uint8Array(ggml.ggml_nbytes(part))));
    return this.#stored(type, width, parts.reduce((sum, part) => sum + Number(tensorAt(part)[words.ne1]), 0), Buffer.concat(bytes));
  }

  #stored(type: number, width: number, nRows: number, bytes: Uint8Array): Pointer {
    const context = device.newContext(1 << 12);
    const tensor = ggml.ggml_new_tensor_2d(context, type, width, nRows);
    const buffer = device.allocate(context);
    device.set(tensor, bytes);
    this.#stores.push(() => {
      ggml.ggml_backend_buffer_free(buffer);
      ggml.ggml_free(context);
    });
    return tensor;
  }

  /** Bytes that a scheduler needs for what is computed. */
  memory(outputs: readonly Pointer[]): number {
    for (const { tensor } of this.#inputs) ggml.ggml_set_input(tensor);
    for (const output of outputs) ggml.ggml_set_output(output);
    const memory = ggml.ggml_gallocr_new(ggml.ggml_backend_get_default_buffer_type(device.backend));
    expect(ggml.ggml_gallocr_reserve(memory, this.graph)).toBe(true);
    const size = ggml.ggml_gallocr_get_buffer_size(memory, 0);
    ggml.ggml_gallocr_free(memory);
    return size;
  }

  /** Lists tensors after what they are computed from. */
  list(...tensors: readonly Pointer[]): GraphNodes {
    for (const tensor of tensors) ggml.ggml_build_forward_expand(this.graph, tensor);
    return new GraphNodes(api, this.graph);
  }

  compute(outputs: readonly Pointer[]): number[] {
    // As a scheduler does it: memory is used again once nobody reads what lies there.
    for (const { tensor } of this.#inputs) ggml.ggml_set_input(tensor);
    for (const output of outputs) ggml.ggml_set_output(output);
    const memory = ggml.ggml_gallocr_new(ggml.ggml_backend_get_default_buffer_type(device.backend));
    expect(ggml.ggml_gallocr_alloc_graph(memory, this.graph)).toBe(true);
    this.#inputs.filter(({ tensor }) => tensorAt(tensor)[words.buffer] !== 0n).forEach(({ tensor, type, n }, k) => {
      const data = Float32Array.from({ length: n }, (_, i) => Math.sin(1.7 * i + i * i + k));
      device.set(tensor, type === Q8_0 ? quantized(data) : data);
    });
    device.compute(this.graph);
    const numbers = outputs.flatMap((tensor) => [...device.get(tensor, new Float32Array(ggml.ggml_nelements(tensor)))]);
    ggml.ggml_gallocr_free(memory);
    return numbers;
  }

  [Symbol.dispose](): void {
    for (const free of this.#stores) free();
    ggml.ggml_free(this.context);
  }
}

/** `at` is the node that an edit looks at, `outputs` what is compared, `roots` what is listed where that is something else. */
export type Drawing = { readonly at: Pointer; readonly outputs: readonly Pointer[]; readonly roots?: readonly Pointer[] };
export type Draw<D extends Drawing = Drawing> = (sketch: Sketch) => D;
export type Edit = (sketch: Sketch, nodes: GraphNodes, index: number) => Addition | readonly Addition[] | undefined;

export const addresses = (nodes: GraphNodes): number[] => Array.from({ length: nodes.n }, (_, i) => nodes.address(nodes.at(i)));
export const indexOf = (nodes: GraphNodes, tensor: Pointer): number => addresses(nodes).indexOf(Number(tensor));
export const placeOf = (nodes: GraphNodes, tensor: Pointer): number => nodes.at(indexOf(nodes, tensor));
export const shapeOf = (nodes: GraphNodes, tensor: Pointer): number[][] => [[0, 1, 2, 3].map((i) => nodes.ne(placeOf(nodes, tensor), i)), [0, 1, 2, 3].map((i) => nodes.nb(placeOf(nodes, tensor), i))];
export const difference = (a: readonly number[], b: readonly number[]): number => (a.length === b.length ? Math.max(...a.map((x, i) => Math.abs(x - (b[i] as number)))) : Infinity);

/** No node stands before what it is computed from, and none is listed twice. */
export function expectInOrder(nodes: GraphNodes): void {
  const indices = new Map(addresses(nodes).map((address, i) => [address, i]));
  expect(indices.size).toBe(nodes.n);
  for (let i = 0; i < nodes.n; i++) for (let k = 0; k < mostSources; k++) expect(indices.get(nodes.source(nodes.at(i), k)) ?? -1).toBeLessThan(i);
}

/** The same graph as it is and edited: what was there stays in its order, nothing is done before it is used, and the outputs are the same. */
export function expectSame<D extends Drawing>(draw: Draw<D>, edit: Edit, check: (edited: GraphNodes, drawing: D, nAdded: number) => void): void {
  using plain = new Sketch();
  const { outputs, roots } = draw(plain);
  plain.list(...(roots ?? outputs));
  const expected = plain.compute(outputs);
  expect(Math.max(...expected)).toBeGreaterThan(0.5);
  using sketch = new Sketch();
  const drawing = draw(sketch);
  const nodes = sketch.list(...(drawing.roots ?? drawing.outputs));
  const old = addresses(nodes);
  const index = indexOf(nodes, drawing.at);
  const described = (): string[] => old.map((address) => tensorAt(BigInt(address)).join());
  const before = described();
  const additions = [edit(sketch, nodes, index) ?? expect.fail("refused")].flat();
  // What asked for it may still leave it out.
  expect([additions[0]?.before, addresses(nodes), described()]).toEqual([index, old, before]);
  nodes.insert(additions);
  const edited = sketch.list();
  const nAdded = edited.n - nodes.n;
  const list = addresses(edited);
  const known = new Set(old);
  expect(list.filter((address) => known.has(address))).toEqual(old);
  if (additions.length === 1) expect(list.slice(index, index + nAdded).some((address) => known.has(address))).toBe(false);
  expect(nAdded).toBeLessThanOrEqual(additions.reduce((sum, { nNew }) => sum + nNew, 0));
  expectInOrder(edited);
  check(edited, drawing, nAdded);
  expect(difference(sketch.compute(drawing.outputs), expected)).toBeLessThan(1e-3);
}

export function expectRefused(draw: Draw, edit: Edit): void {
  using sketch = new Sketch();
  const { at, outputs, roots } = draw(sketch);
  const nodes = sketch.list(...(roots ?? outputs));
  expect([edit(sketch, nodes, indexOf(nodes, at)) ?? []].flat()).toEqual([]);
}
