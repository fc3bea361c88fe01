/**
 * What each edit of a graph takes, what it makes of it and what it leaves alone, on small graphs of our own. The models of
 * graph-edits.test.ts have only shapes that are taken: an edit that refuses nothing would pass there.
 */
import * as fc from "fast-check";
import { afterAll, describe, expect, test } from "vitest";
import { straighten } from "../../src/llama/contiguous-conv.ts";
import { flattenProduct } from "../../src/llama/flat-products.ts";
import { GraphNodes, type Addition } from "../../src/llama/graph-nodes.ts";
import { tensorAt } from "../../src/llama/graph-surgery.ts";
import { splitExperts, toldParts } from "../../src/llama/split-experts.ts";
import type { Pointer } from "../../src/llama/structs.ts";
import { addresses, api, device, difference, expectInOrder, expectRefused, expectSame, F32, gegluSplit, ggml, I32, indexOf, ops, placeOf, Q8_0, shapeOf, Sketch, type Join } from "./sketch.ts";

afterAll(() => device.close());

/** `other` is what is not as gate has it, `given` what no node computes, `twice` what something else reads too. */
interface Experts {
  readonly nRows?: number;
  readonly types?: readonly [gate: number, up: number, down: number];
  readonly unit?: Join;
  readonly other?: "rows of up" | "choice of up" | "choice of down";
  readonly given?: "rows" | "choice";
  readonly twice?: "gate" | "up" | "glu";
}

/** Four experts of 32, two a row. Rows and choice lie in wider ones, so that where a part begins is told by bytes alone. */
const drawExperts = ({ nRows = 24, types = [Q8_0, Q8_0, Q8_0], unit = ggml.ggml_swiglu_split, other, given, twice }: Experts = {}) => (sketch: Sketch) => {
  const { context } = sketch;
  const weights = [sketch.input(types[0], 64, 32, 4), sketch.input(types[1], 64, 32, 4), sketch.input(types[2], 32, 64, 4)] as const;
  const [givenRows, givenChoice] = [sketch.input(F32, 64, 1, nRows), sketch.input(I32, 2, nRows)];
  const [wide, wideToo, scores, scoresToo] = [sketch.input(F32, 96, 1, nRows), sketch.input(F32, 96, 1, nRows), sketch.input(F32, 4, nRows), sketch.input(F32, 4, nRows)];
  const narrow = (x: Pointer): Pointer => ggml.ggml_view_3d(context, x, 64, 1, nRows, 384, 384, 64);
  const rows = given === "rows" ? givenRows : narrow(wide);
  const choice = given === "choice" ? givenChoice : ggml.ggml_argsort_top_k(context, scores, 2);
  const choiceOf = (product: string): Pointer => (other === `choice of ${product}` ? ggml.ggml_argsort_top_k(context, scoresToo, 2) : choice);
  const gate = ggml.ggml_mul_mat_id(context, weights[0], rows, choice);
  const up = ggml.ggml_mul_mat_id(context, weights[1], other === "rows of up" ? narrow(wideToo) : rows, choiceOf("up"));
  const glu = unit(context, gate, up);
  const at = ggml.ggml_mul_mat_id(context, weights[2], glu, choiceOf("down"));
  const output = ggml.ggml_scale(context, at, 2);
  return { weights, gate, up, glu, at, outputs: twice === undefined ? [output] : [output, ggml.ggml_cont(context, { gate, up, glu }[twice])] };
};
const split = (sketch: Sketch, nodes: GraphNodes, index: number, nFree = 1000, isNear: (weights: Pointer) => boolean = () => true): Addition | undefined =>
  splitExperts(ops, sketch.context, nodes, index, nFree, isNear);

