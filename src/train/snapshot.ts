/** A run frozen on disk: weights, Adam's moments, place in the data. Written under another name first, so a kill leaves the one before. */
import * as fs from "node:fs";
import * as path from "node:path";
import * as z from "zod";
import { readSafetensors, writeSafetensors, type HfTensor } from "../hf/safetensors.ts";
import { UserError } from "../util/errors.ts";
import { readFully } from "../util/files.ts";

const stateSchema = z.strictObject({
  format: z.literal("foretoken-snapshot-1"),
  step: z.int(),
  stage: z.int(),
  stepInStage: z.int(),
  /** Adam's own count: it starts anew when another head is trained. */
  optimizerStep: z.int(),
  elapsedMs: z.number(),
  best: z.number(),
  nWithoutGain: z.int(),
  stream: z.strictObject({
    rng: z.tuple([z.number(), z.number(), z.number(), z.number()]),
    order: z.array(z.int()),
    at: z.int(),
    start: z.int(),
    nEpochs: z.int(),
  }),
  /** What makes this run this run. */
  configuration: z.record(z.string(), z.unknown()),
});
export type SnapshotState = z.infer<typeof stateSchema>;

export interface Snapshot {
  readonly state: SnapshotState;
  /** Weights of each head. */
  readonly heads: readonly ReadonlyMap<string, Float32Array>[];
  /** Of the head that is being trained. */
  readonly moments: ReadonlyMap<string, readonly [Float32Array, Float32Array]>;
}

export const snapshotName = (step: number): string => `step-${String(step).padStart(6, "0")}.safetensors`;

const bytesOf = (a: Float32Array): Uint8Array => new Uint8Array(a.buffer, a.byteOffset, a.byteLength);

export async function writeSnapshot(file: string, { state, heads, moments }: Snapshot): Promise<void> {
  const json = Buffer.from(JSON.stringify(state));
  const tensor = (name: string, values: Float32Array) => ({ name, dtype: "F32", shape: [values.length], data: () => [bytesOf(values)] });
  await writeSafetensors(file, [
    ...heads.flatMap((weights, i) => [...weights].map(([name, values]) => tensor(`head.${i}/${name}`, values))),
    ...[...moments].flatMap(([name, [m, v]]) => [tensor(`m/${name}`, m), tensor(`v/${name}`, v)]),
    { name: "state", dtype: "U8", shape: [json.length], data: () => [json] },
  ]);
}

/** @throws {UserError} for a file that is no snapshot of this version. */
export function readSnapshot(file: string): Snapshot {
  const fd = fs.openSync(file, "r");
  try {
    const tensors = readSafetensors(file);
    const stateTensor = tensors.find((t) => t.name === "state");
    if (stateTensor === undefined) throw new UserError(`${file} is no snapshot: it has no state`);
    const bytes = new Uint8Array(stateTensor.sizeBytes);
    readFully(fd, bytes, stateTensor.offset);
    const state = stateSchema.safeParse(JSON.parse(Buffer.from(bytes).toString("utf8")));
    if (!state.success) throw new UserError(`${file} is a snapshot of another version (${state.error.issues[0]?.path.join(".")}); start the run over with --force`);
    const values = (t: HfTensor): Float32Array => {
      const out = new Float32Array(t.sizeBytes / 4);
      readFully(fd, bytesOf(out), t.offset);
      return out;
    };
    const heads: Map<string, Float32Array>[] = [];
    const m = new Map<string, Float32Array>();
    const v = new Map<string, Float32Array>();
    for (const t of tensors) {
      const head = /^head\.(\d+)\/(.+)$/.exec(t.name);
      if (head !== null) (heads[Number(head[1])] ??= new Map()).set(head[2] as string, values(t));
      else if (t.name.startsWith("m/")) m.set(t.name.slice(2), values(t));
      else if (t.name.startsWith("v/")) v.set(t.name.slice(2), values(t));
    }
    return { state: state.data, heads, moments: new Map([...m].map(([name, values_]) => [name, [values_, v.get(name) as Float32Array] as const])) };
  } finally {
    fs.closeSync(fd);
  }
}

/** The newest snapshot in a folder; unfinished files have other names. */
export function latestSnapshot(folder: string): string | undefined {
  if (!fs.existsSync(folder)) return undefined;
  const names = fs.readdirSync(folder).filter((name) => /^step-\d+\.safetensors$/.test(name));
  const last = names.toSorted().at(-1);
  return last === undefined ? undefined : path.join(folder, last);
}

/** Keeps the newest `nKept`. */
export function pruneSnapshots(folder: string, nKept: number): void {
  const names = fs.readdirSync(folder).filter((name) => /^step-\d+\.safetensors$/.test(name)).toSorted();
  for (const name of names.slice(0, Math.max(0, names.length - nKept))) fs.rmSync(path.join(folder, name), { force: true });
}
