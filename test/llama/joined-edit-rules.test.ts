/** What the edits that join nodes take, what they make of it and what they leave alone. */
import { afterAll, describe, expect, test } from "vitest";
import { knownType } from "../../src/gguf/types.ts";
import type { Addition, GraphNodes } from "../../src/llama/graph-nodes.ts";
import { ConstantRows, joinNorms } from "../../src/llama/joined-norms.ts";
import { findJoins, joinProducts, type Join as Joined } from "../../src/llama/joined-products.ts";
import { joinSnapshots } from "../../src/llama/joined-snapshots.ts";
import { splitExperts } from "../../src/llama/split-experts.ts";
import type { Pointer } from "../../src/llama/structs.ts";
import { device, expectRefused, expectSame, F32, ggml, indexOf, llama, ops, placeOf, Q8_0, Sketch, type Draw } from "./sketch.ts";

const constants = new ConstantRows(llama, "no file is read");
const scaleBias = llama.base.func("ggml_scale_bias", "void *", ["void *", "void *", "float", "float"]) as (context: Pointer, a: Pointer, s: number, b: number) => Pointer;
const addInPlace = llama.base.func("ggml_add_inplace", "void *", ["void *", "void *", "void *"]) as (context: Pointer, a: Pointer, b: Pointer) => Pointer;
afterAll(() => {
  constants.close();
  device.close();
});

interface Norms {
  readonly eps?: number;
  readonly scale?: number;
  readonly bias?: number;
  /** Floats from query to key, and from one head to the next. */
  readonly from?: number;
  readonly head?: number;
  readonly nHeads?: number;
  readonly isProduct?: boolean;
  readonly hasWeights?: boolean;
  readonly isReadTwice?: boolean;
}

const [width, nHeads, nRows, nSeqs] = [16, 2, 3, 2];

/** Query and key of two heads in rows of 96, normed and scaled. */
const drawNorms = ({ eps = 1e-6, scale = 0.3, bias = 0, from = 32, head = width, nHeads: n = nHeads, isProduct = false, hasWeights = true, isReadTwice = false }: Norms = {}) => (sketch: Sketch) => {
  const { context } = sketch;
  const given = sketch.input(F32, 96, nRows, nSeqs);
  const whole = isProduct ? ggml.ggml_mul_mat(context, sketch.weights(F32, 96, 96, 1), given) : ggml.ggml_mul(context, given, hasWeights ? sketch.weights(F32, 96, 1, 1) : sketch.input(F32, 96));
  const part = (offset: number, heads: number): Pointer => ggml.ggml_view_4d(context, whole, width, heads, nRows, nSeqs, 4 * head, 4 * 96, 4 * 96 * nRows, 4 * offset);
  const query = ggml.ggml_rms_norm(context, part(0, n), 1e-6);
  const key = ggml.ggml_rms_norm(context, part(from, nHeads), eps);
  const outputs = [scaleBias(context, query, 0.3, 0), scaleBias(context, key, scale, bias)].map((scaled) => ggml.ggml_cont(context, scaled));
  return { at: query, key, outputs: isReadTwice ? [...outputs, ggml.ggml_cont(context, key)] : outputs };
};
const normed = (nFree = 3) => (sketch: Sketch, nodes: GraphNodes, index: number): Addition | undefined => joinNorms(ops, sketch.context, nodes, index, nFree, constants);

describe("joinNorms", () => {
  test("norms both at once, and multiplies by constants", () => {
    expectSame(drawNorms(), normed(), (edited, { at, key }, nAdded) => {
      expect([nAdded, edited.op(placeOf(edited, at)), edited.op(placeOf(edited, key))]).toEqual([3, 0, 0]);
      const norms = Array.from({ length: edited.n }, (_, i) => edited.at(i)).filter((place) => edited.op(place) === ops.normOp);
      expect(norms.map((place) => edited.ne(place, 1))).toEqual([2 * nHeads]);
    });
  });

  test.each<[string, Norms]>([
    ["another epsilon", { eps: 1e-5 }],
    ["another factor", { scale: 0.4 }],
    ["a summand", { bias: 0.1 }],
    ["a key that is not right behind", { from: 48 }],
    ["another number of heads", { nHeads: 1, from: 16 }],
    ["heads that lie apart", { head: 24, from: 48 }],
    ["parts of a product", { isProduct: true }],
    ["no weights to tell the device", { hasWeights: false }],
    ["a norm that is read twice", { isReadTwice: true }],
  ])("leaves alone %s", (_, options) => expectRefused(drawNorms(options), normed()));

  test("needs room", () => expectRefused(drawNorms(), normed(2)));

  test("another factor has constants of its own", () => {
    const draw: Draw = (sketch) => {
      const { context } = sketch;
      const whole = ggml.ggml_mul(context, sketch.input(F32, 96, nRows, nSeqs), sketch.weights(F32, 96, 1, 1));
      const part = (offset: number): Pointer => ggml.ggml_rms_norm(context, ggml.ggml_view_4d(context, whole, width, nHeads, nRows, nSeqs, 4 * width, 4 * 96, 4 * 96 * nRows, 4 * offset), 1e-6);
      const [query, key] = [part(0), part(32)];
      return { at: query, outputs: [query, key].map((norm) => ggml.ggml_cont(context, ggml.ggml_scale(context, norm, 0.9))) };
    };
    expectSame(draw, normed(), () => {});
  });
});

