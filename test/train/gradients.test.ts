/** Gradients of every parameter tensor against finite differences, for each loss; chunking and frozen groups change nothing. */
import { afterAll, beforeAll, describe, expect, test } from "vitest";
import { openGgmlDevice, type GgmlDevice } from "../../src/llama/ggml.ts";
import { createBatch, fillBatch, type Batch } from "../../src/train/batch.ts";
import type { HiddenRows } from "../../src/train/dataset.ts";
import { FrozenTensors } from "../../src/train/frozen.ts";
import { nElements, type FreezeGroup } from "../../src/train/head-shape.ts";
import { lossKinds, rowLoss, type LossKind } from "../../src/train/loss.ts";
import { allGroupsFrozen, HeadParameters } from "../../src/train/parameters.ts";
import { randomDocument, randomValues, randomWeights, smallShape as shape } from "../../src/train/self-test.ts";
import { TrainGraph, type GraphOptions } from "../../src/train/train-graph.ts";
import { Rng } from "../../src/util/rng.ts";

const nTokens = 32;
const nDepths = 3;
const depthWeights = [1, 0.8, 0.64];
const { nEmbd, nVocab } = shape;

let device: GgmlDevice;
let frozen: FrozenTensors;
let batch: Batch;
const rng = new Rng(3);
const weights = randomWeights(shape, rng);

beforeAll(() => {
  device = openGgmlDevice({ device: "cpu", nThreads: 1 });
  frozen = new FrozenTensors(device, { embedding: randomValues(rng, nEmbd * nVocab, 1), lmHead: randomValues(rng, nEmbd * nVocab, 0.15) }, nEmbd, "f32");
  const documents = [randomDocument(shape, 20, rng), randomDocument(shape, 40, rng)];
  batch = createBatch(nTokens, nDepths, nEmbd);
  let i = 0;
  fillBatch(batch, (room) => {
    const document = documents[i++ % 2] as HiddenRows;
    return { document, start: 0, length: Math.min(room, document.tokens.length - 1) };
  }, { promptWeight: 0.3 });
});

afterAll(() => {
  frozen.close();
  device.close();
});

const graphOptions = (loss: LossKind, more: Partial<GraphOptions> = {}): GraphOptions => ({ nTokens, nDepths, depthWeights, loss, feed: "true", chunkRows: nTokens, backward: true, ...more });

/** The loss of the batch from all logits, in double precision. */
function totalLoss(graph: TrainGraph, loss: LossKind): number {
  graph.run(batch);
  const target = graph.teacherLogits();
  let total = 0;
  for (let depth = 0; depth < nDepths; depth++) {
    const logits = graph.logits(depth);
    for (let row = 0; row < nTokens; row++) {
      const weight = batch.weights[depth * nTokens + row] as number;
      if (weight === 0) continue;
      const share = ((depthWeights[depth] as number) * weight) / (batch.weightSums[depth] as number);
      total += share * rowLoss(loss, logits.subarray(row * nVocab, (row + 1) * nVocab), target.subarray((row + depth) * nVocab, (row + depth + 1) * nVocab), batch.labels[row + depth] as number);
    }
  }
  return total;
}

const gradientsOf = (graph: TrainGraph): Map<string, Float32Array> => new Map(graph.trainable.map(({ name, ne, gradient }) => [name, device.get(gradient, new Float32Array(nElements(ne)))]));

const routingOf = (graph: TrainGraph): string => Array.from({ length: nDepths }, (_, depth) => graph.expertIds(depth).join()).join();

/** Half along the gradient, half random: a gradient that is right in size alone does not pass. */
function direction(gradient: Float32Array): Float32Array {
  const size = Math.hypot(...gradient);
  const random = randomValues(rng, gradient.length, 1);
  const randomSize = Math.hypot(...random);
  return gradient.map((x, i) => (0.7 * x) / size + (0.7 * (random[i] as number)) / randomSize);
}

/** Every trainable tensor's gradient against the slope of `loss` along a direction of its own. */
function expectSlopes(graph: TrainGraph, parameters: HeadParameters, loss: () => number): void {
  graph.run(batch);
  const gradients = gradientsOf(graph);
  const routing = routingOf(graph);
  expect(gradients.size).toBe(20);
  for (const [name, gradient] of gradients) {
    const along = direction(gradient);
    const expected = gradient.reduce((sum, g, i) => sum + g * (along[i] as number), 0);
    const original = weights.get(name) as Float32Array;
    const at = (step: number): { loss: number; routing: string } => {
      parameters.writeOne(name, original.map((x, i) => x + step * (along[i] as number)));
      return { loss: loss(), routing: routingOf(graph) };
    };
    // A step that sends a row to another expert crosses a jump of the loss and says nothing about its slope.
    const smooth = [0.003, 0.001, 0.0004, 0.0001].find((step) => at(step).routing === routing && at(-step).routing === routing) ?? NaN;
    const slope = (at(smooth).loss - at(-smooth).loss) / (2 * smooth);
    parameters.writeOne(name, original);
    expect(Math.abs(slope / expected - 1), `${name}: ${slope} instead of ${expected}`).toBeLessThan(smooth < 0.0004 ? 2e-2 : 5e-3);
  }
}

describe.each(lossKinds)("loss %s", (loss) => {
  test("every tensor's gradient agrees with finite differences", () => {
    const parameters = new HeadParameters(device, shape, weights, { frozen: new Set() });
    const graph = new TrainGraph(device, frozen, [parameters], graphOptions(loss, { keepLogits: true }));
    expectSlopes(graph, parameters, () => totalLoss(graph, loss));
    graph.close();
    parameters.close();
  });
});

