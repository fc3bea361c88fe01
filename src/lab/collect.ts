/**
 * A run folder -> report data. Everything is read from files that the steps left, and every rate is computed again from
 * the raw request lines, so a report can be rebuilt at any time and comes out the same.
 */
import * as fs from "node:fs";
import * as path from "node:path";
import type { DraftCounts } from "../bench/counters.ts";
import { acceptanceOf } from "../bench/counters.ts";
import { describeLimits, parseLimits, type LoadOptions } from "../bench/options.ts";
import { estimate } from "../bench/paired.ts";
import type { RequestRecord } from "../bench/record.ts";
import { summarize, ttftMs, type Summary } from "../bench/summarize.ts";
import { cellsOf, type SweepPlan } from "../bench/sweep-plan.ts";
import { readCells, type CellResult } from "../bench/sweep.ts";
import type { Artifact, BenchRow, CheckRow, Conditions, Phase, ProfileInfo, ReportData, StepInfo } from "../report/model.ts";
import { UserError } from "../util/errors.ts";
import { MIB } from "../util/format.ts";
import { packageVersion } from "../util/paths.ts";
import { median, quantile } from "../util/stats.ts";
import { matrixFolder, type MatrixResult } from "./matrix.ts";
import { checkRecipe, type Recipe, type Step } from "./recipe.ts";
import { readExtras } from "./results.ts";
import { recommend } from "./rules.ts";
import { readStepRecord, type StepRecord } from "./step-record.ts";

/** Steps that have not run yet are left out. @throws {UserError} when nothing has run. */
export function collect(recipe: Recipe, folder: string): ReportData {
  const done = recipe.steps.flatMap((step) => {
    const record = readStepRecord(folder, step.id);
    return record === undefined ? [] : [{ step, record }];
  });
  if (done.length === 0) throw new UserError(`${folder} has no finished step; run the lab first`);
  const cells = done.flatMap(({ step, record }) => (step.matrix === undefined ? [] : matrixCells(folder, step, record)));
  const rows = recipe.steps.flatMap((step) => (step.matrix === undefined ? [] : matrixRows(recipe, step, cells)));
  const estimates = Object.assign({}, ...done.map(({ step, record }) => (step.matrix === undefined ? {} : (record.result as MatrixResult).estimates))) as Record<string, number>;
  const profiles = profileInfos(recipe, cells, rows, estimates);
  const correctness = done.flatMap(({ step, record }) => (step.matrix === undefined ? [] : checksOf(recipe, record)));
  const named = (id: string): string => recipe.profiles[id]?.name ?? id;
  const recommendation =
    rows.length === 0
      ? null
      : recommend(rows, profiles, {
          ...recipe.rules,
          titles: Object.fromEntries(recipe.steps.map((s) => [s.id, s.title])),
          development: Object.fromEntries(Object.entries(recipe.rules.development).map(([id, reason]) => [named(id), reason])),
          refinements: Object.fromEntries(Object.entries(recipe.rules.refinements).map(([a, b]) => [named(a), named(b)])),
          incorrect: [...new Set(correctness.filter((c) => !c.ok).map((c) => c.profile))],
        });
  return {
    recipe: recipe.name,
    title: recipe.title,
    about: recipe.about ?? null,
    conditions: conditionsOf(recipe, done.map((d) => d.record), cells),
    rows,
    profiles,
    artifacts: done.flatMap(({ record }) => artifactsOf(recipe, record)),
    correctness,
    ...readExtras(recipe, done),
    recommendation,
    sections: recipe.sections.map((s) => ({ title: s.title, text: s.text ?? null, show: s.show, matrix: s.matrix ?? null, profiles: s.profiles?.map(named) ?? null, concurrency: s.concurrency ?? null, artifacts: s.artifacts?.map((name) => path.basename(recipe.artifacts[name]?.file ?? name)) ?? null })),
    steps: done.map(({ step, record }): StepInfo => ({ id: step.id, title: step.title, command: record.command, seconds: record.seconds, log: record.log })),
    rawFiles: cells.map((c) => c.file),
  };
}

