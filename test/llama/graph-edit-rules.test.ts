/**
 * What each edit of a graph takes, what it makes of it and what it leaves alone, on small graphs of our own. The models of
 * graph-edits.test.ts have only shapes that are taken: an edit that refuses nothing would pass there.
 */
import * as fc from "fast-check";
import { afterAll, describe, expect, test } from "vitest";
import { knownType } from "../../src/gguf/types.ts";
import { straighten } from "../../src/llama/contiguous-conv.ts";
import { flattenProduct } from "../../src/llama/flat-products.ts";
import { GgmlDevice, ggmlType } from "../../src/llama/ggml.ts";
import { bindGraph, GraphNodes, type Addition } from "../../src/llama/graph-nodes.ts";
import { bindGraphOps, mostSources, tensorAt } from "../../src/llama/graph-surgery.ts";
import { loadLlama } from "../../src/llama/library.ts";
import { joinedInPairs, splitExperts } from "../../src/llama/split-experts.ts";
import type { Pointer } from "../../src/llama/structs.ts";

const llama = loadLlama({ device: "cpu" });
const device = new GgmlDevice(llama, llama.devices.find(({ type }) => type === "cpu") ?? expect.fail("no CPU"), 1);
const { ggml } = device;
const ops = bindGraphOps(llama) ?? expect.fail("unknown layout");
const api = bindGraph(llama);
const gegluSplit = llama.base.func("ggml_geglu_split", "void *", ["void *", "void *", "void *"]) as (context: Pointer, a: Pointer, b: Pointer) => Pointer;
afterAll(() => device.close());

const { F32, Q8_0 } = ggmlType;
const { blockSize, blockBytes } = knownType("Q8_0");
type Join = (context: Pointer, a: Pointer, b: Pointer) => Pointer;

/** A graph that is computed on the CPU. Inputs lie below all nodes, so that none is taken for a node. */
class Sketch implements Disposable {
  readonly context = device.newContext(1 << 20);
  readonly graph: Pointer;
  readonly #inputs: { readonly tensor: Pointer; readonly type: number; readonly n: number }[] = [];

  constructor(size = 1024) {
    this.graph = ggml.ggml_new_graph_custom(this.context, size, false);
  }

  input(type: number, ...[a, b = 1, c = 1]: readonly [number, number?, number?]): Pointer {
    const tensor = ggml.ggml_new_tensor_3d(this.context, type, a, b, c);
    this.#inputs.push({ tensor, type, n: a * b * c });
    return tensor;
  }

  /** Lists tensors after what they are computed from. */
  list(...tensors: readonly Pointer[]): GraphNodes {
    for (const tensor of tensors) ggml.ggml_build_forward_expand(this.graph, tensor);
    return new GraphNodes(api, this.graph);
  }

  compute(outputs: readonly Pointer[]): number[] {
    const buffer = device.allocate(this.context);
    this.#inputs.forEach(({ tensor, type, n }, k) => {
      const data = Float32Array.from({ length: n }, (_, i) => Math.sin(1.7 * i + i * i + k));
      const quantized = new Uint8Array((n / blockSize) * blockBytes);
      if (type === Q8_0) ggml.ggml_quantize_chunk(type, data, quantized, 0, n / blockSize, blockSize, null);
      device.set(tensor, type === Q8_0 ? quantized : data);
    });
    device.compute(this.graph);
    const numbers = outputs.flatMap((tensor) => [...device.get(tensor, new Float32Array(ggml.ggml_nelements(tensor)))]);
    ggml.ggml_backend_buffer_free(buffer);
    return numbers;
  }

  [Symbol.dispose](): void {
    ggml.ggml_free(this.context);
  }
}

const addresses = (nodes: GraphNodes): number[] => Array.from({ length: nodes.n }, (_, i) => nodes.address(nodes.at(i)));
const indexOf = (nodes: GraphNodes, tensor: Pointer): number => addresses(nodes).indexOf(Number(tensor));
const placeOf = (nodes: GraphNodes, tensor: Pointer): number => nodes.at(indexOf(nodes, tensor));
const shapeOf = (nodes: GraphNodes, at: number): { ne: number[]; nb: number[] } => ({ ne: [0, 1, 2, 3].map((i) => nodes.ne(at, i)), nb: [0, 1, 2, 3].map((i) => nodes.nb(at, i)) });
const difference = (a: readonly number[], b: readonly number[]): number => (a.length === b.length ? Math.max(...a.map((x, i) => Math.abs(x - (b[i] as number)))) : Infinity);

