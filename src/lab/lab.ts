/** Runs a recipe: plan, lock, disk, then the steps that are not there yet, each recorded when it ends; then the report. */
import * as fs from "node:fs";
import * as path from "node:path";
import { writeReport } from "../report/write.ts";
import type { ReportData } from "../report/model.ts";
import { UserError } from "../util/errors.ts";
import { requireDiskSpace, writeTextAtomic } from "../util/files.ts";
import { formatDuration } from "../util/format.ts";
import { createProgress } from "../util/progress.ts";
import { collect } from "./collect.ts";
import { HashCache, sizeOnDisk } from "./keys.ts";
import { lockFolder } from "./lock.ts";
import { runMatrix } from "./matrix.ts";
import { cachedRecord, planSteps, stepKey, type PlannedStep } from "./plan.ts";
import type { Recipe } from "./recipe.ts";
import { runVerb } from "./run-verb.ts";
import { beginStep, endStep, writeStepRecord, type StepRecord } from "./step-record.ts";

export interface LabContext {
  readonly signal?: AbortSignal;
  readonly note: (text: string) => void;
  /** Run every step again. */
  readonly fresh?: boolean;
  /** Run up to and including this step. */
  readonly until?: string | undefined;
}

export interface LabOutcome {
  readonly data: ReportData;
  readonly files: { readonly summary: string; readonly markdown: string; readonly html: string };
  readonly nRun: number;
  readonly nCached: number;
}

/** @throws {UserError} when a step fails, the folder is in use, or the disk is too small. */
export async function runLab(recipe: Recipe, folder: string, context: LabContext): Promise<LabOutcome> {
  const release = lockFolder(folder);
  try {
    const planned = planSteps(recipe, folder);
    const last = context.until === undefined ? planned.length - 1 : planned.findIndex((p) => p.step.id === context.until);
    if (last < 0) throw new UserError(`--until ${context.until}: the steps are ${planned.map((p) => p.step.id).join(", ")}`);
    const hashes = new HashCache(path.join(folder, "hashes.json"));
    await writeTextAtomic(path.join(folder, "recipe.json"), `${JSON.stringify(recipe, null, 2)}\n`);
    let nCached = 0;
    let nRun = 0;
    for (const [i, plan] of planned.slice(0, last + 1).entries()) {
      context.signal?.throwIfAborted();
      const key = await stepKey(recipe, plan, hashes);
      const label = `[${i + 1}/${planned.length}] ${plan.step.title}`;
      if (context.fresh !== true && (await cachedRecord(folder, plan.step, key, hashes)) !== undefined) {
        nCached++;
        continue;
      }
      context.note(label);
      await runStep(recipe, plan, key, folder, hashes, label, context);
      nRun++;
    }
    if (nCached > 0) context.note(`${nCached} step${nCached === 1 ? " was" : "s were"} done already`);
    const data = collect(recipe, folder);
    return { data, files: await writeReport(folder, data), nRun, nCached };
  } finally {
    release();
  }
}

async function runStep(recipe: Recipe, plan: PlannedStep, key: string, folder: string, hashes: HashCache, label: string, context: LabContext): Promise<void> {
  const { step } = plan;
  const files = step.outputs.map((id) => ({ id, file: recipe.artifacts[id]?.file as string }));
  if (plan.sizeBytes > 0) requireDiskSpace(path.dirname(files[0]?.file ?? folder), plan.sizeBytes, step.title);
  const canResume = (await beginStep(folder, step.id, key)) && context.fresh !== true && step.resume !== undefined && fs.existsSync(step.resume.when);
  // An output of an earlier run that no longer fits its inputs must not be taken for the new one.
  for (const { file } of canResume ? [] : files) fs.rmSync(file, { recursive: true, force: true });
  if (canResume) context.note("goes on where it was stopped");
  const startMs = performance.now();
  const log = path.join(folder, "logs", `${step.id}.log`);
  const done = step.run === undefined ? { exitCode: 0, result: await runMatrix(recipe, step, folder, { ...context, hashes }) } : await verbStep([...step.run, ...(canResume ? (step.resume?.add ?? []) : [])], step.mayFail, log, label, context);
  if (step.run?.[0] === "pull" && files[0] !== undefined) linkPulled(done.result, files[0].file);
  const outputs: StepRecord["outputs"][number][] = [];
  for (const { id, file } of files) {
    if (!fs.existsSync(file)) throw new UserError(`${step.title} ended without writing ${file}; see ${log}`);
    outputs.push({ id, file, sizeBytes: sizeOnDisk(file), sha256: await hashes.contentHash(file) });
  }
  const seconds = Math.round((performance.now() - startMs) / 10) / 100;
  await writeStepRecord(folder, { id: step.id, key, title: step.title, command: plan.command, date: new Date().toISOString(), seconds, exitCode: done.exitCode, log: step.run === undefined ? null : path.relative(folder, log), outputs, result: done.result });
  endStep(folder, step.id);
  context.note(`${label}: done in ${formatDuration(seconds * 1000)}`);
}

/** `pull` keeps files in the shared cache: the artifact is a link to the one file, or to the folder of the snapshot. */
function linkPulled(result: unknown, link: string): void {
  const { folder, files } = result as { folder: string; files: readonly { file: string }[] };
  fs.mkdirSync(path.dirname(link), { recursive: true });
  fs.symlinkSync(path.resolve(files.length === 1 && files[0] !== undefined && path.extname(link) !== "" ? files[0].file : folder), link);
}

async function verbStep(words: readonly string[], mayFail: boolean, log: string, label: string, context: LabContext): Promise<{ exitCode: number; result: unknown }> {
  const progress = createProgress(label);
  try {
    let nLines = 0;
    return await runVerb(words, { logFile: log, signal: context.signal, mayFail, onLine: (line) => progress.update(++nLines, line) });
  } finally {
    progress.end();
  }
}