/** A folder that `bench sweep` wrote -> report data: its servers are the profiles. @throws {UserError} when nothing was measured. */
export function collectSweep(folder: string): ReportData {
  const { plan } = JSON.parse(fs.readFileSync(path.join(folder, "sweep.json"), "utf8")) as { plan: SweepPlan };
  const recipe = checkRecipe({
    name: plan.name,
    title: plan.title ?? plan.name,
    seed: plan.load.seed ?? 1,
    steps: [{ id: "sweep", title: "Sweep", matrix: { profiles: plan.servers.map((s) => s.name), concurrency: plan.concurrency, rounds: plan.rounds, order: plan.order } }],
    profiles: Object.fromEntries(plan.servers.map((s) => [s.name, { name: s.name, note: s.note, url: s.url ?? "started by the sweep", synthetic: s.synthetic, baseline: (s.baseline ?? plan.baseline) === s.name ? undefined : (s.baseline ?? plan.baseline) }])),
  });
  const [step] = recipe.steps as [Step];
  const wanted = new Set(cellsOf(plan).map((c) => c.key));
  const cells = cellsOfFolder(folder, step.id, folder).filter((c) => wanted.has(c.key));
  if (cells.length === 0) throw new UserError(`${folder} has no measured cell of its plan; run bench sweep again`);
  const rows = matrixRows(recipe, step, cells);
  const profiles = profileInfos(recipe, cells, rows, {});
  return {
    recipe: recipe.name,
    title: recipe.title,
    about: plan.servers.some((s) => s.synthetic) ? "Servers marked synthetic draw acceptance from set rates or have random weights: their text means nothing, their speed is that of the shape." : null,
    conditions: conditionsOf(recipe, [], cells),
    rows,
    profiles,
    artifacts: [],
    correctness: [],
    ...readExtras(recipe, []),
    recommendation: recommend(rows, profiles, { ...recipe.rules, incorrect: [] }),
    sections: [],
    steps: [],
    rawFiles: cells.map((c) => c.file),
  };
}

/** A measured cell with its raw lines read back. */
interface RawCell extends CellResult {
  readonly step: string;
  /** Relative to the run folder. */
  readonly file: string;
  readonly records: readonly RequestRecord[];
  readonly fromRaw: Summary;
  readonly load: LoadOptions;
  readonly props: Readonly<Record<string, unknown>> | undefined;
}

function matrixCells(folder: string, step: Step, record: StepRecord): RawCell[] {
  const keys = new Set((record.result as MatrixResult).cells);
  return cellsOfFolder(matrixFolder(folder, step), step.id, folder).filter((c) => keys.has(c.key));
}

/** `base`: what file names are relative to. */
function cellsOfFolder(own: string, step: string, base: string): RawCell[] {
  return readCells(path.join(own, "cells.jsonl"))
    .map((cell) => {
      const lines = fs.readFileSync(path.join(own, cell.raw), "utf8").trimEnd().split("\n").map((line) => JSON.parse(line) as { kind: string });
      const records = lines.filter((l): l is RequestRecord => l.kind === "request");
      const head = lines[0] as unknown as { load: LoadOptions; props?: Record<string, unknown> };
      const limits = parseLimits(head.load.goodput);
      return { ...cell, step, file: path.relative(base, path.join(own, cell.raw)), records, fromRaw: summarize(records, limits === undefined ? {} : { limits }), load: head.load, props: head.props };
    });
}

function matrixRows(recipe: Recipe, step: Step, cells: readonly RawCell[]): BenchRow[] {
  const own = cells.filter((c) => c.step === step.id);
  return (step.matrix?.profiles ?? []).flatMap((profile) =>
    (step.matrix?.concurrency ?? []).flatMap((concurrency) => {
      const group = own.filter((c) => c.server === profile && c.concurrency === concurrency);
      return group.length === 0 ? [] : [benchRow(recipe, step.id, profile, concurrency, group, own)];
    }),
  );
}

function benchRow(recipe: Recipe, matrix: string, profile: string, concurrency: number, group: readonly RawCell[], all: readonly RawCell[]): BenchRow {
  const total = (pick: (s: Summary) => number | undefined): number => group.reduce((sum, c) => sum + (pick(c.fromRaw) ?? 0), 0);
  const middle = (pick: (s: Summary) => number | undefined): number | null => {
    const values = group.map((c) => pick(c.fromRaw)).filter((v) => v !== undefined);
    return values.length === 0 ? null : median(values);
  };
  const throughput = estimate(group.map((c) => c.fromRaw.outputTokPerSec));
  const ttft = group.flatMap((c) => c.records.filter((r) => r.failure === undefined).map(ttftMs)).filter((v) => v !== undefined);
  return {
    matrix,
    profile: recipe.profiles[profile]?.name ?? profile,
    concurrency,
    rounds: group.length,
    maxTokens: Math.max(...group.map((c) => c.load.maxTokens)),
    ratePerSec: group[0]?.load.rate ?? null,
    isStreamed: group.every((c) => c.load.stream),
    requests: total((s) => s.requests),
    failed: total((s) => s.failed),
    promptTokens: total((s) => s.promptTokens),
    cachedTokens: group.every((c) => c.fromRaw.cachedTokens === undefined) ? null : total((s) => s.cachedTokens),
    outputTokens: total((s) => s.outputTokens),
    tokPerSec: throughput.median,
    tokPerSecInterval: group.length > 1 ? { low: throughput.low, high: throughput.high } : null,
    ttftP50Ms: middle((s) => s.ttftMs?.p50),
    ttftP95Ms: middle((s) => s.ttftMs?.p95),
    tpotP50Ms: middle((s) => s.tpotMs?.p50),
    e2elP50Ms: middle((s) => s.e2elMs?.p50),
    tokensPerChunk: middle((s) => s.tokensPerChunk?.mean),
    goodput: goodputOf(group),
    queueP50Ms: middle((s) => s.queueMs?.p50),
    prefillP50Ms: middle((s) => s.prefillMs?.p50),
    ...draftFields(group),
    loadedMiB: largest(group.map(loadedBytes)),
    ratio: ratioOf(recipe, profile, group, all),
    ttftQuantilesMs: ttft.length === 0 ? [] : Array.from({ length: 21 }, (_, i) => Math.round(quantile(ttft, i / 20) * 100) / 100),
    phases: phasesOf(group.map((c) => c.counters)),
    clientLagP99Ms: Math.max(...group.map((c) => c.client.lagP99Ms)),
    clientCores: Math.max(...group.map((c) => c.client.cpuShare)),
    warnings: [...new Set(group.flatMap((c) => c.warnings))],
    raw: group.map((c) => c.file),
  };
}

