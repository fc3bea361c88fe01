/** What a finished step leaves in steps/<id>.json: the key it was made under, its outputs and its result. */
import * as fs from "node:fs";
import * as path from "node:path";
import { writeTextAtomic } from "../util/files.ts";

export interface OutputFile {
  readonly id: string;
  readonly file: string;
  readonly sizeBytes: number;
  readonly sha256: string;
}

export interface StepRecord {
  readonly id: string;
  readonly key: string;
  readonly title: string;
  /** As it can be typed again. */
  readonly command: string;
  readonly date: string;
  readonly seconds: number;
  readonly exitCode: number;
  readonly log: string | null;
  readonly outputs: readonly OutputFile[];
  /** The verb's --json line. */
  readonly result: unknown;
}

const fileOf = (folder: string, id: string): string => path.join(folder, "steps", `${id}.json`);

export function readStepRecord(folder: string, id: string): StepRecord | undefined {
  try {
    return JSON.parse(fs.readFileSync(fileOf(folder, id), "utf8")) as StepRecord;
  } catch {
    return undefined;
  }
}

export async function writeStepRecord(folder: string, record: StepRecord): Promise<void> {
  await writeTextAtomic(fileOf(folder, record.id), `${JSON.stringify(record, null, 2)}\n`);
}

const startedFile = (folder: string, id: string): string => path.join(folder, "steps", `${id}.started`);

/** Notes that a step begins under this key; true when an earlier run began it under the same key and did not end it. */
export async function beginStep(folder: string, id: string, key: string): Promise<boolean> {
  const file = startedFile(folder, id);
  if (fs.existsSync(file) && fs.readFileSync(file, "utf8") === key) return true;
  await writeTextAtomic(file, key);
  return false;
}

export function endStep(folder: string, id: string): void {
  fs.rmSync(startedFile(folder, id), { force: true });
}
