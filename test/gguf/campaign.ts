/** Damaged headers, many of them: each must be read, or refused with a typed error, in little time and memory. */
import * as fs from "node:fs";
import * as path from "node:path";
import { auditModel } from "../../src/gguf/audit.ts";
import { readArray } from "../../src/gguf/entry.ts";
import { readGguf } from "../../src/gguf/split.ts";
import { UserError, errorMessage } from "../../src/util/errors.ts";
import { Rng } from "../../src/util/rng.ts";
import { mutate, specimenOf, type Specimen } from "./mutate.ts";

export interface Finding {
  readonly kind: "crash" | "slow" | "memory";
  readonly what: string;
  /** The damaged file, kept. */
  readonly file: string;
}

export interface CampaignResult {
  readonly nFiles: number;
  readonly nAccepted: number;
  /** Refusals by the text after "reading ...:", numbers left out. */
  readonly refusals: ReadonlyMap<string, number>;
  readonly findings: readonly Finding[];
  readonly slowestMs: number;
  /** How far resident memory rose above where it began, at most. */
  readonly memoryRiseBytes: number;
}

export interface CampaignOptions {
  /** Files to damage. */
  readonly sources: readonly string[];
  readonly folder: string;
  readonly nFiles: number;
  readonly seed: number;
  /** Gets every damaged file with the verdict; it may keep a copy. */
  readonly onVerdict?: (file: string, verdict: { readonly error: UserError } | { readonly remarks: readonly string[] }) => void;
}

const slowMs = 2000;

/** Reads the whole of a file that `inspect` would read, and returns its remarks and problems. */
export function readEverything(file: string): readonly string[] {
  const model = readGguf(file);
  const { remarks, problems, mtp } = auditModel(model);
  for (const entry of model.entries.values()) if (entry.kind === "array" && entry.elementType !== "array") readArray(entry, model.littleEndian);
  const isMtpSound = mtp.verdict === "none" || mtp.verdict === "complete";
  return [...remarks, ...problems, ...(isMtpSound ? [] : [`MTP ${mtp.verdict}`])];
}

export function runCampaign({ sources, folder, nFiles, seed, onVerdict }: CampaignOptions): CampaignResult {
  const rng = new Rng(seed);
  const specimens: Specimen[] = sources.map((source) => specimenOf(source, fs.readFileSync(source)));
  const file = path.join(folder, "damaged.gguf");
  const refusals = new Map<string, number>();
  const findings: Finding[] = [];
  let [nAccepted, slowestMs, memoryRiseBytes] = [0, 0, 0];
  const startBytes = process.memoryUsage().rss;
  for (let n = 0; n < nFiles; n++) {
    fs.writeFileSync(file, mutate(specimens[n % specimens.length] as Specimen, rng));
    const startMs = performance.now();
    const keep = (kind: Finding["kind"], what: string): void => {
      const kept = path.join(folder, `${kind}-${findings.length}.gguf`);
      fs.copyFileSync(file, kept);
      findings.push({ kind, what, file: kept });
    };
    try {
      const remarks = readEverything(file);
      nAccepted++;
      onVerdict?.(file, { remarks });
    } catch (error) {
      if (error instanceof UserError) {
        const reason = classOf(error.message);
        refusals.set(reason, (refusals.get(reason) ?? 0) + 1);
        onVerdict?.(file, { error });
      } else keep("crash", errorMessage(error));
    }
    const elapsedMs = performance.now() - startMs;
    slowestMs = Math.max(slowestMs, elapsedMs);
    if (elapsedMs > slowMs) keep("slow", `${Math.round(elapsedMs)} ms`);
    if (n % 500 === 0) memoryRiseBytes = Math.max(memoryRiseBytes, process.memoryUsage().rss - startBytes);
  }
  fs.rmSync(file, { force: true });
  return { nFiles, nAccepted, refusals, findings, slowestMs, memoryRiseBytes };
}

/** The kind of a refusal: its message without names, numbers and what was quoted. */
export function classOf(message: string): string {
  return message
    .replace(/^.*?, reading /s, "")
    .replace(/"(?:[^"\\]|\\.)*"(\.\.\.)?/gs, "NAME")
    .replace(/\[[^\]]*\]/g, "SHAPE")
    .replace(/\/\S+/g, "FILE")
    .replace(/-?\d[\d,.e+]*/g, "N")
    .slice(0, 140);
}