function goodputOf(group: readonly RawCell[]): BenchRow["goodput"] {
  const told = group.flatMap((c) => c.fromRaw.goodput ?? []);
  const [first] = told;
  if (first === undefined) return null;
  return { limits: describeLimits(first.limits), good: told.reduce((sum, g) => sum + g.good, 0), requestsPerSec: median(told.map((g) => g.requestsPerSec)) };
}

function draftFields(group: readonly RawCell[]): Pick<BenchRow, "nDrafts" | "nDrafted" | "nAccepted" | "acceptance" | "acceptanceByPosition" | "acceptedAt" | "reachedAt" | "meanAcceptanceLength"> {
  const told = group.flatMap((c) => (c.drafts === undefined ? [] : [c.drafts]));
  if (told.length === 0) return { nDrafts: null, nDrafted: null, nAccepted: null, acceptance: null, acceptanceByPosition: [], acceptedAt: [], reachedAt: [], meanAcceptanceLength: null };
  const add = (pick: (d: DraftCounts) => number): number => told.reduce((sum, d) => sum + pick(d), 0);
  const addLists = (pick: (d: DraftCounts) => readonly number[]): number[] => Array.from({ length: Math.max(...told.map((d) => pick(d).length)) }, (_, i) => add((d) => pick(d)[i] ?? 0));
  const nDrafts = told.every((d) => d.nDrafts === undefined) ? undefined : add((d) => d.nDrafts ?? 0);
  const counts: DraftCounts = { nDrafts, nDrafted: add((d) => d.nDrafted), nAccepted: add((d) => d.nAccepted), acceptedAt: addLists((d) => d.acceptedAt), reachedAt: addLists((d) => d.reachedAt), source: told[0]?.source ?? "metrics" };
  const acceptance = acceptanceOf(counts);
  const nPositions = draftedPositions(counts);
  return {
    nDrafts: nDrafts ?? null,
    nDrafted: counts.nDrafted,
    nAccepted: counts.nAccepted,
    acceptance: acceptance.rate ?? null,
    acceptanceByPosition: acceptance.byPosition.slice(0, nPositions).map((r) => Math.round(r * 10_000) / 10_000),
    acceptedAt: counts.acceptedAt.slice(0, nPositions),
    reachedAt: counts.acceptedAt.slice(0, nPositions).map((_, i) => counts.reachedAt[i] ?? (i === 0 ? (nDrafts ?? 0) : (counts.acceptedAt[i - 1] ?? 0))),
    meanAcceptanceLength: acceptance.meanLength ?? null,
  };
}

/** Where the server's time went: `phase_seconds_total{phase}` with calls, or the two it tells at least. */
function phasesOf(counters: readonly Readonly<Record<string, number>>[]): Phase[] {
  const sum = (key: string): number => counters.reduce((total, c) => total + (c[key] ?? 0), 0);
  const names = [...new Set(counters.flatMap((c) => Object.keys(c).flatMap((key) => /^phase_seconds_total\{phase="(.+)"\}$/.exec(key)?.[1] ?? [])))];
  const round = (ms: number): number => Math.round(ms * 1000) / 1000;
  if (names.length > 0) return names.map((name) => ({ name, calls: sum(`phase_calls_total{phase="${name}"}`), ms: round(1000 * sum(`phase_seconds_total{phase="${name}"}`)) }));
  return [["steps", "steps_total", "tokens_predicted_seconds_total"]].flatMap(([name = "", calls = "", seconds = ""]) => (sum(calls) > 0 ? [{ name, calls: sum(calls), ms: round(1000 * sum(seconds)) }] : []));
}