interface Snapshots {
  readonly n?: number;
  /** Floats from one window to the next, and bytes from one place down to the next. */
  readonly window?: number;
  readonly steps?: readonly number[];
  readonly isRead?: boolean;
}

const [nChannels, nStates] = [6, 3];
const placeBytes = 4 * nStates * nChannels;

/** Windows of three of six numbers a channel, the last one to the first place. */
const drawSnapshots = ({ n = 4, window = 1, steps = Array.from({ length: n - 1 }, () => 3 * placeBytes), isRead = false }: Snapshots = {}) => (sketch: Sketch) => {
  const { context } = sketch;
  const cache = sketch.input(F32, nStates * nChannels, 24);
  const whole = ggml.ggml_concat(context, sketch.input(F32, nStates, nChannels, nSeqs), sketch.input(F32, 6, nChannels, nSeqs), 0);
  const first = steps.reduce((sum, step) => sum + step, 0);
  const copies = Array.from({ length: n }, (_, i) => {
    const from = ggml.ggml_view_3d(context, whole, nStates, nChannels, nSeqs, 4 * 9, 4 * 9 * nChannels, 4 * window * i);
    const to = ggml.ggml_view_2d(context, cache, nStates * nChannels, nSeqs, placeBytes, first - steps.slice(0, i).reduce((sum, step) => sum + step, 0));
    return ggml.ggml_cpy(context, from, to);
  });
  const roots = isRead ? [...copies, ggml.ggml_cont(context, copies[1] as Pointer)] : copies;
  return { at: copies[0] as Pointer, copies, roots, outputs: [cache] };
};
const copied = (nFree = 3, isNear = true) => (sketch: Sketch, nodes: GraphNodes, index: number): Addition | undefined => joinSnapshots(ops, sketch.context, nodes, index, nFree, () => isNear);

describe("joinSnapshots", () => {
  test.each([2, 3, 4])("makes one copy of %i", (n) => {
    expectSame(drawSnapshots({ n }), copied(), (edited, { copies }, nAdded) => {
      expect([nAdded, ...copies.map((copy) => edited.op(placeOf(edited, copy)))]).toEqual([3, ...copies.map(() => 0)]);
    });
  });

  test("joins those that are an equal step apart, and leaves the others", () => {
    expectSame(drawSnapshots({ steps: [3, 3, 4].map((k) => k * placeBytes) }), copied(), (edited, { copies }) => {
      expect(copies.map((copy) => edited.op(placeOf(edited, copy)) === ops.cpyOp)).toEqual([false, false, false, true]);
    });
  });

  test.each<[string, Snapshots]>([
    ["a copy alone", { n: 1 }],
    ["windows two rows apart", { window: 2 }],
    ["windows of the same rows", { window: 0 }],
    ["places that overlap", { steps: [1, 1, 1].map((k) => k * placeBytes) }],
    ["copies that are read", { n: 2, isRead: true }],
  ])("leaves alone %s", (_, options) => expectRefused(drawSnapshots(options), copied()));

  test("leaves alone what is part of a longer row of copies, caches elsewhere, and needs room", () => {
    expectRefused((sketch) => { const { copies, ...drawn } = drawSnapshots()(sketch); return { ...drawn, at: copies[1] as Pointer }; }, copied());
    expectRefused(drawSnapshots(), copied(3, false));
    expectRefused(drawSnapshots(), copied(2));
  });
});

interface Layer {
  readonly n?: number;
  /** What reads the third product, [4, n]. */
  readonly toThird?: (sketch: Sketch, product: Pointer) => Pointer;
}

