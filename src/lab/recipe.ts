/**
 * A recipe: which files are made, by which steps, which serving profiles are measured how, and how it is reported.
 * `{name}` in any text is a variable or the file of an artifact; {run} is the run folder, {package} this package's,
 * {threads} one CPU thread, or two where a core stays free for HTTP and the client: a waiting thread without a core of its
 * own costs far more than it gives, and more do not help a model of a few million parameters.
 */
import * as fs from "node:fs";
import * as os from "node:os";
import * as path from "node:path";
import * as z from "zod";
import { PartialLoad } from "../bench/options.ts";
import { sectionParts } from "../report/model.ts";
import { usageError } from "../util/errors.ts";
import { statFile } from "../util/files.ts";
import { packageRoot } from "../util/paths.ts";
import { readYaml } from "../util/yaml-file.ts";

const id = z.string().regex(/^[a-z][\w.-]*$/i, "letters, digits, dots, dashes and underscores");
const words = z.array(z.coerce.string());

const Artifact = z.strictObject({
  file: z.string(),
  label: z.string(),
  role: z.enum(["target", "head", "integrated", "data", "other"]).default("other"),
  type: z.string().optional(),
  note: z.string().optional(),
  /** Bytes expected, for the plan: "18.9 GB", "17.64 GiB" or a number; default: as much as the step's inputs. */
  size: z.union([z.number(), z.string()]).optional(),
  /** Shown in the artifact table. */
  show: z.boolean().default(true),
});

const Expectation = z.strictObject({
  chatPrompt: z.string().optional(),
  chatExpect: z.array(z.string()).default([]),
  completionPrompt: z.string().optional(),
  completionExpect: z.array(z.string()).default([]),
  maxTokens: z.int().min(1).default(96),
});

const Profile = z
  .strictObject({
    name: z.string(),
    note: z.string().optional(),
    /** Flags of `foretoken serve`, after the recipe's common ones. */
    serve: words.optional(),
    /** Or another server by its command line, with {port}. */
    command: z.union([z.string(), words]).optional(),
    /** Or one that runs already. */
    url: z.string().optional(),
    model: z.string().optional(),
    env: z.record(z.string(), z.coerce.string()).default({}),
    /** Artifacts it loads: they are part of what the measurement depends on. */
    files: z.array(id).default([]),
    /** Profile that ratios are taken against. */
    baseline: id.optional(),
    synthetic: z.boolean().default(false),
    load: PartialLoad.optional(),
    readyTimeout: z.number().positive().default(600),
  })
  .refine((p) => [p.serve, p.command, p.url].filter((v) => v !== undefined).length === 1, "needs one of `serve`, `command` and `url`");

const Matrix = z.strictObject({
  profiles: z.array(id).min(1),
  concurrency: z.array(z.int().min(1)).min(1).default([1, 4, 8, 16]),
  rounds: z.int().min(1).default(1),
  order: z.enum(["rounds", "servers", "cells"]).default("servers"),
  load: PartialLoad.default({}),
  at: z.record(z.string().regex(/^\d+$/), PartialLoad).default({}),
  /** Run the recipe's correctness gate on each profile first. */
  correctness: z.boolean().default(true),
});

const Step = z
  .strictObject({
    id,
    title: z.string(),
    /** A verb of this program and its arguments. */
    run: words.optional(),
    matrix: Matrix.optional(),
    /** Files, folders or artifacts whose content the result depends on, besides the artifacts named in `run`. */
    inputs: z.array(z.string()).default([]),
    outputs: z.array(id).default([]),
    /** Rough seconds, for the plan. */
    seconds: z.number().optional(),
    /** Exit code 1 is a result too: a probe that failed is reported, not fatal. */
    mayFail: z.boolean().default(false),
    /** How the step's JSON result is shown in the report. */
    report: z.enum(["determinism", "training", "evaluation", "shapes", "inspect", "table"]).optional(),
    /** A step that can go on where it was stopped: what it left is kept, and these words are added once `when` is there. */
    resume: z.strictObject({ when: z.string(), add: words.default([]) }).optional(),
  })
  .refine((s) => (s.run === undefined) !== (s.matrix === undefined), "needs either `run` or `matrix`");

