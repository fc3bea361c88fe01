/** ReportData -> blocks: the sections of the recipe in order, each with the parts it asks for. Parts without data are left out. */
import type { Block, Tile } from "./block.ts";
import { formatFixed } from "../util/format.ts";
import type { Table } from "../util/table.ts";
import type { BenchRow, ReportData, Section, SectionPart } from "./model.ts";
import { acceptancePlot, costPlot, ratioPlot, throughputPlots, trainingPlot, ttftPlot } from "./plots.ts";
import * as tables from "./tables.ts";

export const defaultSections: readonly Section[] = [
  section("Throughput", ["plot:throughput", "throughput", "plot:ratio", "ratios", "plot:ttft"]),
  section("Draft acceptance", ["plot:acceptance", "acceptance", "drafts", "phases"]),
  section("Artifacts and memory", ["artifacts", "memory"]),
  section("Correctness", ["correctness", "determinism"]),
  section("Training", ["plot:training", "training"]),
  section("Row shapes and costs", ["shapes", "plot:costs", "costs"]),
  section("Everything measured", ["extra", "results"]),
  section("How it was run", ["conditions", "profiles", "steps", "raw"]),
];

function section(title: string, show: readonly SectionPart[]): Section {
  return { title, text: null, show, matrix: null, profiles: null, concurrency: null };
}

export function reportBlocks(data: ReportData): Block[] {
  const sections = data.sections.length > 0 ? data.sections : defaultSections;
  const showsVerdict = sections.some((s) => s.show.includes("recommendation"));
  const blocks: Block[] = showsVerdict ? [] : recommendationBlocks(data);
  for (const [i, s] of sections.entries()) {
    const parts = s.show.flatMap((part, j) => partBlocks(part, data, s, `${i + 1}-${j + 1}`));
    if (parts.length === 0) continue;
    blocks.push({ kind: "heading", level: 2, text: s.title });
    if (s.text !== null) blocks.push({ kind: "text", text: s.text });
    blocks.push(...parts);
  }
  return blocks;
}

function rowsOf(data: ReportData, s: Section): BenchRow[] {
  return data.rows.filter((r) => (s.matrix === null || r.matrix === s.matrix) && (s.profiles === null || s.profiles.includes(r.profile)) && (s.concurrency === null || s.concurrency.includes(r.concurrency)));
}

function partBlocks(part: SectionPart, data: ReportData, s: Section, id: string): Block[] {
  const perMatrix = (make: (rows: BenchRow[], key: string) => Block | readonly Block[] | undefined): Block[] => {
    const rows = rowsOf(data, s);
    const matrices = [...new Set(rows.map((r) => r.matrix))];
    return matrices.flatMap((m, i) => {
      const blocks = [make(rows.filter((r) => r.matrix === m), matrices.length > 1 ? `${id}-${i + 1}` : id) ?? []].flat();
      return matrices.length > 1 && blocks.length > 0 ? [{ kind: "heading", level: 3, text: m } as const, ...blocks] : blocks;
    });
  };
  const profiles = data.profiles.filter((p) => s.profiles === null || s.profiles.includes(p.name));
  switch (part) {
    case "recommendation":
      return recommendationBlocks(data);
    case "artifacts":
      return some(data.artifacts, () => table(tables.artifactTable(data.artifacts)));
    case "profiles":
      return some(profiles, () => table(tables.profileTable(profiles)));
    case "memory":
      return some(profiles.filter((p) => p.loadedMiB !== null), (own) => table(tables.memoryTable(own), "Estimated: weights, caches, states and compute buffers of target and head, computed before loading. Added: what loading added, by the server's own measure. In all: device memory in use, or without a device all memory of the server's processes, Node included."));
    case "correctness":
      return some(data.correctness.filter((c) => s.profiles === null || s.profiles.includes(c.profile)), (checks) => table(tables.correctnessTable(checks)));
    case "throughput":
      return perMatrix((rows) => ({ ...table(tables.throughputTable(rows), loadCaption(rows)), best: bestThroughput(rows) }));
    case "ratios":
      return perMatrix((rows) => (rows.some((r) => r.ratio !== null) ? table(tables.ratioTable(rows), "Ratio: throughput over the baseline's of the same round, median over rounds; brackets are 95% intervals. One round has none.") : undefined));
    case "results":
      return perMatrix((rows) => table(tables.resultsTable(rows), loadCaption(rows)));
    case "drafts":
      return perMatrix((rows) => (rows.some((r) => (r.nDrafted ?? 0) > 0) ? table(tables.draftTable(rows), "Unconditional: accepted at a position / all drafts. Conditional: / drafts that reached it. Mean length: 1 + accepted / drafts.") : undefined));
    case "phases":
      return perMatrix((rows) => (rows.some((r) => r.phases.length > 0) ? { kind: "details", summary: "Where the server's time went", blocks: [table(tables.phaseTable(rows), "Counted by the server over the measured part.")] } : undefined));
    case "acceptance":
      return perMatrix((rows) => (rows.some((r) => (r.nDrafted ?? 0) > 0) ? table(tables.acceptanceTable(rows)) : undefined));
    case "shapes":
      return some(data.shapes, () => table(tables.shapeTable(data.shapes), "A decode call may be split into several forwards; both are counted by the library."));
    case "determinism":
      return data.determinism.flatMap((d): Block[] => [{ kind: "heading", level: 3, text: d.title }, table(tables.determinismTable(d), `Reference: ${d.reference}; ${d.maxTokens} new tokens at most.`), { kind: "text", text: d.verdict }]);
    case "training":
      return data.training.flatMap((run): Block[] => [{ kind: "heading", level: 3, text: run.name }, { kind: "text", text: run.detail }, ...some(run.snapshots, () => table(tables.trainingTable(run)))]);
    case "costs":
      return data.costs.map((c) => table(tables.costTable(c), `${c.title}, ms per call.`));
    case "extra":
      return data.extra.flatMap((e): Block[] => [{ kind: "heading", level: 3, text: e.title }, ...(e.text === null ? [] : [{ kind: "text", text: e.text } as const]), table(tables.extraTable(e))]);
    case "plot:throughput":
      return perMatrix((rows, key) => throughputPlots(`throughput-${key}`, rows));
    case "plot:ratio":
      return perMatrix((rows, key) => ratioPlot(`ratio-${key}`, rows));
    case "plot:acceptance":
      return perMatrix((rows, key) => acceptancePlot(`acceptance-${key}`, rows));
    case "plot:ttft":
      return perMatrix((rows, key) => ttftPlot(`ttft-${key}`, rows));
    case "plot:costs":
      return data.costs.map((c, i) => costPlot(`costs-${id}-${i + 1}`, c));
    case "plot:training":
      return data.training.flatMap((run, i) => trainingPlot(`training-${id}-${i + 1}`, run) ?? []);
    case "conditions":
      return [table(conditionTable(data))];
    case "steps":
      return some(data.steps, () => ({ kind: "details", summary: "Steps and their commands", blocks: [table(tables.stepTable(data.steps))] }));
    case "raw":
      return some(data.rawFiles, (files) => ({ kind: "details", summary: `Raw files (${files.length})`, blocks: [{ kind: "list", items: files.map((f) => `\`${f}\``) }] }));
    default:
      return part satisfies never;
  }
}

