/**
 * Writes a GGUF file that has the shape of a model and random weights: it loads, decodes and takes the time that the
 * model would take; its text means nothing.
 */
import { UserError } from "../../util/errors.ts";
import { Rng } from "../../util/rng.ts";
import { stringEntry, u32Entry, type NewEntry } from "../kv.ts";
import { nextnLayerTensors, outerTensors, trunkLayerTensors, type ExpectedTensor, type ModelShape } from "../model-shape.ts";
import { shapeEntries } from "../shape-entries.ts";
import { elementCount, fileTypeId, knownType, quantizationVersion, tensorBytes, type GgmlType } from "../types.ts";
import { newTensor, writeGguf, type Pieces, type TensorInput } from "../writer.ts";
import { baseType, chooseType, isKept, withFallback } from "./quantize-choice.ts";
import { isSynthesizable, RandomBlocks, randomFloats, synthTensorTypes } from "./random-blocks.ts";
import { vocabularyEntries } from "./vocabulary.ts";

/** A type for the matrices whose name the pattern is found in. */
export interface SynthRule {
  readonly pattern: RegExp;
  readonly type: GgmlType;
}

export interface SynthOptions {
  readonly shape: ModelShape;
  /** A file type of llama-quantize, for example `IQ4_XS`. */
  readonly type: string;
  /** Type of the matrices of the NextN layer. */
  readonly headType: string;
  /** Over both types; the first rule that matches a name wins. */
  readonly rules?: readonly SynthRule[] | undefined;
  readonly output: string;
  readonly seed: number;
  readonly signal?: AbortSignal | undefined;
  readonly onBytes?: ((nBytes: number, totalBytes: number) => void) | undefined;
}

export interface SynthResult {
  readonly output: string;
  readonly sizeBytes: number;
  readonly nTensors: number;
  readonly nParameters: number;
}

/**
 * Equal shape, types and seed give equal bytes.
 * @throws {UserError} for a type that cannot be synthesized, a rule that reaches no matrix, or a full disk.
 */
export async function synthesize(options: SynthOptions): Promise<SynthResult> {
  const { shape, type, headType } = options;
  const headBase = baseType(headType);
  const trunk = [...outerTensors(shape), ...Array.from({ length: shape.nLayers }, (_, layer) => trunkLayerTensors(shape, layer)).flat()];
  const head = Array.from({ length: shape.nNextnLayers }, (_, i) => nextnLayerTensors(shape, shape.nLayers + i))
    .flat()
    .filter((t) => !t.name.endsWith("embed_tokens.weight") && !t.name.endsWith("shared_head_head.weight"));
  const largest = Math.max(...[...trunk, ...head].map((t) => elementCount(t.shape)));
  const blocks = new RandomBlocks(options.seed, largest);
  const rng = new Rng(options.seed + 1);
  const ruled = typesByRule(options.rules ?? [], [...trunk, ...head]);
  const tensors: TensorInput[] = [
    ...trunk.map((tensor) => randomTensor(tensor, ruled.get(tensor) ?? chooseType(tensor, type, shape), blocks, rng)),
    ...head.map((tensor) => randomTensor(tensor, ruled.get(tensor) ?? (isKept(tensor) ? knownType("F32") : withFallback(headBase, tensor.shape)), blocks, rng)),
  ];
  const entries: NewEntry[] = [
    stringEntry("general.architecture", shape.architecture),
    stringEntry("general.type", "model"),
    stringEntry("general.name", "random weights"),
    stringEntry("general.description", `shape only: random weights of foretoken synth, seed ${options.seed}`),
    ...shapeEntries(shape, fileTypeId(type) ?? 0),
    u32Entry("general.quantization_version", quantizationVersion),
    ...vocabularyEntries(shape.vocabSize),
  ];
  const { sizeBytes } = await writeGguf(options.output, { entries, tensors, signal: options.signal, onBytes: options.onBytes });
  return { output: options.output, sizeBytes, nTensors: tensors.length, nParameters: [...trunk, ...head].reduce((n, t) => n + elementCount(t.shape), 0) };
}

function typesByRule(rules: readonly SynthRule[], tensors: readonly ExpectedTensor[]): Map<ExpectedTensor, GgmlType> {
  const matrices = tensors.filter((tensor) => !isKept(tensor));
  for (const { pattern, type } of rules) {
    if (!isSynthesizable(type)) throw new UserError(`tensors of type ${type.name} cannot be synthesized; types are ${synthTensorTypes.join(", ")}`);
    if (!matrices.some(({ name }) => pattern.test(name))) throw new UserError(`the rule ${pattern.source}=${type.name} matches no matrix of this shape; their names are those of llama.cpp, for example ${matrices.at(-1)?.name}`);
  }
  return new Map(
    matrices.flatMap((tensor) => {
      const rule = rules.find(({ pattern }) => pattern.test(tensor.name));
      return rule === undefined ? [] : [[tensor, withFallback(rule.type.name, tensor.shape)]];
    }),
  );
}

function randomTensor(tensor: ExpectedTensor, type: GgmlType, blocks: RandomBlocks, rng: Rng): TensorInput {
  return newTensor(tensor.name, tensor.shape, type, () => randomData(tensor, type, blocks, rng));
}

/**
 * Embeddings spread by 1 and dominate the residual stream, so that experts differ from token to token; every layer adds
 * little, so that logits stay finite through any depth.
 */
function randomData({ name, shape: sizes }: ExpectedTensor, type: GgmlType, blocks: RandomBlocks, rng: Rng): Pieces {
  const n = elementCount(sizes);
  const spreadOfRow = 1 / Math.sqrt(sizes[0] ?? 1);
  if (name.endsWith("norm.weight")) return [randomFloats(n, 1, 0.05, rng)];
  if (name.endsWith(".ssm_a")) return [Buffer.from(Float32Array.from({ length: n }, () => -0.05 - 0.5 * rng.uniform()).buffer)];
  if (name.endsWith(".ssm_dt.bias")) return [randomFloats(n, 0, 0.5, rng)];
  if (name.endsWith(".ssm_conv1d.weight")) return [randomFloats(n, 0, 0.5, rng)];
  if (name.includes("ffn_gate_inp")) return [randomFloats(n, 0, 2 * spreadOfRow, rng)];
  const isOutputOfLayer = /\.(attn_output|ssm_out|ffn_down\w*)\.weight$/.test(name);
  const spread = name === "token_embd.weight" ? 1 : nearestPowerOfTwo(isOutputOfLayer ? 0.35 * spreadOfRow : spreadOfRow);
  return blocks.pieces(type, tensorBytes(type, sizes), spread);
}

/** Few different spreads need few pools. */
const nearestPowerOfTwo = (x: number): number => 2 ** Math.round(Math.log2(x));
