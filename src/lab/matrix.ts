/** A matrix step: profiles by concurrency, run as a sweep, each profile through the correctness gate first. */
import * as fs from "node:fs";
import * as path from "node:path";
import * as yaml from "yaml";
import type { ModelFile } from "../bench/model-files.ts";
import type { Target } from "../bench/run.ts";
import { runSweep, type CellResult, type SweepOutcome } from "../bench/sweep.ts";
import { checkPlan, type SweepPlan } from "../bench/sweep-plan.ts";
import { probeCorrectness, type CorrectnessCase, type CorrectnessReport } from "../probe/correctness.ts";
import { UserError } from "../util/errors.ts";
import { writeTextAtomic } from "../util/files.ts";
import { estimateProfile } from "./estimate.ts";
import { hashOf, sourceHash, type HashCache } from "./keys.ts";
import type { Expectation, Matrix, Profile, Recipe, Step } from "./recipe.ts";

export interface ProfileCheck {
  readonly profile: string;
  readonly name: string;
  readonly ok: boolean;
  readonly detail: string;
}

export interface MatrixResult {
  readonly checks: readonly ProfileCheck[];
  /** Keys of the cells that belong to this run; cells.jsonl may hold older ones. */
  readonly cells: readonly string[];
  readonly skipped: SweepOutcome["skipped"];
  /** Profile -> bytes, before it was loaded. */
  readonly estimates: Readonly<Record<string, number>>;
}

export const matrixFolder = (folder: string, step: Step): string => path.join(folder, "matrix", step.id);

/** The step as a plan file, so that `foretoken bench sweep` can repeat it alone. */
export function matrixPlan(recipe: Recipe, step: Step, matrix: Matrix): SweepPlan {
  return checkPlan({
    name: step.id,
    servers: matrix.profiles.map((id) => server(recipe, id, recipe.profiles[id] as Profile)),
    concurrency: matrix.concurrency,
    rounds: matrix.rounds,
    order: matrix.order,
    load: { seed: recipe.seed, ...matrix.load },
    at: matrix.at,
  });
}

function server(recipe: Recipe, id: string, profile: Profile): unknown {
  const { serve, command, url, model, env, baseline, synthetic, load, readyTimeout, note } = profile;
  const words = serve === undefined ? command : ["foretoken", "serve", "--host", "127.0.0.1", "--port", "{port}", "--alias", model ?? recipe.name, ...recipe.serve, ...serve];
  return { name: id, command: words, url, model: model ?? recipe.name, env, baseline, synthetic, load, readyTimeout, note };
}

export function correctnessCases(e: Expectation): CorrectnessCase[] {
  const cases: CorrectnessCase[] = [];
  if (e.chatPrompt !== undefined) cases.push({ name: "chat", endpoint: "chat", prompt: e.chatPrompt, maxTokens: e.maxTokens, expect: e.chatExpect });
  if (e.completionPrompt !== undefined) cases.push({ name: "completion", endpoint: "completions", prompt: e.completionPrompt, maxTokens: e.maxTokens, expect: e.completionExpect });
  return cases;
}

export interface MatrixContext {
  readonly signal?: AbortSignal;
  readonly note: (text: string) => void;
  readonly hashes: HashCache;
  /** Measure every cell again. */
  readonly fresh?: boolean;
}

