/** ReportData -> blocks: the sections of the recipe in order, each with the parts it asks for. Parts without data are left out. */
import type { Block, Tile } from "./block.ts";
import { formatFixed } from "../util/format.ts";
import type { Table } from "../util/table.ts";
import type { BenchRow, ProfileInfo, ReportData, Section, SectionPart } from "./model.ts";
import { acceptancePlot, costPlot, draftLengthPlot, ratioPlot, throughputPlots, trainingPlot, ttftPlot } from "./plots.ts";
import * as tables from "./tables.ts";

export const defaultSections: readonly Section[] = [
  section("Throughput", ["plot:throughput", "throughput", "plot:ratio", "ratios", "plot:ttft", "latency"]),
  section("Draft acceptance", ["plot:acceptance", "acceptance", "drafts"]),
  section("Artifacts and memory", ["artifacts", "memory"]),
  section("Correctness", ["correctness", "determinism"]),
  section("Training", ["plot:training", "training"]),
  section("Row shapes and costs", ["shapes", "plot:costs", "costs"]),
  section("Everything measured", ["extra", "results", "phases"]),
  section("How it was run", ["conditions", "profiles", "steps", "raw"]),
];

function section(title: string, show: readonly SectionPart[]): Section {
  return { title, text: null, show, matrix: null, profiles: null, concurrency: null, artifacts: null };
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

/** What a part may look at. */
interface PartContext {
  readonly data: ReportData;
  readonly section: Section;
  readonly id: string;
  readonly profiles: readonly ProfileInfo[];
  /** One block or several for each matrix, under a heading of its own when there are several. */
  readonly perMatrix: (make: (rows: BenchRow[], key: string) => Block | readonly Block[] | undefined) => Block[];
}

function partBlocks(part: SectionPart, data: ReportData, section: Section, id: string): Block[] {
  const rows = data.rows.filter((r) => (section.matrix === null || r.matrix === section.matrix) && isShown(section, r.profile) && (section.concurrency === null || section.concurrency.includes(r.concurrency)));
  const matrices = [...new Set(rows.map((r) => r.matrix))];
  const isOne = matrices.length === 1;
  return parts[part]({
    data,
    section,
    id,
    profiles: data.profiles.filter((p) => isShown(section, p.name)),
    perMatrix: (make) =>
      matrices.flatMap((m, i): Block[] => {
        const blocks = [make(rows.filter((r) => r.matrix === m), isOne ? id : `${id}-${i + 1}`) ?? []].flat();
        return isOne || blocks.length === 0 ? blocks : [{ kind: "heading", level: 3, text: matrixTitle(data, m) }, ...blocks];
      }),
  });
}

const matrixTitle = (data: ReportData, matrix: string): string => data.steps.find((s) => s.id === matrix)?.title ?? matrix;
const isShown = (section: Section, profile: string): boolean => section.profiles === null || section.profiles.includes(profile);
const hasDrafts = (rows: readonly BenchRow[]): boolean => rows.some((r) => (r.nDrafted ?? 0) > 0);

const parts: Readonly<Record<SectionPart, (context: PartContext) => Block[]>> = {
  recommendation: ({ data }) => recommendationBlocks(data),
  artifacts: ({ data, section }) => some(data.artifacts.filter((a) => section.artifacts?.includes(a.file) ?? true), (artifacts) => table(tables.artifactTable(artifacts))),
  metadata: ({ data }) => some(data.metadata, (files) => table(tables.metadataTable(files), "Read back from the files' headers.")),
  profiles: ({ profiles }) => some(profiles, (own) => table(tables.profileTable(own))),
  memory: ({ profiles }) =>
    some(profiles.filter((p) => p.loadedMiB !== null), (own) =>
      table(tables.memoryTable(own), "Estimated: weights, caches, states and compute buffers of target and head, computed before loading. Added: what loading added, by the server's own measure. In all: device memory in use, or without a device all memory of the server's processes, Node included."),
    ),
  correctness: ({ data, section }) => some(data.correctness.filter((c) => isShown(section, c.profile)), (checks) => table(tables.correctnessTable(checks))),
  throughput: ({ perMatrix }) => perMatrix((rows) => ({ ...table(tables.throughputTable(rows), loadCaption(rows)), best: bestThroughput(rows) })),
  ratios: ({ perMatrix }) => perMatrix((rows) => (rows.some((r) => r.ratio !== null) ? table(tables.ratioTable(rows), ratioCaption(rows)) : undefined)),
  results: ({ perMatrix }) => perMatrix((rows) => table(tables.resultsTable(rows), loadCaption(rows))),
  latency: ({ perMatrix }) => perMatrix((rows) => table(tables.latencyTable(rows), "Medians over rounds. TTFT, TPOT and E2EL at the client, queue and prefill as the server tells them. Client lag: how late the client's own event loop was, in the worst round.")),
  drafts: ({ perMatrix }) => perMatrix((rows) => (hasDrafts(rows) ? table(tables.draftTable(rows), "Unconditional: accepted at a position / all drafts. Conditional: / drafts that reached it. Mean length: 1 + accepted / drafts.") : undefined)),
  phases: ({ perMatrix }) => perMatrix((rows) => (rows.some((r) => r.phases.length > 0) ? { kind: "details", summary: "Where the server's time went", blocks: [table(tables.phaseTable(rows), "Counted by the server over the measured part.")] } : undefined)),
  acceptance: ({ perMatrix }) => perMatrix((rows) => (hasDrafts(rows) ? table(tables.acceptanceTable(rows)) : undefined)),
  shapes: ({ data }) => some(data.shapes, (shapes) => table(tables.shapeTable(shapes), "A decode call may be split into several forwards; both are counted by the library.")),
  determinism: ({ data }) =>
    data.determinism.flatMap((d): Block[] => [{ kind: "heading", level: 3, text: d.title }, table(tables.determinismTable(d), `Reference: ${d.reference}; ${d.maxTokens} new tokens at most.`), { kind: "text", text: d.verdict }]),
  training: ({ data }) => data.training.flatMap((run): Block[] => [{ kind: "heading", level: 3, text: run.name }, { kind: "text", text: run.detail }, ...some(run.snapshots, () => table(tables.trainingTable(run)))]),
  costs: ({ data }) => data.costs.map((c) => table(tables.costTable(c), `${c.title}, ms per call.`)),
  extra: ({ data }) => data.extra.flatMap((e): Block[] => [{ kind: "heading", level: 3, text: e.title }, ...(e.text === null ? [] : [{ kind: "text", text: e.text } as const]), table(tables.extraTable(e))]),
  "plot:throughput": ({ perMatrix }) => perMatrix((rows, key) => throughputPlots(`throughput-${key}`, rows)),
  "plot:ratio": ({ perMatrix }) => perMatrix((rows, key) => ratioPlot(`ratio-${key}`, rows)),
  "plot:draft-length": ({ perMatrix, profiles }) => perMatrix((rows, key) => draftLengthPlot(`draft-length-${key}`, rows, profiles)),
  "plot:acceptance": ({ perMatrix }) => perMatrix((rows, key) => acceptancePlot(`acceptance-${key}`, rows)),
  "plot:ttft": ({ perMatrix }) => perMatrix((rows, key) => ttftPlot(`ttft-${key}`, rows)),
  "plot:costs": ({ data, id }) => data.costs.map((c, i) => costPlot(`costs-${id}-${i + 1}`, c)),
  "plot:training": ({ data, id }) => data.training.flatMap((run, i) => trainingPlot(`training-${id}-${i + 1}`, run) ?? []),
  conditions: ({ data }) => [table(conditionTable(data)), ...warningBlocks(data)],
  steps: ({ data }) => some(data.steps, (steps) => ({ kind: "details", summary: "Steps and their commands", blocks: [table(tables.stepTable(steps))] })),
  raw: ({ data }) => some(data.rawFiles, (files) => ({ kind: "details", summary: `Raw files (${files.length})`, blocks: [{ kind: "list", items: files.map((f) => `\`${f}\``) }] })),
};

const table = (t: Table, caption?: string): Extract<Block, { kind: "table" }> => ({ kind: "table", table: t, ...(caption === undefined ? {} : { caption }) });

function some<T>(items: readonly T[], make: (items: readonly T[]) => Block): Block[] {
  return items.length === 0 ? [] : [make(items)];
}

function ratioCaption(rows: readonly BenchRow[]): string {
  const [only, ...others] = tables.baselinesOf(rows);
  return `Ratio: throughput over ${only === undefined || others.length > 0 ? "the baseline's" : `that of ${only}`} in the same round, median over rounds; brackets are 95% intervals. One round has none.`;
}

function loadCaption(rows: readonly BenchRow[]): string {
  const one = rows[0];
  if (one === undefined) return "";
  const failed = rows.reduce((sum, r) => sum + r.failed, 0);
  const tokens = [...new Set(rows.map((r) => r.maxTokens))].sort((a, b) => a - b).join(" or ");
  const rounds = Math.max(...rows.map((r) => r.rounds));
  const loop = one.ratePerSec === null ? "Closed loop" : `Open loop, ${one.ratePerSec} requests/s on average (latencies from the intended time)`;
  const limits = rows.find((r) => r.goodput !== null)?.goodput?.limits;
  return `${loop}, ${one.isStreamed ? "streamed" : "not streamed"}, at most ${tokens} new tokens, ${rounds} round${rounds === 1 ? "" : "s"}; ${failed} failed request${failed === 1 ? "" : "s"}. tok/s is output tokens (from usage) over wall time, all streams together; TTFT is at the client.${limits === undefined ? "" : ` Goodput: requests within ${limits}.`}`;
}

/** Marks the best throughput of each concurrency. */
function bestThroughput(rows: readonly BenchRow[]): boolean[][] {
  const concurrencies = tables.concurrenciesOf(rows);
  const best = concurrencies.map((c) => Math.max(...rows.filter((r) => r.concurrency === c).map((r) => r.tokPerSec)));
  return [...new Set(rows.map((r) => r.profile))].map((profile) => [false, ...concurrencies.flatMap((c, i) => [tables.rowAt(rows, profile, c)?.tokPerSec === best[i], false])]);
}

/** What the measurements themselves found fault with. */
function warningBlocks({ rows }: ReportData): Block[] {
  const items = rows.flatMap((r) => r.warnings.map((w) => `${r.profile} at c${r.concurrency}: ${w}`));
  return items.length === 0 ? [] : [{ kind: "details", summary: `Warnings (${items.length})`, blocks: [{ kind: "list", items }] }];
}

function warningNote({ rows }: ReportData): Block[] {
  const nWarned = rows.filter((r) => r.warnings.length > 0).length;
  return nWarned === 0 ? [] : [{ kind: "text", text: `${nWarned} of ${rows.length} measurements carry a warning (a late client, too few requests, a prompt cache); they are listed with the conditions.` }];
}

function recommendationBlocks(data: ReportData): Block[] {
  const { recommendation } = data;
  if (recommendation === null) return [];
  const tiles: Tile[] = recommendation.byConcurrency.map((choice) => ({
    label: `c${choice.concurrency}${new Set(recommendation.byConcurrency.map((c) => c.matrix)).size > 1 ? `, ${matrixTitle(data, choice.matrix)}` : ""}`,
    value: `${formatFixed(choice.tokPerSec, 0)} tok/s`,
    note: [choice.gain === null ? choice.profile : `${choice.profile}: ${tables.ratioText({ median: choice.gain.ratio, low: choice.gain.low, high: choice.gain.high })}`, ...(choice.loadedMiB === null ? [] : [`${tables.whole(choice.loadedMiB)} MiB loaded`])].join("; "),
  }));
  const blocks: Block[] = [{ kind: "verdict", sentences: recommendation.sentences }, { kind: "tiles", tiles }];
  const items = [...recommendation.roles.map((r) => `**${r.profile}**: ${r.role}. ${r.reason}`), ...recommendation.rejected.map((r) => `**${r.profile}**: rejected. ${r.reason}`)];
  blocks.push(...warningNote(data));
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