/** Four matrices by the same rows, as linear attention has them: to norms, to a sum, to a sigmoid and to a gate. */
const drawLayer = ({ n = 3, toThird = ({ context }, product) => ggml.ggml_sigmoid(context, product) }: Layer = {}) => (sketch: Sketch) => {
  const { context } = sketch;
  const rows = ggml.ggml_scale(context, sketch.input(F32, 32, n), 0.5);
  const weights = [8, 4, 4, 8].map((size, i) => sketch.weights(Q8_0, 32, size, i));
  const [first, second, third, gate] = weights.map((w) => ggml.ggml_mul_mat(context, w, rows)) as [Pointer, Pointer, Pointer, Pointer];
  const heads = ggml.ggml_rms_norm(context, ggml.ggml_reshape_3d(context, first, 4, 2, n), 1e-6);
  const sum = ggml.ggml_add(context, second, sketch.input(F32, 4));
  const silu = ggml.ggml_silu(context, ggml.ggml_reshape_3d(context, gate, 4, 2, n));
  const gated = ggml.ggml_reshape_2d(context, ggml.ggml_mul(context, heads, silu), 8, n);
  const outputs = [ggml.ggml_scale(context, gated, 2), ggml.ggml_scale(context, sum, 2), ggml.ggml_scale(context, toThird(sketch, third), 2)];
  return { at: first, first, second, third, gate, silu, weights, outputs };
};

const productsOf = (nodes: GraphNodes): { index: number; at: number }[] => Array.from({ length: nodes.n }, (_, index) => ({ index, at: nodes.at(index) })).filter(({ at }) => nodes.op(at) === ops.mulMatOp);
const joinsOf = (nodes: GraphNodes, isNear: (weights: Pointer) => boolean = () => true): Joined[] => findJoins(ops, nodes, productsOf(nodes), isNear);
const joined = (nFree = 10) => (sketch: Sketch, nodes: GraphNodes): Addition[] => {
  const [join] = joinsOf(nodes);
  if (join === undefined) return [];
  return joinProducts(ops, sketch.context, nodes, join, sketch.joined(Q8_0, 32, join.parts.map((part) => BigInt(part))), nFree);
};

describe("joinProducts", () => {
  test.each([2, 3, 9])("makes one product of %i rows: columns where they can be read, a copy elsewhere, a gated unit of a gate", (n) => {
    expectSame(drawLayer({ n }), joined(), (edited, { first, second, third, gate, silu }) => {
      expect(productsOf(edited).map(({ at }) => edited.ne(at, 0))).toEqual([24]);
      expect([first, second, third, gate].map((product) => edited.op(placeOf(edited, product)))).toEqual([ops.viewOp, ops.viewOp, ops.contOp, ops.viewOp]);
      expect(edited.op(placeOf(edited, silu))).toBe(0);
      expect(edited.nb(placeOf(edited, second), 1)).toBe(4 * 24);
    });
  });

  test("one row is in order wherever it lies: nothing is copied", () => {
    expectSame(drawLayer({ n: 1 }), joined(), (edited, { first, second, third, gate }, nAdded) => {
      expect([nAdded, ...[first, second, third, gate].map((product) => edited.op(placeOf(edited, product)))]).toEqual([1, ops.viewOp, ops.viewOp, ops.viewOp, ops.viewOp]);
    });
  });

  test.each<[string, NonNullable<Layer["toThird"]>]>([
    ["runs on from one row into the next", ({ context }, product) => ggml.ggml_cont(context, ggml.ggml_reshape_2d(context, product, 1, 12))],
    ["begins in the middle of a row and ends in another", ({ context }, product) => ggml.ggml_cont(context, ggml.ggml_view_1d(context, product, 4, 8))],
    ["is summed in place", (sketch, product) => addInPlace(sketch.context, product, sketch.input(F32, 4))],
    ["is transposed with one row of each sequence", (sketch, product) => ggml.ggml_concat(sketch.context, sketch.input(F32, 2, 4, 3), ggml.ggml_transpose(sketch.context, ggml.ggml_reshape_3d(sketch.context, product, 4, 1, 3)), 0)],
    ["is the second of a sum", (sketch, product) => ggml.ggml_add(sketch.context, sketch.input(F32, 4, 3), product)],
  ])("a product that %s is copied into order", (_, toThird) => {
    expectSame(drawLayer({ toThird }), joined(), (edited, { third }) => expect(edited.op(placeOf(edited, third))).toBe(ops.contOp));
  });

  test.each<[string, NonNullable<Layer["toThird"]>]>([
    ["in columns", ({ context }, product) => ggml.ggml_cont(context, ggml.ggml_view_2d(context, product, 2, 3, 16, 8))],
    ["transposed, behind states of one sequence", (sketch, product) => ggml.ggml_concat(sketch.context, sketch.input(F32, 2, 4), ggml.ggml_transpose(sketch.context, product), 0)],
    ["as rows of a cache", (sketch, product) => ggml.ggml_cont(sketch.context, ggml.ggml_scale(sketch.context, ggml.ggml_cont(sketch.context, product), 1))],
  ])("a product that is read %s is not copied", (_, toThird) => {
    expectSame(drawLayer({ toThird }), joined(), (edited, { third }) => expect(edited.op(placeOf(edited, third))).toBe(ops.viewOp));
  });

  test("a SiLU of numbers in another order is left alone, and its product copied", () => {
    const draw = (sketch: Sketch): ReturnType<ReturnType<typeof drawLayer>> => {
      const { context } = sketch;
      const layer = drawLayer()(sketch);
      const apart = ggml.ggml_permute(context, sketch.input(F32, 2, 4, 3), 1, 0, 2, 3);
      const silu = ggml.ggml_silu(context, ggml.ggml_reshape_3d(context, layer.second, 4, 1, 3));
      const gated = ggml.ggml_mul(context, ggml.ggml_view_3d(context, ggml.ggml_cont(context, apart), 4, 1, 3, 16, 32, 0), silu);
      return { ...layer, outputs: [layer.outputs[0] as Pointer, layer.outputs[2] as Pointer, ggml.ggml_scale(context, ggml.ggml_reshape_2d(context, gated, 4, 3), 2)] };
    };
    expectSame(draw, joined(), (edited, { second }) => expect(edited.op(placeOf(edited, second))).toBe(ops.contOp));
  });

  test("needs room", () => expectRefused(drawLayer(), joined(9)));
});

