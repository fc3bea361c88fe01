/** What a lab run will do: which steps are there already, what the others cost in disk and time. */
import * as fs from "node:fs";
import * as path from "node:path";
import { quoteCommand } from "../bench/managed-server.ts";
import { formatBytes, formatDuration } from "../util/format.ts";
import { HashCache, hashOf, sizeOnDisk, sourceHash } from "./keys.ts";
import { matrixPlan } from "./matrix.ts";
import { type Recipe, type Step, parseSize } from "./recipe.ts";
import { readStepRecord, type StepRecord } from "./step-record.ts";

export interface PlannedStep {
  readonly step: Step;
  readonly command: string;
  /** Files it reads: artifacts of earlier steps and given inputs. */
  readonly inputs: readonly string[];
  /** Bytes it will write, as far as the recipe and its inputs tell. */
  readonly sizeBytes: number;
}

/** The command line of a step, as it can be typed. */
export function commandOf(step: Step, folder: string): string {
  if (step.run !== undefined) return quoteCommand(["foretoken", ...step.run]);
  return quoteCommand(["foretoken", "bench", "sweep", path.join(folder, "matrix", step.id, "plan.yaml"), "-o", path.join(folder, "matrix", step.id)]);
}

export function planSteps(recipe: Recipe, folder: string): PlannedStep[] {
  const sizes = new Map<string, number>();
  return recipe.steps.map((step) => {
    const inputs = inputsOf(recipe, step);
    const inputBytes = inputs.reduce((sum, file) => sum + (sizes.get(file) ?? sizeOnDisk(file)), 0);
    let sizeBytes = 0;
    for (const id of step.outputs) {
      const artifact = recipe.artifacts[id];
      if (artifact === undefined) continue;
      const bytes = artifact.size === undefined ? inputBytes : parseSize(artifact.size);
      sizes.set(artifact.file, bytes);
      sizeBytes += bytes;
    }
    return { step, command: commandOf(step, folder), inputs, sizeBytes };
  });
}

/** Artifacts whose file is named in the command line or loaded by a profile, and the inputs given. */
function inputsOf(recipe: Recipe, step: Step): string[] {
  const outputs = new Set(step.outputs.map((id) => recipe.artifacts[id]?.file));
  const named = Object.values(recipe.artifacts).map((a) => a.file).filter((file) => step.run?.some((word) => word === file || word.endsWith(`=${file}`)) === true && !outputs.has(file));
  const loaded = (step.matrix?.profiles ?? []).flatMap((id) => recipe.profiles[id]?.files ?? []).map((id) => recipe.artifacts[id]?.file ?? id);
  const given = step.inputs.map((name) => recipe.artifacts[name]?.file ?? name);
  return [...new Set([...named, ...loaded, ...given])];
}


/** Hash of everything the step's result depends on. @throws {UserError} when an input is missing. */
export async function stepKey(recipe: Recipe, planned: PlannedStep, hashes: HashCache): Promise<string> {
  const { step, inputs } = planned;
  const contents = await Promise.all(inputs.map(async (file) => [file, await hashes.contentHash(file)]));
  const verb = step.run?.[0] ?? "serve";
  const what = step.run ?? [matrixPlan(recipe, step, step.matrix as NonNullable<Step["matrix"]>), recipe.correctness];
  return hashOf([what, step.outputs.map((id) => recipe.artifacts[id]?.file), contents, sourceHash(verb)]);
}

/** The record of an earlier run, when its key is the same and its files are still what it made. */
export async function cachedRecord(folder: string, step: Step, key: string, hashes: HashCache): Promise<StepRecord | undefined> {
  const record = readStepRecord(folder, step.id);
  if (record === undefined || record.key !== key) return undefined;
  for (const output of record.outputs) {
    if (!fs.existsSync(output.file) || (await hashes.contentHash(output.file)) !== output.sha256) return undefined;
  }
  return record;
}

export function describePlan(recipe: Recipe, planned: readonly PlannedStep[], folder: string): string {
  const lines = [recipe.title, `${planned.length} steps, results in ${folder}`, ""];
  for (const [i, { step, command, inputs, sizeBytes }] of planned.entries()) {
    const missing = inputs.filter((file) => !fs.existsSync(file) && !planned.slice(0, i).some((p) => p.step.outputs.some((id) => recipe.artifacts[id]?.file === file)));
    lines.push(`${String(i + 1).padStart(2)}. ${step.title}${step.seconds === undefined ? "" : ` (about ${formatDuration(step.seconds * 1000)})`}${sizeBytes > 0 ? `, writes ${formatBytes(sizeBytes)}` : ""}`);
    lines.push(`    ${command}`);
    for (const id of step.outputs) lines.push(`    -> ${recipe.artifacts[id]?.file}`);
    for (const file of missing) lines.push(`    needs ${file}, which is not here`);
    if (step.matrix !== undefined) lines.push(`    ${step.matrix.profiles.length} profiles x c${step.matrix.concurrency.join("/")} x ${step.matrix.rounds} round${step.matrix.rounds === 1 ? "" : "s"}:`, ...step.matrix.profiles.map((id) => `      ${id}: ${recipe.profiles[id]?.name}: ${serveLine(recipe, id)}`));
  }
  lines.push("", `disk needed: ${formatBytes(planned.reduce((sum, p) => sum + p.sizeBytes, 0))}`);
  return lines.join("\n");
}

function serveLine(recipe: Recipe, id: string): string {
  const p = recipe.profiles[id];
  if (p?.serve !== undefined) return quoteCommand(["foretoken", "serve", ...recipe.serve, ...p.serve]);
  return p?.url ?? (typeof p?.command === "string" ? p.command : quoteCommand(p?.command ?? []));
}