function expectInOrder(nodes: GraphNodes): void {
  const list = addresses(nodes);
  const indices = new Map(list.map((address, i) => [address, i]));
  expect(indices.size).toBe(nodes.n);
  for (let i = 0; i < nodes.n; i++) for (let k = 0; k < mostSources; k++) expect(indices.get(nodes.source(nodes.at(i), k)) ?? -1).toBeLessThan(i);
}

interface ExpertOptions {
  readonly nRows?: number;
  /** Of gate's, up's and down's weights. */
  readonly types?: readonly [number, number, number];
  readonly unit?: Join;
  /** What is not as gate has it. */
  readonly other?: "rows of up" | "choice of up" | "choice of down";
  /** What no node computes. */
  readonly given?: "rows" | "choice";
}

/** Four experts of 32, two a row. Rows and choice lie in wider ones, so that where a part begins is told by bytes alone. */
function expertsOf(sketch: Sketch, { nRows = 24, types = [Q8_0, Q8_0, Q8_0], unit = ggml.ggml_swiglu_split, other, given }: ExpertOptions = {}) {
  const { context } = sketch;
  const weights = [sketch.input(types[0], 64, 32, 4), sketch.input(types[1], 64, 32, 4), sketch.input(types[2], 32, 64, 4)] as const;
  const [givenRows, givenChoice] = [sketch.input(F32, 64, 1, nRows), sketch.input(ggmlType.I32, 2, nRows)];
  const [wide, wideToo, scores, scoresToo] = [sketch.input(F32, 96, 1, nRows), sketch.input(F32, 96, 1, nRows), sketch.input(F32, 4, nRows), sketch.input(F32, 4, nRows)];
  const narrow = (x: Pointer): Pointer => ggml.ggml_view_3d(context, x, 64, 1, nRows, 384, 384, 64);
  const rows = given === "rows" ? givenRows : narrow(wide);
  const choice = given === "choice" ? givenChoice : ggml.ggml_argsort_top_k(context, scores, 2);
  const choiceOf = (product: string): Pointer => (other === `choice of ${product}` ? ggml.ggml_argsort_top_k(context, scoresToo, 2) : choice);
  const gate = ggml.ggml_mul_mat_id(context, weights[0], rows, choice);
  const up = ggml.ggml_mul_mat_id(context, weights[1], other === "rows of up" ? narrow(wideToo) : rows, choiceOf("up"));
  const glu = unit(context, gate, up);
  const down = ggml.ggml_mul_mat_id(context, weights[2], glu, choiceOf("down"));
  return { weights, gate, up, glu, down, output: ggml.ggml_scale(context, down, 2) };
}

const split = (sketch: Sketch, nodes: GraphNodes, down: Pointer, nFree = 1000, isNear: (weights: Pointer) => boolean = () => true): Addition | undefined =>
  splitExperts(ops, sketch.context, nodes, indexOf(nodes, down), nFree, isNear);