/** A server may count more positions than it drafts. */
function draftedPositions({ nDrafts, nDrafted, acceptedAt }: DraftCounts): number {
  if (nDrafted === 0) return 0;
  return Math.max(acceptedAt.findLastIndex((n) => n > 0) + 1, Math.ceil(nDrafted / Math.max(1, nDrafts ?? 1) - 1e-9), 1);
}

function ratioOf(recipe: Recipe, profile: string, group: readonly RawCell[], all: readonly RawCell[]): BenchRow["ratio"] {
  const baseline = recipe.profiles[profile]?.baseline;
  if (baseline === undefined || baseline === profile) return null;
  const pairs = group.flatMap((c) => {
    const other = all.find((o) => o.server === baseline && o.concurrency === c.concurrency && o.round === c.round);
    return other === undefined || other.fromRaw.outputTokPerSec === 0 ? [] : [c.fromRaw.outputTokPerSec / other.fromRaw.outputTokPerSec];
  });
  if (pairs.length === 0) return null;
  const { median: middle, low, high } = estimate(pairs);
  return { baseline: recipe.profiles[baseline]?.name ?? baseline, median: middle, low, high };
}

const loadedBytes = (c: CellResult): number | undefined => c.memory?.deviceBytes ?? c.memory?.hostBytes;

function largest(bytes: readonly (number | undefined)[]): number | null {
  const known = bytes.filter((b) => b !== undefined);
  return known.length === 0 ? null : Math.round((Math.max(...known) / MIB) * 10) / 10;
}

function profileInfos(recipe: Recipe, cells: readonly RawCell[], rows: readonly BenchRow[], estimates: Readonly<Record<string, number>>): ProfileInfo[] {
  return Object.entries(recipe.profiles).flatMap(([id, p]) => {
    const own = cells.filter((c) => c.server === id);
    if (own.length === 0 && !rows.some((r) => r.profile === p.name)) return [];
    return [
      {
        name: p.name,
        note: p.note ?? null,
        // The port is another one each time.
        commandLine: own[0]?.commandLine?.replace(/ --port \d+/, "") ?? p.url ?? null,
        estimatedMiB: largest([estimates[id]]),
        addedMiB: largest(own.map((c) => (typeof c.props?.["loaded_bytes"] === "number" && c.props["loaded_bytes"] > 0 ? c.props["loaded_bytes"] : undefined))),
        loadedMiB: largest(own.map(loadedBytes)),
        isSynthetic: p.synthetic,
        baseline: p.baseline === undefined ? null : (recipe.profiles[p.baseline]?.name ?? null),
      },
    ];
  });
}

function checksOf(recipe: Recipe, record: StepRecord): CheckRow[] {
  return (record.result as MatrixResult).checks.map((c) => ({ ...c, profile: recipe.profiles[c.profile]?.name ?? c.profile }));
}

function artifactsOf(recipe: Recipe, record: StepRecord): Artifact[] {
  const sizes = quantizedSizes(record.result);
  return record.outputs.flatMap((o) => {
    const declared = recipe.artifacts[o.id];
    if (declared === undefined || !declared.show) return [];
    return [{ label: declared.label, file: path.basename(o.file), role: declared.role, type: declared.type ?? null, sizeBytes: o.sizeBytes, sha256: o.sha256, ...sizes, made: record.command, note: declared.note ?? null }];
  });
}

/** Source and result as `quantize --json` gives them. */
function quantizedSizes(result: unknown): Pick<Artifact, "bitsPerWeight" | "sourceMiB" | "sourceBitsPerWeight" | "resultMiB"> {
  const { source, result: made } = (result ?? {}) as { source?: { sizeBytes?: number; bpw?: number }; result?: { sizeBytes?: number; bpw?: number } };
  const mib = (bytes: number | undefined): number | null => (bytes === undefined ? null : bytes / MIB);
  return { bitsPerWeight: made?.bpw ?? null, sourceMiB: mib(source?.sizeBytes), sourceBitsPerWeight: source?.bpw ?? null, resultMiB: mib(made?.sizeBytes) };
}

function conditionsOf(recipe: Recipe, records: readonly StepRecord[], cells: readonly RawCell[]): Conditions {
  const local = cells.at(-1)?.conditions;
  const props = cells.find((c) => c.props !== undefined)?.props ?? {};
  const text = (...names: string[]): string | null => names.map((n) => props[n]).find((v): v is string => typeof v === "string") ?? null;
  return {
    date: records.map((r) => r.date).sort().at(-1) ?? local?.date ?? "",
    version: local?.foretoken ?? packageVersion,
    commit: local?.commit ?? null,
    machine: local?.machine ?? "",
    node: local?.node ?? process.versions.node,
    library: text("library", "build_info"),
    device: text("device"),
    seed: recipe.seed,
  };
}