const Rules = z.strictObject({
  /** A profile is chosen over the baseline only when its ratio, or the lower end of its interval, is at least this. */
  minRatio: z.number().positive().default(1.02),
  /** The same for a ratio of a single run, which has no interval. */
  minRatioSingleRun: z.number().positive().default(1.1),
  /** Above this share of failed requests a profile is rejected. */
  maxFailed: z.number().min(0).max(1).default(0),
  /** Below this acceptance a drafting profile is named as not worth its memory. */
  minAcceptance: z.number().min(0).max(1).default(0.3),
  /** Profiles that no production choice may be, with why: development heads, debug modes. */
  development: z.record(id, z.string()).default({}),
  /** Experiments against a profile: kept only if they are better by minRatio. */
  refinements: z.record(id, id).default({}),
});

const Section = z.strictObject({
  title: z.string(),
  text: z.string().optional(),
  show: z.array(z.enum(sectionParts)).min(1),
  matrix: id.optional(),
  profiles: z.array(id).optional(),
  concurrency: z.array(z.int().min(1)).optional(),
  /** For the artifact table; default: all. */
  artifacts: z.array(id).optional(),
});

const Recipe = z.strictObject({
  name: id,
  title: z.string(),
  about: z.string().optional(),
  vars: z.record(z.string(), z.coerce.string()).default({}),
  seed: z.int().min(0).default(1),
  artifacts: z.record(id, Artifact).default({}),
  steps: z.array(Step).min(1),
  /** Flags that every `serve` of the recipe has. */
  serve: words.default([]),
  profiles: z.record(id, Profile).default({}),
  correctness: Expectation.optional(),
  rules: Rules.prefault({}),
  sections: z.array(Section).default([]),
});

export type Recipe = z.output<typeof Recipe>;
export type Step = z.output<typeof Step>;
export type Profile = z.output<typeof Profile>;
export type Matrix = z.output<typeof Matrix>;
export type Rules = z.output<typeof Rules>;
export type Expectation = z.output<typeof Expectation>;

/** @throws {UserError} exit code 2: not YAML, an unknown key, a name that is not there, a variable without value. */
export function loadRecipe(file: string, options: { sets?: readonly string[]; runsFolder?: string } = {}): Recipe {
  return checkRecipe(readYaml(file, "recipe"), { ...options, where: path.basename(file) });
}

/** The recipe as a run folder keeps it: filled in already. @throws {UserError} when it is not there or of another version. */
export function readRecipe(file: string): Recipe {
  statFile(file, "recipe of the run");
  const parsed = Recipe.safeParse(JSON.parse(fs.readFileSync(file, "utf8")));
  if (!parsed.success) throw usageError(`${file}: ${parsed.error.issues[0]?.message ?? "not valid"}; run the lab again`);
  return parsed.data;
}

export function checkRecipe(raw: unknown, { sets = [], runsFolder = "runs", where = "recipe" }: { sets?: readonly string[]; runsFolder?: string; where?: string } = {}): Recipe {
  if (typeof raw === "object" && raw !== null && "servers" in raw && !("steps" in raw)) throw usageError(`${where} is a plan, not a recipe; run it with foretoken ${"modes" in raw ? "probe determinism certify" : "bench sweep"}`);
  const parsed = Recipe.safeParse(raw);
  if (!parsed.success) {
    const issue = parsed.error.issues[0];
    throw usageError(`${where}: ${issue?.path.join(".") ?? ""}: ${issue?.message ?? "not valid"}`);
  }
  const recipe = fillRecipe(parsed.data, sets, runsFolder, where);
  checkNames(recipe, where);
  return recipe;
}

export const runFolder = (recipe: Recipe, runsFolder = "runs"): string => path.join(runsFolder, recipe.name);