describe("splitExperts", () => {
  test.each([9, 17, 24, 64])("computes %i rows in parts of up to eight, before what reads them", (nRows) => {
    using plain = new Sketch();
    const { output } = expertsOf(plain, { nRows });
    plain.list(output);
    const expected = plain.compute([output]);
    using sketch = new Sketch();
    const block = expertsOf(sketch, { nRows });
    const nodes = sketch.list(block.output);
    const old = addresses(nodes);
    const index = indexOf(nodes, block.down);
    const addition = split(sketch, nodes, block.down) ?? expect.fail("refused");
    expect([addition.before, addresses(nodes)]).toEqual([index, old]);
    nodes.insert([addition]);
    const edited = sketch.list();
    const nAdded = edited.n - nodes.n;
    const list = addresses(edited);
    expect(nAdded).toBeGreaterThan(0);
    expect(addition.nNew).toBeGreaterThanOrEqual(nAdded);
    expect([...list.slice(0, index), ...list.slice(index + nAdded)]).toEqual(old);
    expectInOrder(edited);
    expect([block.gate, block.up, block.glu].map((tensor) => edited.op(placeOf(edited, tensor)))).toEqual([0, 0, 0]);
    const down = placeOf(edited, block.down);
    expect([edited.op(down), edited.parameter(down, 0), edited.source(down, 2)]).toEqual([ops.concatOp, 2, Number(block.glu)]);
    const halves = [0, 1].map((i) => edited.find(edited.source(down, i)) ?? expect.fail("no node"));
    expect(halves.reduce((sum, at) => sum + edited.ne(at, 2), 0)).toBe(nRows);
    const products = list.map((_, i) => edited.at(i)).filter((at) => edited.op(at) === ops.mulMatIdOp);
    expect(products.length).toBe(3 * Math.ceil(nRows / 8));
    for (const at of products) expect(edited.ne(at, 2)).toBeLessThanOrEqual(8);
    const computed = sketch.compute([block.output]);
    expect(difference(expected, computed)).toBeLessThan(1e-3);
    expect(difference(expected, expected.map(() => 0))).toBeGreaterThan(1);
  });

  const refused: readonly (readonly [string, ExpertOptions])[] = [
    ["eight rows", { nRows: 8 }],
    ["65 rows", { nRows: 65 }],
    ["another gated unit", { unit: gegluSplit }],
    ["no gated unit", { unit: ggml.ggml_mul }],
    ["a gated unit of one product", { unit: (context, gate) => ggml.ggml_swiglu_split(context, gate, gate) }],
    ["gate and up of different rows", { other: "rows of up" }],
    ["up of other experts", { other: "choice of up" }],
    ["down of other experts", { other: "choice of down" }],
    ["rows that no node computes", { given: "rows" }],
    ["experts that no node chooses", { given: "choice" }],
    ["plain weights of gate", { types: [F32, Q8_0, Q8_0] }],
    ["plain weights of up", { types: [Q8_0, F32, Q8_0] }],
    ["plain weights of down", { types: [Q8_0, Q8_0, F32] }],
  ];
  test.each(refused)("leaves alone %s", (_, options) => {
    using sketch = new Sketch();
    const { down, output } = expertsOf(sketch, options);
    expect(split(sketch, sketch.list(output), down)).toBeUndefined();
  });

  test.each(["gate", "up", "glu"] as const)("leaves alone what has its %s read by something else", (name) => {
    using sketch = new Sketch();
    const block = expertsOf(sketch);
    expect(split(sketch, sketch.list(block.output, ggml.ggml_cont(sketch.context, block[name])), block.down)).toBeUndefined();
  });

  test("leaves alone what only looks like it: another operator, or the unit's sides exchanged", () => {
    for (const name of ["gate", "up", "glu"] as const) {
      using sketch = new Sketch();
      const block = expertsOf(sketch);
      const nodes = sketch.list(block.output);
      nodes.setOp(placeOf(nodes, block[name]), ops.mulMatOp, ops.swiglu);
      expect(split(sketch, nodes, block.down)).toBeUndefined();
    }
    using sketch = new Sketch();
    const { glu, down, output } = expertsOf(sketch);
    // The second parameter; ggml itself sets it for units of one product only.
    tensorAt(glu)[11] = 1n;
    expect(split(sketch, sketch.list(output), down)).toBeUndefined();
  });

  test("needs room for what it adds, and all weights near", () => {
    using sketch = new Sketch();
    const { weights, down, output } = expertsOf(sketch);
    const nodes = sketch.list(output);
    expect(split(sketch, nodes, down, 21)?.nNew).toBe(21);
    expect(split(sketch, nodes, down, 20)).toBeUndefined();
    for (const far of weights) expect(split(sketch, nodes, down, 21, (w) => w !== far)).toBeUndefined();
  });

  test("parts are joined in their order, none is lost, and none is copied oftener than need be", () => {
    fc.assert(
      fc.property(fc.array(fc.string(), { minLength: 2, maxLength: 16 }), (parts) => {
        const joined = joinedInPairs(parts.map((text) => ({ text, depth: 1 })), (a, b) => ({ text: a.text + b.text, depth: 1 + Math.max(a.depth, b.depth) }));
        expect([joined.length, joined[0].text + joined[1].text]).toEqual([2, parts.join("")]);
        expect(Math.max(joined[0].depth, joined[1].depth)).toBe(Math.ceil(Math.log2(parts.length)));
      }),
    );
  });
});

interface StackOptions {
  readonly nSeqs?: number;
  readonly nStacks?: number;
  readonly nWeights?: number;
  readonly toRows?: (sketch: Sketch, reshaped: Pointer) => Pointer;
  readonly toOutput?: Join;
  readonly readTwice?: "rows" | "product";
}

