import { hashEntry, type HeadSource } from "../gguf/head-source.ts";
import { nextnLayerTensors, sameShape } from "../gguf/model-shape.ts";
import { knownType } from "../gguf/types.ts";
import { newTensor } from "../gguf/writer.ts";
import { UserError } from "../util/errors.ts";
import { readCheckpoint } from "./checkpoint.ts";
import { readModelConfig } from "./config.ts";
import { streamElements } from "./element-stream.ts";
import type { FloatType } from "./elements.ts";
import { planTensors } from "./tensor-plan.ts";
import { plainName } from "./tensor-names.ts";
import { tokenizerEntries } from "./tokenizer.ts";

/**
 * The `mtp.*` head of a checkpoint, as it would stand in GGUF.
 * @param outType of the matrices; norms and routers are F32.
 * @throws {UserError} when there is no head, or it is incomplete.
 */
export function headOfCheckpoint(folder: string, outType: FloatType): HeadSource {
  const checkpoint = readCheckpoint(folder);
  const { shape, json } = readModelConfig(checkpoint);
  const own = [...checkpoint.tensors.values()].filter((t) => plainName(t.name, shape.nLayers).isMtp);
  if (own.length === 0) throw new UserError(`${folder} holds no mtp.* tensor; foretoken bootstrap builds a head`);
  const { tensors } = planTensors(own, shape, "mtp", outType);
  const prefix = `blk.${shape.nLayers}.`;
  const byName = new Map(tensors.map((t) => [t.name, t]));
  const wrong = nextnLayerTensors({ ...shape, nNextnLayers: 1 }, shape.nLayers).filter((t) => {
    const found = byName.get(t.name);
    return found === undefined ? t.isOptional !== true : !sameShape(found.shape, t.shape);
  });
  if (wrong.length > 0) throw new UserError(`${folder}: the MTP head lacks ${wrong.length} tensors or has them in another shape (by their GGUF names): ${wrong.map((t) => t.name).join(", ")}`);
  const tokenizer = new Map(tokenizerEntries(folder, json, shape.vocabSize).map((entry) => [entry.key, hashEntry(entry.bytes)]));
  return {
    origin: folder,
    shape: { ...shape, nNextnLayers: 1 },
    tensors: tensors.filter((t) => t.name.startsWith(prefix)).map((t) => newTensor(t.name.slice(prefix.length), t.shape, knownType(t.type), () => streamElements(t.stream, t.type))),
    tokenizer: { tokens: tokenizer.get("tokenizer.ggml.tokens"), merges: tokenizer.get("tokenizer.ggml.merges") },
  };
}