describe("splitExperts", () => {
  test.each([[9, 3, 1], [12, 4, 1], [17, 4, 2], [24, 4, 1], [25, 4, 2], [26, 4, 2], [128, 4, 1]])("tells %i rows as %i, in %i parts", (nRows, told, nParts) => {
    expectSame(drawExperts({ nRows }), split, (edited, { gate, up, glu, at }) => {
      expect([gate, up, glu].map((tensor) => edited.op(placeOf(edited, tensor)))).toEqual([0, 0, 0]);
      const joined = placeOf(edited, at);
      expect(edited.op(joined)).toBe(nParts === 1 ? ops.viewOp : ops.concatOp);
      // What was idle has memory until its last reader.
      expect(edited.source(joined, nParts)).toBe(Number(glu));
      const products = Array.from({ length: edited.n }, (_, i) => edited.at(i)).filter((place) => edited.op(place) === ops.mulMatIdOp);
      expect(products.length).toBe(3 * nParts);
      expect(edited.ne(products[0] as number, 2)).toBe(told);
      for (const product of products) expect(edited.ne(product, 2)).toBeLessThanOrEqual(8);
      expect(products.reduce((sum, product) => sum + edited.ne(product, 1) * edited.ne(product, 2), 0)).toBe(3 * 2 * nRows);
    });
  });

  test("views of the last product see what takes its place", () => {
    const draw = (sketch: Sketch): ReturnType<ReturnType<typeof drawExperts>> => {
      const experts = drawExperts({ nRows: 12 })(sketch);
      const view = ggml.ggml_view_2d(sketch.context, experts.at, 64, 12, 2 * 64 * 4, 64 * 4);
      return { ...experts, outputs: [...experts.outputs, ggml.ggml_cont(sketch.context, view)] };
    };
    expectSame(draw, split, () => {});
  });

  test.each<[string, Experts]>([
    ["eight rows", { nRows: 8 }],
    ["129 rows", { nRows: 129 }],
    ["another gated unit", { unit: gegluSplit }],
    ["no gated unit", { unit: ggml.ggml_mul }],
    ["a gated unit of one product", { unit: (context, gate) => ggml.ggml_swiglu_split(context, gate, gate) }],
    ["gate and up of different rows", { other: "rows of up" }],
    ["up of other experts", { other: "choice of up" }],
    ["down of other experts", { other: "choice of down" }],
    ["rows that no node computes", { given: "rows" }],
    ["a choice that no node computes", { given: "choice" }],
    ["plain weights of gate", { types: [F32, Q8_0, Q8_0] }],
    ["plain weights of up", { types: [Q8_0, F32, Q8_0] }],
    ["plain weights of down", { types: [Q8_0, Q8_0, F32] }],
    ["a gate that is read twice", { twice: "gate" }],
    ["an up that is read twice", { twice: "up" }],
    ["a gated unit that is read twice", { twice: "glu" }],
  ])("leaves alone %s", (_, options) => expectRefused(drawExperts(options), split));

  test("leaves alone what only looks like it: another operator, or the unit's sides exchanged", () => {
    for (const name of ["gate", "up", "glu"] as const) {
      using sketch = new Sketch();
      const experts = drawExperts()(sketch);
      const nodes = sketch.list(...experts.outputs);
      nodes.setOp(placeOf(nodes, experts[name]), ops.mulMatOp, ops.swiglu);
      expect(split(sketch, nodes, indexOf(nodes, experts.at))).toBeUndefined();
    }
    expectRefused(drawExperts(), (sketch, nodes, index) => {
      // The second parameter; ggml itself sets it for units of one tensor only.
      tensorAt(BigInt(nodes.source(nodes.at(index), 1)))[11] = 1n;
      return split(sketch, nodes, index);
    });
  });

  test("needs room for what it adds, and all weights near", () => {
    using sketch = new Sketch();
    const { weights, at, outputs } = drawExperts()(sketch);
    const nodes = sketch.list(...outputs);
    const index = indexOf(nodes, at);
    expect(split(sketch, nodes, index, 11)?.nNew).toBe(11);
    expect(split(sketch, nodes, index, 10)).toBeUndefined();
    for (const far of weights) expect(split(sketch, nodes, index, 11, (w) => w !== far)).toBeUndefined();
  });

  test("parts leave out no row, and are told as four at most", () => {
    fc.assert(
      fc.property(fc.integer({ min: 9, max: 128 }), (n) => {
        const parts = toldParts(n);
        expect(parts.map(({ from }) => from)).toEqual([0, parts[0]?.n].slice(0, parts.length));
        expect(parts.reduce((sum, part) => sum + part.n, 0)).toBe(n);
        for (const { n: rows, told } of parts) expect([rows % told, told <= 4, told >= (parts.length === 1 ? 3 : 1)]).toEqual([0, true, true]);
      }),
    );
  });
});

interface Stack {
  readonly nSeqs?: number;
  readonly nStacks?: number;
  readonly nWeights?: number;
  readonly toRows?: (sketch: Sketch, reshaped: Pointer) => Pointer;
  readonly toOutput?: Join;
  readonly twice?: "rows" | "product";
}