const table = (t: Table, caption?: string): Extract<Block, { kind: "table" }> => ({ kind: "table", table: t, ...(caption === undefined ? {} : { caption }) });

function some<T>(items: readonly T[], make: (items: readonly T[]) => Block): Block[] {
  return items.length === 0 ? [] : [make(items)];
}

function loadCaption(rows: readonly BenchRow[]): string {
  const one = rows[0];
  if (one === undefined) return "";
  const failed = rows.reduce((sum, r) => sum + r.failed, 0);
  const tokens = [...new Set(rows.map((r) => r.maxTokens))].sort((a, b) => a - b).join(" or ");
  const rounds = Math.max(...rows.map((r) => r.rounds));
  return `Closed loop, streamed, at most ${tokens} new tokens, ${rounds} round${rounds === 1 ? "" : "s"}; ${failed} failed request${failed === 1 ? "" : "s"}. tok/s is output tokens (from usage) over wall time, all streams together; TTFT is at the client.`;
}

/** Marks the best throughput of each concurrency. */
function bestThroughput(rows: readonly BenchRow[]): boolean[][] {
  const concurrencies = tables.concurrenciesOf(rows);
  const best = concurrencies.map((c) => Math.max(...rows.filter((r) => r.concurrency === c).map((r) => r.tokPerSec)));
  return [...new Set(rows.map((r) => r.profile))].map((profile) => [false, ...concurrencies.flatMap((c, i) => [tables.rowAt(rows, profile, c)?.tokPerSec === best[i], false])]);
}

function recommendationBlocks(data: ReportData): Block[] {
  const { recommendation } = data;
  if (recommendation === null) return [];
  const tiles: Tile[] = recommendation.byConcurrency.map((choice) => ({
    label: `c${choice.concurrency}${new Set(recommendation.byConcurrency.map((c) => c.matrix)).size > 1 ? `, ${choice.matrix}` : ""}`,
    value: `${formatFixed(choice.tokPerSec, 0)} tok/s`,
    note: [choice.gain === null ? choice.profile : `${choice.profile}: ${tables.ratioText({ median: choice.gain.ratio, low: choice.gain.low, high: choice.gain.high })}`, ...(choice.loadedMiB === null ? [] : [`${tables.whole(choice.loadedMiB)} MiB loaded`])].join("; "),
  }));
  const blocks: Block[] = [{ kind: "verdict", sentences: recommendation.sentences }, { kind: "tiles", tiles }];
  const items = [...recommendation.roles.map((r) => `**${r.profile}**: ${r.role}. ${r.reason}`), ...recommendation.rejected.map((r) => `**${r.profile}**: rejected. ${r.reason}`)];
  if (items.length > 0) blocks.push({ kind: "details", summary: "The other profiles, and why not", blocks: [{ kind: "list", items }] });
  return blocks;
}

function conditionTable({ conditions: c }: ReportData): Table {
  const rows: [string, string | number | null][] = [
    ["Measured", c.date],
    ["Foretoken", `${c.version}${c.commit === null ? "" : ` (${c.commit.slice(0, 12)}${c.commit.endsWith("-dirty") ? ", with changes" : ""})`}`],
    ["Machine", c.machine],
    ["Device", c.device],
    ["llama.cpp", c.library],
    ["Node", c.node],
    ["Seed", c.seed],
  ];
  return { columns: [{ title: "Condition" }, { title: "Value" }], rows: rows.map(([name, value]) => [name, value === null ? tables.na : String(value)]) };
}