function fillRecipe(recipe: Recipe, sets: readonly string[], runsFolder: string, where: string): Recipe {
  const values: Record<string, string> = { run: runFolder(recipe, runsFolder), package: path.relative(process.cwd(), packageRoot) || ".", threads: String(Math.max(1, Math.min(2, os.availableParallelism() - 1))) };
  const fill = (text: string): string =>
    text.replace(/\{([\w.-]+)\}/g, (whole, name: string) => {
      if (name === "port") return whole;
      const value = values[name];
      if (value === undefined) throw usageError(`${where}: "${text}" names {${name}}, which is neither a variable nor an artifact; set it with --set ${name}=VALUE`);
      return value;
    });
  for (const [name, value] of Object.entries({ ...recipe.vars, ...Object.fromEntries(sets.map(parseSet)) })) values[name] = fill(value);
  const artifacts = Object.fromEntries(Object.entries(recipe.artifacts).map(([name, a]) => [name, { ...a, file: (values[name] = fill(a.file)) }]));
  const fillAll = (list: readonly string[]): string[] => list.map(fill);
  return {
    ...recipe,
    vars: values,
    artifacts,
    serve: fillAll(recipe.serve),
    steps: recipe.steps.map((s) => ({ ...s, inputs: fillAll(s.inputs), ...(s.run === undefined ? {} : { run: fillAll(s.run) }), ...(s.resume === undefined ? {} : { resume: { ...s.resume, when: fill(s.resume.when) } }) })),
    profiles: Object.fromEntries(
      Object.entries(recipe.profiles).map(([name, p]) => [
        name,
        {
          ...p,
          env: Object.fromEntries(Object.entries(p.env).map(([k, v]) => [k, fill(v)])),
          ...(p.serve === undefined ? {} : { serve: fillAll(p.serve) }),
          ...(p.command === undefined ? {} : { command: typeof p.command === "string" ? fill(p.command) : fillAll(p.command) }),
          ...(p.url === undefined ? {} : { url: fill(p.url) }),
        },
      ]),
    ),
  };
}

function parseSet(text: string): [string, string] {
  const at = text.indexOf("=");
  if (at < 1) throw usageError(`--set ${text}: must be NAME=VALUE`);
  return [text.slice(0, at), text.slice(at + 1)];
}

function checkNames(recipe: Recipe, where: string): void {
  const need = (name: string, names: Iterable<string>, what: string): void => {
    if (![...names].includes(name)) throw usageError(`${where}: ${what} ${name} is not defined; there are ${[...names].join(", ") || "none"}`);
  };
  const profiles = Object.keys(recipe.profiles);
  const artifacts = Object.keys(recipe.artifacts);
  const steps = recipe.steps.map((s) => s.id);
  if (new Set(steps).size < steps.length) throw usageError(`${where}: two steps have the same id`);
  for (const step of recipe.steps) {
    for (const name of step.outputs) need(name, artifacts, `step ${step.id}: artifact`);
    for (const name of step.matrix?.profiles ?? []) need(name, profiles, `step ${step.id}: profile`);
  }
  for (const [name, p] of Object.entries(recipe.profiles)) {
    for (const file of p.files) need(file, artifacts, `profile ${name}: artifact`);
    if (p.baseline !== undefined) need(p.baseline, profiles, `profile ${name}: baseline`);
  }
  for (const name of [...Object.keys(recipe.rules.development), ...Object.entries(recipe.rules.refinements).flat()]) need(name, profiles, "rules: profile");
  for (const s of recipe.sections) {
    if (s.matrix !== undefined) need(s.matrix, steps, `section ${s.title}: matrix`);
    for (const name of s.profiles ?? []) need(name, profiles, `section ${s.title}: profile`);
    for (const name of s.artifacts ?? []) need(name, artifacts, `section ${s.title}: artifact`);
  }
}

/** "18.9 GB" (powers of ten), "17.64 GiB" (powers of two), 123 -> bytes. */
export function parseSize(size: number | string): number {
  if (typeof size === "number") return size;
  const match = /^([\d.]+)\s*([KMGT])(i?)B$/i.exec(size.replaceAll(",", ""));
  const bytes = match === null ? Number(size) : Number(match[1]) * (match[3] === "" ? 1000 : 1024) ** ("KMGT".indexOf((match[2] as string).toUpperCase()) + 1);
  if (Number.isNaN(bytes)) throw usageError(`size ${size}: must be a number of bytes, or like 18.9 GB or 17.64 GiB`);
  return Math.round(bytes);
}