describe("findJoins", () => {
  const drawMatrices = (sketch: Sketch): { nodes: GraphNodes; weights: Pointer[] } => {
    const { context } = sketch;
    const [rows, others] = [ggml.ggml_scale(context, sketch.input(F32, 32, 3), 2), ggml.ggml_scale(context, sketch.input(F32, 32, 3), 2)];
    const quantized = Array.from({ length: 7 }, (_, i) => sketch.weights(Q8_0, 32, 4, i));
    const [gate, up, a, b, alone, c, d] = quantized as [Pointer, Pointer, Pointer, Pointer, Pointer, Pointer, Pointer];
    const unit = ggml.ggml_swiglu_split(context, ggml.ggml_mul_mat(context, gate, rows), ggml.ggml_mul_mat(context, up, rows));
    const plain = [7, 8].map((seed) => ggml.ggml_mul_mat(context, sketch.weights(F32, 32, 4, seed), rows));
    const given = ggml.ggml_mul_mat(context, sketch.input(Q8_0, 32, 4), rows);
    const apart = ggml.ggml_reshape_3d(context, rows, 32, 1, 3);
    const stacks = [9, 11].map((seed) => ggml.ggml_mul_mat(context, sketch.weights(Q8_0, 32, 4, seed), apart));
    const vector = ggml.ggml_mul_mat(context, sketch.weights(Q8_0, 32, 1, 10), rows);
    const other = ggml.ggml_mul_mat(context, sketch.weights(knownType("Q4_0").id, 32, 4, 12), rows);
    const products = [a, b].map((w) => ggml.ggml_mul_mat(context, w, rows));
    const elsewhere = [alone, c, d].map((w, i) => ggml.ggml_mul_mat(context, w, i === 0 ? ggml.ggml_cont(context, others) : others));
    return { nodes: sketch.list(unit, ...plain, given, ...stacks, vector, other, ...products, ...elsewhere), weights: quantized };
  };

  test("those of the same rows and one type: neither a unit's, nor plain matrices, stacks or vectors, nor what no file holds", () => {
    using sketch = new Sketch();
    const { nodes, weights } = drawMatrices(sketch);
    expect(joinsOf(nodes).map(({ parts }) => parts)).toEqual([[weights[2], weights[3]], [weights[5], weights[6]]].map((pair) => pair.map(Number)));
    expect(joinsOf(nodes, (w) => w !== weights[3]).map(({ parts }) => parts)).toEqual([[Number(weights[5]), Number(weights[6])]]);
  });
});