test("with the second loss on the hidden row, every tensor's gradient still agrees with finite differences", () => {
  const hiddenWeight = 2.5;
  // The first rows of this LM head are the identity: the first logits are the hidden row.
  const lmHead = randomValues(rng, nEmbd * nVocab, 0.15);
  for (let i = 0; i < nEmbd; i++) for (let j = 0; j < nEmbd; j++) lmHead[i * nEmbd + j] = i === j ? 1 : 0;
  const shows = new FrozenTensors(device, { embedding: randomValues(rng, nEmbd * nVocab, 1), lmHead }, nEmbd, "f32");
  const parameters = new HeadParameters(device, shape, weights, { frozen: new Set() });
  const graph = new TrainGraph(device, shows, [parameters], graphOptions("kl", { keepLogits: true, hiddenWeight }));
  const loss = (): number => {
    let total = totalLoss(graph, "kl");
    const target = graph.teacherLogits();
    for (let depth = 0; depth < nDepths; depth++) {
      const logits = graph.logits(depth);
      for (let row = 0; row < nTokens; row++) {
        const weight = batch.weights[depth * nTokens + row] as number;
        let squares = 0;
        for (let i = 0; i < nEmbd; i++) squares += ((logits[row * nVocab + i] as number) - (target[(row + depth) * nVocab + i] as number)) ** 2;
        total += (((depthWeights[depth] as number) * weight) / (batch.weightSums[depth] as number)) * hiddenWeight * (squares / nEmbd);
      }
    }
    return total;
  };
  expectSlopes(graph, parameters, loss);
  graph.close();
  parameters.close();
  shows.close();
});

test("chunks of any size give the same gradients", () => {
  const run = (chunkRows: number): Map<string, Float32Array> => {
    const parameters = new HeadParameters(device, shape, weights, { frozen: new Set() });
    const graph = new TrainGraph(device, frozen, [parameters], graphOptions("kl", { chunkRows }));
    graph.run(batch);
    const gradients = gradientsOf(graph);
    graph.close();
    parameters.close();
    return gradients;
  };
  const whole = run(nTokens);
  for (const chunkRows of [1, 7, 31]) {
    for (const [name, gradient] of run(chunkRows)) {
      const expected = whole.get(name) as Float32Array;
      const error = Math.hypot(...gradient.map((g, i) => g - (expected[i] as number))) / Math.hypot(...expected);
      expect(error, `${name} in chunks of ${chunkRows}`).toBeLessThan(1e-5);
    }
  }
});

test("frozen groups get no gradient and leave the others' as they are", () => {
  const run = (groups: readonly FreezeGroup[]): Map<string, Float32Array> => {
    const parameters = new HeadParameters(device, shape, weights, { frozen: new Set(groups) });
    const graph = new TrainGraph(device, frozen, [parameters], graphOptions("kl"));
    graph.run(batch);
    const gradients = gradientsOf(graph);
    graph.close();
    parameters.close();
    return gradients;
  };
  const all = run([]);
  const some = run(["experts", "attention", "shared-expert"]);
  expect([...some.keys()].toSorted()).toEqual([...all.keys()].filter((name) => !/_exps|attn_[qkv]\.|attn_output|shexp/.test(name)).toSorted());
  for (const [name, gradient] of some) {
    const expected = all.get(name) as Float32Array;
    expect(Math.hypot(...gradient.map((g, i) => g - (expected[i] as number))) / Math.hypot(...expected), name).toBeLessThan(1e-5);
  }
});

test("the head of a later position is trained alone, behind frozen ones", () => {
  const first = new HeadParameters(device, shape, weights, { frozen: allGroupsFrozen, hasGradient: false });
  const own = randomWeights(shape, new Rng(9));
  const second = new HeadParameters(device, shape, own, { frozen: new Set() });
  const options = graphOptions("kl", { nDepths: 2, depthWeights: [0, 1], keepLogits: true });
  const twoDeep = createBatch(nTokens, 2, nEmbd);
  const document = randomDocument(shape, 40, rng);
  fillBatch(twoDeep, (room) => ({ document, start: 0, length: room }), { promptWeight: 1 });
  const graph = new TrainGraph(device, frozen, [first, second], options);
  const loss = (): number => {
    graph.run(twoDeep);
    const [logits, target] = [graph.logits(1), graph.teacherLogits()];
    let total = 0;
    for (let row = 0; row < nTokens; row++) {
      const weight = twoDeep.weights[nTokens + row] as number;
      if (weight > 0) total += (weight / (twoDeep.weightSums[1] as number)) * rowLoss("kl", logits.subarray(row * nVocab, (row + 1) * nVocab), target.subarray((row + 1) * nVocab, (row + 2) * nVocab), 0);
    }
    return total;
  };
  loss();
  const gradients = gradientsOf(graph);
  expect(graph.trainable).toHaveLength(20);
  for (const name of ["nextn.eh_proj.weight", "attn_k.weight", "ffn_down_exps.weight"]) {
    const gradient = gradients.get(name) as Float32Array;
    const along = direction(gradient);
    const original = own.get(name) as Float32Array;
    const at = (step: number): number => {
      second.writeOne(name, original.map((x, i) => x + step * (along[i] as number)));
      return loss();
    };
    const expected = gradient.reduce((sum, g, i) => sum + g * (along[i] as number), 0);
    expect((at(0.003) - at(-0.003)) / 0.006 / expected, name).toBeCloseTo(1, 2);
    second.writeOne(name, original);
  }
  graph.close();
  first.close();
  second.close();
});
