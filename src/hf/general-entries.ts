/** The `general.*` keys of a converted file (gguf-py/gguf/metadata.py of llama.cpp). */
import * as path from "node:path";
import { elementCount } from "../gguf/types.ts";
import { f32Entry, scalarEntry, stringEntry, type NewEntry } from "../gguf/kv.ts";
import { readJson } from "./checkpoint.ts";

const samplingKeys: readonly (readonly [string, string, "f32" | "i32"])[] = [
  ["top_k", "general.sampling.top_k", "i32"],
  ["top_p", "general.sampling.top_p", "f32"],
  ["min_p", "general.sampling.min_p", "f32"],
  ["temperature", "general.sampling.temp", "f32"],
  ["repetition_penalty", "general.sampling.penalty_repeat", "f32"],
];

export interface SizedTensor {
  readonly name: string;
  readonly shape: readonly number[];
}

/** Architecture, type, the sampling defaults of generation_config.json, name and size label, in the converter's order. */
export function generalEntries(folder: string, architecture: string, name: string | undefined, tensors: readonly SizedTensor[]): NewEntry[] {
  const generation = readJson(path.join(folder, "generation_config.json"));
  const sampling = samplingKeys.flatMap(([key, gguf, type]) => {
    const value = generation?.[key];
    if (typeof value !== "number") return [];
    return [type === "f32" ? f32Entry(gguf, value) : scalarEntry(gguf, type, Math.trunc(value))];
  });
  return [
    stringEntry("general.architecture", architecture),
    stringEntry("general.type", "model"),
    ...sampling,
    stringEntry("general.name", name ?? titleOf(folder)),
    stringEntry("general.size_label", sizeLabel(tensors)),
  ];
}

/** `models/tiny-ornith` is "Tiny Ornith". */
function titleOf(folder: string): string {
  return path
    .basename(path.resolve(folder))
    .split(/[-_\s]+/)
    .filter((word) => word !== "")
    .map((word) => word.charAt(0).toUpperCase() + word.slice(1))
    .join(" ");
}

/** `8x7.4M`: experts x (parameters outside experts + those of one expert), or the total. */
export function sizeLabel(tensors: readonly SizedTensor[]): string {
  let [shared, ofOneExpert, nStacks, nExperts] = [0, 0, 0, 0];
  for (const { name, shape } of tensors) {
    const count = shape[2];
    if (!name.includes("_exps.") || count === undefined) shared += elementCount(shape);
    else {
      ofOneExpert += Math.floor(elementCount(shape) / count);
      nExperts += count;
      nStacks++;
    }
  }
  return nStacks === 0 ? roundedCount(shared) : `${Math.floor(nExperts / nStacks)}x${roundedCount(shared + ofOneExpert)}`;
}

function roundedCount(n: number): string {
  const [scaled, suffix] = n > 1e12 ? [n * 1e-12, "T"] : n > 1e9 ? [n * 1e-9, "B"] : n > 1e6 ? [n * 1e-6, "M"] : [n * 1e-3, "K"];
  const whole = String(Math.round(scaled)).replace(/^0+/, "");
  return `${scaled.toFixed(Math.max(2 - whole.length, 0))}${suffix}`;
}