describe("memory", () => {
  /** Layers one after the other, each edited or not. */
  const bytesOf = (nLayers: number, layer: (sketch: Sketch, rows: Pointer) => { at: Pointer; next: Pointer }, edit?: (sketch: Sketch, nodes: GraphNodes, index: number) => readonly Addition[]): number => {
    using sketch = new Sketch();
    let rows = ggml.ggml_scale(sketch.context, sketch.input(F32, 96, 16), 0.5);
    const ats: Pointer[] = [];
    for (let i = 0; i < nLayers; i++) {
      const { at, next } = layer(sketch, rows);
      ats.push(at);
      rows = next;
    }
    const nodes = sketch.list(rows);
    const additions = edit === undefined ? [] : ats.flatMap((at) => edit(sketch, nodes, indexOf(nodes, at)));
    expect(additions.length >= (edit === undefined ? 0 : nLayers)).toBe(true);
    nodes.insert(additions.toSorted((a, b) => a.before - b.before));
    return sketch.memory([rows]);
  };

  const normLayer = (sketch: Sketch, rows: Pointer): { at: Pointer; next: Pointer } => {
    const { context } = sketch;
    const whole = ggml.ggml_mul(context, rows, sketch.weights(F32, 96, 1, 1));
    const [query, key] = [0, 32].map((offset) => ggml.ggml_rms_norm(context, ggml.ggml_view_4d(context, whole, 16, 2, 16, 1, 64, 384, 384 * 16, 4 * offset), 1e-6)) as [Pointer, Pointer];
    const [a, b] = [query, key].map((norm) => ggml.ggml_cont(context, ggml.ggml_scale(context, norm, 0.3))) as [Pointer, Pointer];
    const both = ggml.ggml_reshape_2d(context, ggml.ggml_concat(context, ggml.ggml_concat(context, a, b, 1), a, 1), 96, 16);
    return { at: query, next: ggml.ggml_add(context, both, rows) };
  };

  const expertLayer = (sketch: Sketch, rows: Pointer): { at: Pointer; next: Pointer } => {
    const { context } = sketch;
    const choice = ggml.ggml_argsort_top_k(context, ggml.ggml_cont(context, ggml.ggml_view_2d(context, rows, 4, 16, 384, 0)), 2);
    const input = ggml.ggml_reshape_3d(context, rows, 96, 1, 16);
    const expert = (a: number, b: number): Pointer => ggml.ggml_reshape_3d(context, sketch.weights(Q8_0, a, 4 * b, 1), a, b, 4);
    const unit = ggml.ggml_swiglu_split(context, ggml.ggml_mul_mat_id(context, expert(96, 32), input, choice), ggml.ggml_mul_mat_id(context, expert(96, 32), input, choice));
    const down = ggml.ggml_mul_mat_id(context, expert(32, 96), unit, choice);
    return { at: down, next: ggml.ggml_cont(context, ggml.ggml_view_2d(context, ggml.ggml_scale(context, down, 2), 96, 16, 768, 0)) };
  };

  const gateLayer = (sketch: Sketch, rows: Pointer): { at: Pointer; next: Pointer } => {
    const { context } = sketch;
    const [a, b] = [1, 2].map((seed) => ggml.ggml_mul_mat(context, sketch.weights(Q8_0, 96, 96, seed), rows)) as [Pointer, Pointer];
    const silu = ggml.ggml_silu(context, ggml.ggml_reshape_3d(context, b, 48, 2, 16));
    const gated = ggml.ggml_mul(context, ggml.ggml_rms_norm(context, ggml.ggml_reshape_3d(context, a, 48, 2, 16), 1e-6), silu);
    return { at: a, next: ggml.ggml_scale(context, ggml.ggml_reshape_2d(context, gated, 96, 16), 0.5) };
  };
  const joinAt = (sketch: Sketch, nodes: GraphNodes, index: number): Addition[] => {
    const join = joinsOf(nodes).find(({ products }) => products[0]?.index === index) ?? expect.fail("not found");
    return joinProducts(ops, sketch.context, nodes, join, sketch.joined(Q8_0, 96, join.parts.map((part) => BigInt(part))), 100);
  };

  test.each<[string, Parameters<typeof bytesOf>[1], NonNullable<Parameters<typeof bytesOf>[2]>]>([
    ["joined norms", normLayer, (sketch, nodes, index) => [normed()(sketch, nodes, index) ?? expect.fail("refused")]],
    ["experts of few rows", expertLayer, (sketch, nodes, index) => [splitExperts(ops, sketch.context, nodes, index, 100, () => true) ?? expect.fail("refused")]],
    ["joined products with a gate", gateLayer, joinAt],
  ])("%s take no more of it with more layers", (_, layer, edit) => {
    expect(bytesOf(6, layer)).toBe(bytesOf(3, layer));
    expect(bytesOf(6, layer, edit)).toBe(bytesOf(3, layer, edit));
  });
});