/** Two rows of each sequence by one matrix. `toOutput` is given the product, and another of its shape that is reshaped. */
const drawStack = ({ nSeqs = 4, nStacks = 1, nWeights = 1, toRows = (_, x) => x, toOutput, twice }: Stack = {}) => (sketch: Sketch) => {
  const { context } = sketch;
  const nRows = 2 * nSeqs * nStacks;
  const [weights, given, other] = [sketch.input(F32, 16, 5, nWeights), sketch.input(F32, 16, nRows), sketch.input(F32, 5, nRows)];
  const rows = toRows(sketch, ggml.ggml_reshape_4d(context, given, 16, 2, nSeqs, nStacks));
  const product = ggml.ggml_mul_mat(context, weights, rows);
  const output = toOutput === undefined ? ggml.ggml_reshape_2d(context, product, 5, nRows) : toOutput(context, product, ggml.ggml_reshape_4d(context, other, 5, 2, nSeqs, nStacks));
  return { rows, at: product, outputs: twice === undefined ? [output] : [output, ggml.ggml_cont(context, { rows, product }[twice])] };
};
const flatten = (_: Sketch, nodes: GraphNodes, index: number): Addition | undefined => flattenProduct(ops, nodes, index);

describe("flattenProduct", () => {
  test("makes one product of all rows", () => {
    expectSame(drawStack(), flatten, (edited, { rows, at }, nAdded) => {
      expect(nAdded).toBe(0);
      expect(shapeOf(edited, rows)).toEqual([[16, 8, 1, 1], [4, 64, 512, 512]]);
      expect(shapeOf(edited, at)).toEqual([[5, 8, 1, 1], [4, 20, 160, 160]]);
    });
  });

  test.each<[string, Stack]>([
    ["a stack of three", { nSeqs: 3 }],
    ["a stack of stacks", { nStacks: 2 }],
    ["a stack of matrices", { nWeights: 2 }],
    ["rows that were not reshaped", { toRows: ({ context }, x) => ggml.ggml_cont(context, x) }],
    ["rows that no node computes", { toRows: (sketch) => sketch.input(F32, 16, 2, 4) }],
    ["rows that are read twice", { twice: "rows" }],
    ["a product that is read twice", { twice: "product" }],
    ["a product that is not reshaped", { toOutput: (context, product) => ggml.ggml_cont(context, product) }],
    ["a product before something else that is reshaped", { toOutput: ggml.ggml_add }],
  ])("leaves alone %s", (_, options) => expectRefused(drawStack(options), flatten));
});

interface Conv {
  readonly nRows?: number;
  readonly nSeqs?: number;
  readonly join?: Join;
  readonly toPart?: (sketch: Sketch, transposed: Pointer) => Pointer;
}

/** Rows of six channels, transposed, behind others. */
const drawConv = ({ nRows = 3, nSeqs = 4, join = (context, a, b) => ggml.ggml_concat(context, a, b, 0), toPart = (_, x) => x }: Conv = {}) => (sketch: Sketch) => {
  const [state, rows] = [sketch.input(F32, nRows, 6, nSeqs), sketch.input(F32, 6, nRows, nSeqs)];
  const at = join(sketch.context, state, toPart(sketch, ggml.ggml_transpose(sketch.context, rows)));
  return { at, outputs: [at] };
};
const straightened = (sketch: Sketch, nodes: GraphNodes, index: number): Addition | undefined => straighten(ops, sketch.context, nodes, index, 1);

describe("straighten", () => {
  test.each([[2, 4], [3, 4], [8, 9]])("copies %i rows of %i sequences into order first", (nRows, nSeqs) => {
    expectSame(drawConv({ nRows, nSeqs }), straightened, (edited, { at }, nAdded) => {
      expect(nAdded).toBe(1);
      const part = edited.at(indexOf(edited, at) - 1);
      expect([edited.address(part), edited.nb(part, 0)]).toEqual([edited.source(placeOf(edited, at), 1), 4]);
    });
  });

  test.each<[string, Conv]>([
    ["what is not joined", { join: ggml.ggml_add }],
    ["what is joined along channels", { join: (context, a, b) => ggml.ggml_concat(context, a, b, 1) }],
    ["rows in order", { toPart: ({ context }, x) => ggml.ggml_cont(context, x) }],
    ["rows that no node computes", { toPart: (sketch) => sketch.input(F32, 3, 6, 4) }],
    ["one row of a sequence", { nRows: 1 }],
    ["nine rows of a sequence", { nRows: 9 }],
    ["three sequences", { nSeqs: 3 }],
  ])("leaves alone %s", (_, options) => expectRefused(drawConv(options), straightened));

  test("needs room for the copy", () => expectRefused(drawConv(), (sketch, nodes, index) => straighten(ops, sketch.context, nodes, index, 0)));
});