/** Cells that are there are taken while program, files and load are the same, so more rounds or profiles add to them. @throws {UserError} when not one cell could be measured. */
export async function runMatrix(recipe: Recipe, step: Step, folder: string, context: MatrixContext): Promise<MatrixResult> {
  const matrix = step.matrix as Matrix;
  const models = await modelFiles(recipe, matrix, context.hashes);
  const inputs = await Promise.all(step.inputs.map((name) => context.hashes.contentHash(recipe.artifacts[name]?.file ?? name)));
  const saltOf = (name: string): string => hashOf([sourceHash("serve"), inputs, models.get(name)?.map((m) => m.sha256)]).slice(0, 16);
  const made = matrixPlan(recipe, step, matrix);
  const plan = { ...made, servers: made.servers.map((s) => ({ ...s, salt: saltOf(s.name) })) };
  const own = matrixFolder(folder, step);
  await writeTextAtomic(path.join(own, "plan.yaml"), yaml.stringify(plan));
  const cases = matrix.correctness && recipe.correctness !== undefined ? correctnessCases(recipe.correctness) : [];
  const gate = new CorrectnessGate(plan, cases, path.join(own, "correctness"));
  const estimates = await estimateAll(recipe, matrix, context.signal);
  const outcome = await runSweep(plan, own, {
    ...(context.signal === undefined ? {} : { signal: context.signal }),
    note: context.note,
    fresh: context.fresh === true,
    models: (name) => models.get(name) ?? [],
    async onReady(name, target) {
      for (const check of await gate.run(name, target, context.signal)) if (!check.ok) context.note(`${name}: ${check.name} FAILED: ${check.detail}`);
    },
  });
  if (outcome.cells.length === 0) throw new UserError(`${step.id}: nothing could be measured: ${outcome.skipped[0]?.reason ?? "no cell"}`);
  return { checks: matrix.profiles.flatMap((name) => gate.checks(name)), cells: outcome.cells.map((c: CellResult) => c.key), skipped: outcome.skipped, estimates };
}

async function modelFiles(recipe: Recipe, matrix: Matrix, hashes: HashCache): Promise<Map<string, ModelFile[]>> {
  const models = new Map<string, ModelFile[]>();
  for (const id of matrix.profiles) {
    const files = (recipe.profiles[id]?.files ?? []).map((name) => recipe.artifacts[name]?.file ?? name);
    models.set(id, await Promise.all(files.map(async (file) => ({ file, sha256: await hashes.contentHash(file) }))));
  }
  return models;
}

async function estimateAll(recipe: Recipe, matrix: Matrix, signal: AbortSignal | undefined): Promise<Record<string, number>> {
  const estimates: Record<string, number> = {};
  for (const id of matrix.profiles) {
    signal?.throwIfAborted();
    const bytes = await estimateProfile(recipe, recipe.profiles[id] as Profile);
    if (bytes !== undefined) estimates[id] = bytes;
  }
  return estimates;
}

/** Each profile's answers are kept with a key, so that a resumed matrix does not ask again nor show an old answer. */
class CorrectnessGate {
  readonly #plan: SweepPlan;
  readonly #cases: readonly CorrectnessCase[];
  readonly #folder: string;

  constructor(plan: SweepPlan, cases: readonly CorrectnessCase[], folder: string) {
    this.#plan = plan;
    this.#cases = cases;
    this.#folder = folder;
  }

  async run(name: string, target: Target, signal: AbortSignal | undefined): Promise<readonly ProfileCheck[]> {
    if (this.#cases.length === 0 || this.checks(name).length > 0) return [];
    const report = await probeCorrectness(target, this.#cases, { timeoutMs: 300_000, ...(signal === undefined ? {} : { signal }) });
    await writeTextAtomic(this.#file(name), `${JSON.stringify({ key: this.#key(name), ...report }, null, 2)}\n`);
    return this.checks(name);
  }

  checks(name: string): ProfileCheck[] {
    try {
      const stored = JSON.parse(fs.readFileSync(this.#file(name), "utf8")) as CorrectnessReport & { key: string };
      return stored.key === this.#key(name) ? stored.checks.map((c) => ({ profile: name, name: c.name, ok: c.ok, detail: c.detail })) : [];
    } catch {
      return [];
    }
  }

  #file(name: string): string {
    return path.join(this.#folder, `${name}.json`);
  }

  #key(name: string): string {
    return hashOf([this.#plan.servers.find((s) => s.name === name), this.#cases]);
  }
}
