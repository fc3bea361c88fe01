/** Checkpoints derived from the embedded model: renamed, fused, sharded, in other types. */
import * as fs from "node:fs";
import * as path from "node:path";
import { readCheckpoint, type JsonObject } from "../../src/hf/checkpoint.ts";
import { streamElements, wholeTensor, type Span } from "../../src/hf/element-stream.ts";
import type { FloatType } from "../../src/hf/elements.ts";
import { writeSafetensors, type HfTensor, type HfTensorInput } from "../../src/hf/safetensors.ts";
import { embeddedCheckpoint } from "../../src/util/paths.ts";

export interface Variant {
  readonly source?: string;
  readonly dtype?: FloatType;
  /** Another name, or undefined to drop the tensor. */
  readonly rename?: (name: string) => string | undefined;
  /** Stack experts as `experts.gate_up_proj` and `experts.down_proj`. */
  readonly fuseExperts?: boolean;
  readonly nShards?: number;
  /** Beside the source's tensors, under their own names. */
  readonly added?: readonly HfTensorInput[];
  readonly config?: (config: JsonObject) => JsonObject;
}

const tokenizerFiles = ["tokenizer.json", "tokenizer_config.json", "chat_template.jinja"];

/** One tensor: its spans in order, in the type of the variant. */
function joined(name: string, shape: readonly number[], spans: readonly Span[], dtype: FloatType): HfTensorInput {
  return { name, dtype, shape, data: () => streamElements({ spans }, dtype) };
}

export async function deriveCheckpoint(folder: string, variant: Variant): Promise<string> {
  const { dtype = "BF16", rename = (name) => name, nShards = 1 } = variant;
  const source = readCheckpoint(variant.source ?? embeddedCheckpoint);
  const all = [...source.tensors.values()];
  const isExpert = (t: HfTensor): boolean => /\.experts\.\d+\./.test(t.name);
  const plain = all.filter((t) => variant.fuseExperts !== true || !isExpert(t)).map((t) => joined(t.name, t.shape, [wholeTensor(t)], dtype));
  const fused = variant.fuseExperts === true ? fuseExperts(source.tensors, dtype) : [];
  const renamed = [...plain, ...fused].flatMap((t): HfTensorInput[] => {
    const name = rename(t.name);
    return name === undefined ? [] : [{ ...t, name, data: () => t.data() }];
  });
  const tensors = [...renamed, ...(variant.added ?? [])];
  fs.mkdirSync(folder, { recursive: true });
  for (const name of tokenizerFiles) fs.copyFileSync(path.join(embeddedCheckpoint, name), path.join(folder, name));
  fs.writeFileSync(path.join(folder, "config.json"), JSON.stringify(variant.config?.(source.config) ?? source.config));
  if (nShards === 1) {
    await writeSafetensors(path.join(folder, "model.safetensors"), tensors);
    return folder;
  }
  const perShard = Math.ceil(tensors.length / nShards);
  const map: Record<string, string> = {};
  for (let no = 0; no < nShards; no++) {
    const file = `model-0000${no + 1}-of-0000${nShards}.safetensors`;
    const own = tensors.slice(no * perShard, (no + 1) * perShard);
    for (const { name } of own) map[name] = file;
    await writeSafetensors(path.join(folder, file), own);
  }
  fs.writeFileSync(path.join(folder, "model.safetensors.index.json"), JSON.stringify({ metadata: {}, weight_map: map }));
  return folder;
}

function fuseExperts(tensors: ReadonlyMap<string, HfTensor>, dtype: FloatType): HfTensorInput[] {
  const bases = new Set([...tensors.keys()].flatMap((name) => /^(.*\.experts)\.\d+\./.exec(name)?.[1] ?? []));
  return [...bases].flatMap((base) => {
    const of = (expert: number, part: string): HfTensor | undefined => tensors.get(`${base}.${expert}.${part}_proj.weight`);
    const nExperts = [...tensors.keys()].filter((name) => name.startsWith(`${base}.`) && name.endsWith(".down_proj.weight")).length;
    const spans = (parts: readonly string[]): Span[] => Array.from({ length: nExperts }, (_, e) => parts.map((part) => wholeTensor(of(e, part) as HfTensor))).flat();
    const [ff = 0, d = 0] = of(0, "gate")?.shape ?? [];
    return [joined(`${base}.gate_up_proj`, [nExperts, 2 * ff, d], spans(["gate", "up"]), dtype), joined(`${base}.down_proj`, [nExperts, d, ff], spans(["down"]), dtype)];
  });
}