describe("GraphNodes", () => {
  /** Each a copy of the one before. */
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
    expect([few.n, few.nFree, few.readings(few.at(0)).length, few.readings(few.at(1)).length]).toEqual([4, 300 - 4 - 2, 3, 0]);
    const many = sketch.list(...readers);
    expect([many.n, many.nFree, many.readings(many.at(0)).length]).toEqual([258, 300 - 258 - 2, 257]);
  });

  test("finds nothing below or above the nodes, and keeps whole addresses", () => {
    using sketch = new Sketch();
    const input = sketch.input(F32, 4);
    const chain = chainOf(sketch, input, 3);
    const nodes = sketch.list(...chain);
    const found = [input, ...chain, sketch.input(F32, 4)].map((tensor) => nodes.find(Number(tensor)));
    expect(found).toEqual([undefined, nodes.at(0), nodes.at(1), nodes.at(2), undefined]);
    expect(nodes.source(nodes.at(1), 4)).toBe(0);
    nodes.setSource(nodes.at(1), 4, 0x7fff_8765_4321n);
    expect([3, 4, 5].map((i) => nodes.source(nodes.at(1), i))).toEqual([0, 0x7fff_8765_4321, 0]);
  });

  test("does not read what is laid out otherwise", () => {
    using sketch = new Sketch();
    const unknown = "otherwise than is known";
    expect(() => sketch.list()).toThrow(unknown);
    sketch.list(...chainOf(sketch, sketch.input(F32, 4), 3));
    expect(() => new GraphNodes({ ...api, ggml_graph_n_nodes: () => 2 }, sketch.graph)).toThrow(unknown);
    for (const wrong of [0, 2]) expect(() => new GraphNodes({ ...api, ggml_graph_node: (graph, i) => api.ggml_graph_node(graph, i === wrong ? 1 : i) }, sketch.graph)).toThrow(unknown);
    // Nothing of this memory is touched but its first pages.
    const pools = [device.newContext(2 ** 28 + 2 ** 20), device.newContext(2 ** 28 + 2 ** 20)];
    const x = sketch.input(F32, 4);
    expect(() => sketch.list(...pools.map((pool) => ggml.ggml_cont(pool, x)))).toThrow(unknown);
    for (const pool of pools) ggml.ggml_free(pool);
  });

  test("lists new nodes where they are put, whatever their places and numbers", () => {
    fc.assert(
      fc.property(fc.uniqueArray(fc.record({ before: fc.nat(11), n: fc.integer({ min: 1, max: 3 }) }), { maxLength: 8, selector: ({ before }) => before }), (places) => {
        using sketch = new Sketch();
        const input = sketch.input(F32, 4);
        const chain = chainOf(sketch, input, 12);
        const nodes = sketch.list(...chain);
        const sorted = places.toSorted((a, b) => a.before - b.before).map(({ before, n }) => ({ before, links: chainOf(sketch, chain[before - 1] ?? input, n) }));
        // Places of old nodes stay what they are; their indices do not.
        const additions = sorted.map(({ before, links }) => ({ at: nodes.at(before), before, roots: links.slice(-1), nNew: links.length }));
        nodes.insert(additions.map((addition) => ({ ...addition, use: () => addition.roots.forEach((root) => nodes.setSource(addition.at, 0, root)) })));
        const edited = sketch.list();
        const wanted = chain.flatMap((node, i) => [...(sorted.find(({ before }) => before === i)?.links ?? []), node]);
        expect(addresses(edited)).toEqual(wanted.map(Number));
        expectInOrder(edited);
        for (const { at, roots } of additions) expect([nodes.source(at, 0)]).toEqual(roots.map(Number));
      }),
    );
  });

  test("several edits of one graph leave what it computes as it is, whichever are made", () => {
    const draws = [drawConv(), drawExperts(), drawStack(), drawExperts({ nRows: 12 }), drawConv({ nSeqs: 5 }), drawStack({ nSeqs: 6 })];
    const edits = [straightened, split, flatten, split, straightened, flatten];
    const computed = (isMade: readonly boolean[]): number[] => {
      using sketch = new Sketch();
      const drawings = draws.map((draw) => draw(sketch));
      const outputs = drawings.flatMap((drawing) => drawing.outputs);
      const nodes = sketch.list(...outputs);
      nodes.insert(drawings.flatMap(({ at }, i) => (isMade[i] === true ? [edits[i]?.(sketch, nodes, indexOf(nodes, at)) ?? expect.fail("refused")] : [])));
      expectInOrder(sketch.list());
      return sketch.compute(outputs);
    };
    const expected = computed([]);
    fc.assert(fc.property(fc.array(fc.boolean(), { minLength: 6, maxLength: 6 }), (isMade) => difference(computed(isMade), expected) < 1e-3), { numRuns: 20 });
  });
});
