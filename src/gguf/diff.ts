/** Two model files compared: keys, tensors, types, shapes, and on demand the data. */
import { sha256Range } from "./hash.ts";
import type { GgufEntry, GgufTensor } from "./header.ts";
import { sameShape } from "./model-shape.ts";
import type { GgufModel } from "./split.ts";
import { typeName } from "./types.ts";

export interface Change {
  readonly name: string;
  /** Undefined: not in that file. */
  readonly a: string | undefined;
  readonly b: string | undefined;
}

export interface ModelDiff {
  readonly keys: readonly Change[];
  readonly tensors: readonly Change[];
  /** Tensors of equal type and shape with other data; undefined when data was not compared. */
  readonly data: readonly string[] | undefined;
  readonly nEqualTensors: number;
}

export interface DiffOptions {
  /** Compare the data of the tensors that this accepts. */
  readonly hash?: ((name: string) => boolean) | undefined;
  readonly signal?: AbortSignal | undefined;
}

export async function diffModels(a: GgufModel, b: GgufModel, { hash, signal }: DiffOptions = {}): Promise<ModelDiff> {
  const keys: Change[] = [];
  for (const key of new Set([...a.entries.keys(), ...b.entries.keys()])) {
    const [left, right] = [a.entries.get(key), b.entries.get(key)];
    if (left !== undefined && right !== undefined && (await sameEntry(left, right))) continue;
    keys.push({ name: key, a: left && describeEntry(left), b: right && describeEntry(right) });
  }
  const tensors: Change[] = [];
  const data: string[] = [];
  let nEqualTensors = 0;
  const [inA, inB] = [a, b].map((model) => new Map(model.tensors.map((t) => [t.name, t]))) as [Map<string, GgufTensor>, Map<string, GgufTensor>];
  for (const name of new Set([...inA.keys(), ...inB.keys()])) {
    const [left, right] = [inA.get(name), inB.get(name)];
    // ggml fills up to four dimensions with ones: [256, 1] and [256] are one shape, and libllama writes the shorter.
    const isAlike = left !== undefined && right !== undefined && left.typeId === right.typeId && sameShape(left.shape, right.shape);
    if (!isAlike) tensors.push({ name, a: left && describeTensor(left), b: right && describeTensor(right) });
    else if (hash?.(name) === true && (await sha256Range(left, signal)) !== (await sha256Range(right, signal))) data.push(name);
    else nEqualTensors++;
  }
  return { keys, tensors, data: hash === undefined ? undefined : data, nEqualTensors };
}

async function sameEntry(a: GgufEntry, b: GgufEntry): Promise<boolean> {
  if (a.kind === "scalar" || b.kind === "scalar") return a.kind === "scalar" && b.kind === "scalar" && a.type === b.type && Object.is(a.value, b.value);
  if (a.elementType !== b.elementType || a.length !== b.length || a.elements.sizeBytes !== b.elements.sizeBytes) return false;
  return (await sha256Range(a.elements)) === (await sha256Range(b.elements));
}

const maxText = 120;

/** A value in short: `u32 8`, `[3, 3, 2, 0]`, `4096 strings`. */
export function describeEntry(entry: GgufEntry): string {
  if (entry.kind === "scalar") return entry.type === "string" ? cut(JSON.stringify(entry.value)) : String(entry.value);
  const text = entry.values === undefined ? "" : `[${entry.values.map((v) => (typeof v === "string" ? JSON.stringify(v) : String(v))).join(", ")}]`;
  return entry.values !== undefined && text.length <= maxText ? text : `${entry.length} x ${entry.elementType}`;
}

const cut = (text: string): string => (text.length > maxText ? `${text.slice(0, maxText)}... (${text.length} characters)` : text);

export function describeTensor(tensor: GgufTensor): string {
  return `${typeName(tensor.typeId)} [${tensor.shape.join(", ")}]`;
}
