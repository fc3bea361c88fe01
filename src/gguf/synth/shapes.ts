/** Shapes to synthesize: that of the reports' model, a tiny one, or one described in a JSON file. */
import * as z from "zod";
import type { ModelShape } from "../model-shape.ts";

const everyFourth = (nLayers: number): boolean[] => Array.from({ length: nLayers }, (_, i) => (i + 1) % 4 !== 0);

/** Ornith-1.0-35B, which has the shape of Qwen3.5-35B-A3B. */
const ornith35b: ModelShape = {
  architecture: "qwen35moe",
  nLayers: 40,
  nNextnLayers: 1,
  embeddingLength: 2048,
  vocabSize: 248_320,
  contextLength: 262_144,
  nHeads: 16,
  nKvHeads: 2,
  headDim: 256,
  rmsEpsilon: 1e-6,
  ropeDimension: 64,
  ropeFreqBase: 1e7,
  ropeSections: [11, 11, 10, 0],
  fullAttentionInterval: 4,
  isRecurrent: everyFourth(40),
  ssm: { convKernel: 4, stateSize: 128, groupCount: 16, timeStepRank: 32 },
  experts: { count: 256, usedCount: 8, feedForward: 512, sharedFeedForward: 512 },
  isTied: false,
};

/** The sizes of the embedded model, with fewer layers and tokens: some 3 million parameters. */
const tiny: ModelShape = {
  ...ornith35b,
  nLayers: 4,
  embeddingLength: 256,
  vocabSize: 1024,
  contextLength: 4096,
  nHeads: 4,
  nKvHeads: 2,
  headDim: 64,
  ropeDimension: 16,
  ropeFreqBase: 1e5,
  ropeSections: [3, 3, 2, 0],
  isRecurrent: everyFourth(4),
  ssm: { convKernel: 4, stateSize: 64, groupCount: 2, timeStepRank: 4 },
  experts: { count: 4, usedCount: 2, feedForward: 256, sharedFeedForward: 256 },
};

export const namedShapes: ReadonlyMap<string, ModelShape> = new Map([
  ["ornith-35b", ornith35b],
  ["tiny", tiny],
]);

const count = z.int().min(1).max(0x7fff_ffff);

/** Every field may be left out and is then that of `ornith-35b`; layers alternate by `fullAttentionInterval`. */
export const ShapeFile = z.strictObject({
  architecture: z.enum(["qwen35moe", "qwen35"]).optional(),
  nLayers: z.int().min(1).max(500).optional(),
  nNextnLayers: z.int().min(0).max(1).optional(),
  embeddingLength: count.optional(),
  vocabSize: count.optional(),
  contextLength: count.optional(),
  nHeads: count.optional(),
  nKvHeads: count.optional(),
  headDim: count.optional(),
  ropeDimension: count.optional(),
  fullAttentionInterval: z.int().min(1).max(500).optional(),
  ssm: z.strictObject({ convKernel: count, stateSize: count, groupCount: count, timeStepRank: count }).partial().optional(),
  experts: z.strictObject({ count: z.int().min(1).max(1024), usedCount: count, feedForward: count, sharedFeedForward: count }).partial().optional(),
  feedForward: count.optional().describe("of qwen35"),
  isTied: z.boolean().optional(),
});

export function shapeFromFile(file: z.infer<typeof ShapeFile>): ModelShape {
  const given = Object.fromEntries(Object.entries(file).filter(([, value]) => value !== undefined)) as Partial<ModelShape>;
  const shape = { ...ornith35b, ...given };
  const { fullAttentionInterval: interval } = shape;
  const base = {
    ...shape,
    isRecurrent: Array.from({ length: shape.nLayers }, (_, i) => (i + 1) % interval !== 0),
    ssm: { ...ornith35b.ssm, ...file.ssm },
  } as ModelShape;
  if (base.architecture === "qwen35") return { ...base, experts: undefined, feedForward: file.feedForward ?? 4 * base.embeddingLength };
  return { ...base, feedForward: undefined, experts: { ...ornith35b.experts, ...file.experts } as NonNullable<ModelShape["experts"]> };
}
