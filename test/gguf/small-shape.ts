import type { ModelShape } from "../../src/gguf/model-shape.ts";
import { namedShapes } from "../../src/gguf/synth/shapes.ts";

/** One full-attention layer of 64 with two experts: 0.1 MB. */
export const smallShape: ModelShape = {
  ...(namedShapes.get("tiny") as ModelShape),
  nLayers: 2,
  embeddingLength: 64,
  vocabSize: 300,
  nHeads: 2,
  nKvHeads: 1,
  headDim: 32,
  ropeDimension: 8,
  ropeSections: [1, 1, 2, 0],
  fullAttentionInterval: 2,
  isRecurrent: [true, false],
  ssm: { convKernel: 4, stateSize: 32, groupCount: 1, timeStepRank: 2 },
  experts: { count: 2, usedCount: 1, feedForward: 32, sharedFeedForward: 32 },
};