/** Two rows of each sequence by one matrix, written as a stack. `toOutput` has the product and another of its shape that is reshaped. */
function stackOf(sketch: Sketch, { nSeqs = 4, nStacks = 1, nWeights = 1, toRows = (_, x) => x, toOutput, readTwice }: StackOptions = {}) {
  const { context } = sketch;
  const weights = sketch.input(F32, 16, 5, nWeights);
  const [given, other] = [sketch.input(F32, 16, 2 * nSeqs * nStacks), sketch.input(F32, 5, 2 * nSeqs * nStacks)];
  const rows = toRows(sketch, ggml.ggml_reshape_4d(context, given, 16, 2, nSeqs, nStacks));
  const product = ggml.ggml_mul_mat(context, weights, rows);
  const output = toOutput === undefined ? ggml.ggml_reshape_2d(context, product, 5, 2 * nSeqs * nStacks) : toOutput(context, product, ggml.ggml_reshape_4d(context, other, 5, 2, nSeqs, nStacks));
  const outputs = readTwice === undefined ? [output] : [output, ggml.ggml_cont(context, { rows, product }[readTwice])];
  return { rows, product, outputs };
}

describe("flattenProduct", () => {
  test("makes one product of all rows", () => {
    using plain = new Sketch();
    const { outputs } = stackOf(plain);
    plain.list(...outputs);
    const expected = plain.compute(outputs);
    using sketch = new Sketch();
    const stack = stackOf(sketch);
    const nodes = sketch.list(...stack.outputs);
    const addition = flattenProduct(ops, nodes, indexOf(nodes, stack.product)) ?? expect.fail("refused");
    expect([addition.roots, addition.nNew, nodes.ne(placeOf(nodes, stack.product), 2)]).toEqual([[], 0, 4]);
    nodes.insert([addition]);
    expect(sketch.list().n).toBe(nodes.n);
    expect(shapeOf(nodes, placeOf(nodes, stack.rows))).toEqual({ ne: [16, 8, 1, 1], nb: [4, 64, 512, 512] });
    expect(shapeOf(nodes, placeOf(nodes, stack.product))).toEqual({ ne: [5, 8, 1, 1], nb: [4, 20, 160, 160] });
    expect(difference(sketch.compute(stack.outputs), expected)).toBeLessThan(1e-4);
  });

  const refused: readonly (readonly [string, StackOptions])[] = [
    ["a stack of three", { nSeqs: 3 }],
    ["a stack of stacks", { nStacks: 2 }],
    ["rows that were not reshaped", { toRows: ({ context }, x) => ggml.ggml_cont(context, x) }],
    ["rows that no node computes", { toRows: (sketch) => sketch.input(F32, 16, 2, 4) }],
    ["rows that are read twice", { readTwice: "rows" }],
    ["a product that is read twice", { readTwice: "product" }],
    ["a product that is not reshaped", { toOutput: (context, product) => ggml.ggml_cont(context, product) }],
    ["a product before something else that is reshaped", { toOutput: ggml.ggml_add }],
    ["a stack of matrices", { nWeights: 2 }],
  ];
  test.each(refused)("leaves alone %s", (_, options) => {
    using sketch = new Sketch();
    const { product, outputs } = stackOf(sketch, options);
    const nodes = sketch.list(...outputs);
    expect(flattenProduct(ops, nodes, indexOf(nodes, product))).toBeUndefined();
  });
});

interface ConvOptions {
  readonly nRows?: number;
  readonly nSeqs?: number;
  readonly dimension?: 0 | 1;
  readonly toPart?: (sketch: Sketch, transposed: Pointer) => Pointer;
  readonly join?: Join;
}

/** Rows of six channels, transposed, behind others. */
function convOf(sketch: Sketch, { nRows = 3, nSeqs = 4, dimension = 0, toPart = (_, x) => x, join = (c, a, b) => ggml.ggml_concat(c, a, b, dimension) }: ConvOptions = {}): Pointer {
  const [state, rows] = [sketch.input(F32, nRows, 6, nSeqs), sketch.input(F32, 6, nRows, nSeqs)];
  return join(sketch.context, state, toPart(sketch, ggml.ggml_transpose(sketch.context, rows)));
}

describe("straighten", () => {
  test.each([[2, 4], [3, 4], [8, 9]])("copies %i rows of %i sequences into order first", (nRows, nSeqs) => {
    using plain = new Sketch();
    const output = convOf(plain, { nRows, nSeqs });
    plain.list(output);
    const expected = plain.compute([output]);
    using sketch = new Sketch();
    const joined = convOf(sketch, { nRows, nSeqs });
    const nodes = sketch.list(joined);
    const index = indexOf(nodes, joined);
    expect(straighten(ops, sketch.context, nodes, index, 0)).toBeUndefined();
    const addition = straighten(ops, sketch.context, nodes, index, 1) ?? expect.fail("refused");
    nodes.insert([addition]);
    const edited = sketch.list();
    expect([addition.nNew, edited.n - nodes.n, indexOf(edited, joined)]).toEqual([1, 1, index + 1]);
    const part = edited.at(index);
    expect([edited.address(part), edited.nb(part, 0)]).toEqual([edited.source(placeOf(edited, joined), 1), 4]);
    expectInOrder(edited);
    expect(sketch.compute([joined])).toEqual(expected);
  });

  const refused: readonly (readonly [string, ConvOptions])[] = [
    ["what is not joined", { join: ggml.ggml_add }],
    ["what is joined along channels", { dimension: 1 }],
    ["rows in order", { toPart: ({ context }, x) => ggml.ggml_cont(context, x) }],
    ["rows that no node computes", { toPart: (sketch) => sketch.input(F32, 3, 6, 4) }],
    ["one row of a sequence", { nRows: 1 }],
    ["nine rows of a sequence", { nRows: 9 }],
    ["three sequences", { nSeqs: 3 }],
  ];
  test.each(refused)("leaves alone %s", (_, options) => {
    using sketch = new Sketch();
    const joined = convOf(sketch, options);
    const nodes = sketch.list(joined);
    expect(straighten(ops, sketch.context, nodes, indexOf(nodes, joined), 100)).toBeUndefined();
  });
});

describe("GraphNodes", () => {
  /** Each node a copy of the one before. */
  const chainOf = (sketch: Sketch, from: Pointer, n: number): Pointer[] => {
    const chain = [from];
    for (let i = 0; i < n; i++) chain.push(ggml.ggml_cont(sketch.context, chain[i] as Pointer));
    return chain.slice(1);
  };

  test("counts what is free, and who reads a node, also where they are many", () => {
    using sketch = new Sketch(300);
    const read = ggml.ggml_add(sketch.context, sketch.input(F32, 4), sketch.input(F32, 4));
    // 257 would be one again in a byte.
    const readers = Array.from({ length: 257 }, () => ggml.ggml_cont(sketch.context, read));
    const few = sketch.list(...readers.slice(0, 3));
    expect([few.n, few.nFree, few.nUses(few.at(0)), few.nUses(few.at(1))]).toEqual([4, 300 - 4 - 2, 3, 0]);
    const many = sketch.list(...readers);
    expect([many.n, many.nFree, many.nUses(many.at(0))]).toEqual([258, 300 - 258 - 2, 255]);
  });

  test("does not read what is laid out otherwise", () => {
    using sketch = new Sketch();
    expect(() => sketch.list()).toThrow("otherwise than is known");
    const nodes = sketch.list(...chainOf(sketch, sketch.input(F32, 4), 3));
    const { graph } = sketch;
    expect(() => new GraphNodes({ ...api, ggml_graph_n_nodes: () => 2 }, graph)).toThrow("otherwise than is known");
    for (const wrong of [0, nodes.n - 1]) expect(() => new GraphNodes({ ...api, ggml_graph_node: (g, i) => api.ggml_graph_node(g, i === wrong ? 1 : i) }, graph)).toThrow("otherwise than is known");
    // Nothing of this memory is touched but its first page.
    const far = device.newContext(2 ** 29);
    const farther = device.newContext(2 ** 29);
    const x = sketch.input(F32, 4);
    expect(() => sketch.list(ggml.ggml_cont(far, x), ggml.ggml_cont(farther, x))).toThrow("otherwise than is known");
    for (const context of [far, farther]) ggml.ggml_free(context);
  });

  test("new nodes are listed where they are put, whatever their places and numbers", () => {
    fc.assert(
      fc.property(fc.array(fc.record({ before: fc.nat(11), n: fc.integer({ min: 0, max: 3 }) }), { maxLength: 8 }), (places) => {
        using sketch = new Sketch();
        const input = sketch.input(F32, 4);
        const chain = chainOf(sketch, input, 12);
        const nodes = sketch.list(...chain);
        const sorted = places.toSorted((a, b) => a.before - b.before).map(({ before, n }) => ({ before, links: chainOf(sketch, chain[before - 1] ?? input, n) }));
        const additions = sorted.map(({ before, links }) => {
          const roots = links.slice(-1);
          return { before, roots, nNew: links.length, use: () => roots.forEach((root) => nodes.setSource(nodes.at(before + links.length * 0), 0, root)) };
        });
        const wanted = chain.flatMap((node, i) => [...sorted.flatMap(({ before, links }) => (before === i ? links : [])), node]);
        nodes.insert(additions);
        const edited = sketch.list();
        expect(addresses(edited)).toEqual(wanted.map(Number));
        expectInOrder(edited);
      }),
    );
  });
});
