/** Every table of the two reports this project started from, from data. Pure; "n/a" where nothing was measured. */
import { MIB, formatBytes, formatFixed, formatInteger, formatPercent } from "../util/format.ts";
import type { Column, Table } from "../util/table.ts";
import type { Artifact, BenchRow, CheckRow, CostTable, Determinism, ExtraTable, FileMetadata, ProfileInfo, ShapeRow, StepInfo, TrainingRun } from "./model.ts";

const left = (title: string): Column => ({ title });
const right = (title: string): Column => ({ title, align: "right" });
export const na = "n/a";

export const fixed = (value: number | null | undefined, decimals: number): string => (value === null || value === undefined || Number.isNaN(value) ? na : formatFixed(value, decimals));
export const whole = (value: number | null | undefined): string => (value === null || value === undefined ? na : formatInteger(Math.round(value)));
export const percent = (ratio: number | null | undefined, decimals = 2): string => (ratio === null || ratio === undefined ? na : formatPercent(ratio, decimals));
export const positions = (rates: readonly number[]): string => (rates.length === 0 ? na : `(${rates.map((r) => formatFixed(r, 3)).join(", ")})`);

const profilesOf = (rows: readonly BenchRow[]): string[] => [...new Set(rows.map((r) => r.profile))];
export const concurrenciesOf = (rows: readonly BenchRow[]): number[] => [...new Set(rows.map((r) => r.concurrency))].sort((a, b) => a - b);
export const rowAt = (rows: readonly BenchRow[], profile: string, concurrency: number): BenchRow | undefined => rows.find((r) => r.profile === profile && r.concurrency === concurrency);

/** A row per profile, throughput and p95 TTFT per concurrency: the bootstrap report's "Throughput". */
export function throughputTable(rows: readonly BenchRow[]): Table {
  const concurrencies = concurrenciesOf(rows);
  return {
    columns: [left("Profile"), ...concurrencies.flatMap((c) => [right(`c${c} tok/s`), right(`c${c} p95 TTFT ms`)])],
    rows: profilesOf(rows).map((profile) => [profile, ...concurrencies.flatMap((c) => [fixed(rowAt(rows, profile, c)?.tokPerSec, 1), fixed(rowAt(rows, profile, c)?.ttftP95Ms, 1)])]),
  };
}

/** The trained report's "Low-concurrency matrix": throughput and ratio to the baseline per concurrency. */
export function ratioTable(rows: readonly BenchRow[]): Table {
  const concurrencies = concurrenciesOf(rows);
  // A single baseline is named below the table.
  const hasSeveral = baselinesOf(rows).length > 1;
  return {
    columns: [left("Profile"), ...concurrencies.flatMap((c) => [right(`c${c} tok/s`), right(`c${c} ratio`)]), ...(hasSeveral ? [left("baseline")] : [])],
    rows: profilesOf(rows).map((profile) => {
      const own = concurrencies.map((c) => rowAt(rows, profile, c));
      const baseline = own.find((r) => r !== undefined && r.ratio !== null)?.ratio?.baseline;
      return [profile, ...own.flatMap((r) => [fixed(r?.tokPerSec, 2), ratioCell(r?.ratio)]), ...(hasSeveral ? [baseline ?? na] : [])];
    }),
  };
}

export const baselinesOf = (rows: readonly BenchRow[]): string[] => [...new Set(rows.flatMap((r) => r.ratio?.baseline ?? []))];

/** The interval on a line of its own: it is longer than the number. */
function ratioCell(ratio: BenchRow["ratio"] | undefined): string {
  return ratio === null || ratio === undefined ? na : ratioText(ratio).replace(" [", "\n[");
}

export function ratioText(ratio: { readonly median: number; readonly low: number; readonly high: number }): string {
  return Number.isFinite(ratio.low) && Number.isFinite(ratio.high) ? `${formatFixed(ratio.median, 2)}x [${formatFixed(ratio.low, 2)}, ${formatFixed(ratio.high, 2)}]` : `${formatFixed(ratio.median, 2)}x`;
}

/** One line per measurement, with memory and acceptance: the trained report's "Results". */
export function resultsTable(rows: readonly BenchRow[]): Table {
  const hasLimits = rows.some((r) => r.goodput !== null);
  return {
    columns: [left("Profile"), right("c"), right("Loaded MiB"), right("Requests"), right("Failed"), right("Output tokens"), right("tok/s"), right("p95 TTFT ms"), right("p50 TPOT ms"), ...(hasLimits ? [right("Goodput, requests/s")] : []), left("Draft acceptance")],
    rows: rows.map((r) => [r.profile, String(r.concurrency), whole(r.loadedMiB), whole(r.requests), whole(r.failed), whole(r.outputTokens), fixed(r.tokPerSec, 2), fixed(r.ttftP95Ms, 1), fixed(r.tpotP50Ms, 2), ...(hasLimits ? [goodputText(r)] : []), acceptanceText(r)]),
  };
}

/** Where the waiting time goes: medians per measurement, the server's own parts beside the client's. */
export function latencyTable(rows: readonly BenchRow[]): Table {
  return withoutEmptyColumns({
    columns: [left("Profile"), right("c"), right("TTFT p50 ms"), right("TTFT p95 ms"), right("queue p50 ms (server)"), right("prefill p50 ms (server)"), right("TPOT p50 ms"), right("E2EL p50 ms"), right("tokens per chunk"), right("cached prompt tokens"), right("client lag p99 ms"), right("client cores")],
    rows: rows.map((r) => [r.profile, String(r.concurrency), fixed(r.ttftP50Ms, 1), fixed(r.ttftP95Ms, 1), fixed(r.queueP50Ms, 1), fixed(r.prefillP50Ms, 1), fixed(r.tpotP50Ms, 2), fixed(r.e2elP50Ms, 0), fixed(r.tokensPerChunk, 2), r.cachedTokens === null ? na : `${whole(r.cachedTokens)}/${whole(r.promptTokens)}`, fixed(r.clientLagP99Ms, 1), fixed(r.clientCores, 2)]),
  });
}

function goodputText({ goodput, requests }: BenchRow): string {
  return goodput === null ? na : `${formatFixed(goodput.requestsPerSec, 2)} (${goodput.good}/${requests})`;
}

export function acceptanceText(r: BenchRow): string {
  if (r.acceptance === null) return na;
  return `${percent(r.acceptance)}${r.meanAcceptanceLength === null ? "" : `; mean length ${formatFixed(r.meanAcceptanceLength, 2)}`}${r.acceptanceByPosition.length === 0 ? "" : `; ${positions(r.acceptanceByPosition)}`}`;
}

/** Drafted and accepted per profile over all its concurrencies: the bootstrap report's "Draft Acceptance". */
export function acceptanceTable(rows: readonly BenchRow[]): Table {
  const drafting = profilesOf(rows).filter((p) => rows.some((r) => r.profile === p && (r.nDrafted ?? 0) > 0));
  return withoutEmptyColumns({
    columns: [left("Profile"), right("Accepted draft tokens"), right("Generated draft tokens"), right("Acceptance"), left("By position, of all drafts")],
    rows: drafting.map((profile) => {
      const own = rows.filter((r) => r.profile === profile);
      const [accepted, drafted] = [sum(own, (r) => r.nAccepted), sum(own, (r) => r.nDrafted)];
      return [profile, whole(accepted), whole(drafted), percent(accepted / drafted), positions(pooledPositions(own))];
    }),
  });
}

/** Unconditional, all measurements together; none when one of them does not tell its drafts. */
function pooledPositions(rows: readonly BenchRow[]): number[] {
  if (rows.some((r) => r.nDrafts === null && (r.nDrafted ?? 0) > 0)) return [];
  const nDrafts = sum(rows, (r) => r.nDrafts);
  return Array.from({ length: nDrafts === 0 ? 0 : Math.max(...rows.map((r) => r.acceptedAt.length)) }, (_, i) => sum(rows, (r) => r.acceptedAt[i] ?? 0) / nDrafts);
}

/** Per measurement: counts and positions: the trained report's "Detailed draft statistics". */
export function draftTable(rows: readonly BenchRow[]): Table {
  const drafting = rows.filter((r) => (r.nDrafted ?? 0) > 0);
  return {
    columns: [left("Profile"), right("c"), right("Drafts"), right("Drafted tokens"), right("Accepted tokens"), right("Acceptance"), right("Mean length"), left("Unconditional, by position"), left("Conditional, by position")],
    rows: drafting.map((r) => [
      r.profile,
      String(r.concurrency),
      whole(r.nDrafts),
      whole(r.nDrafted),
      whole(r.nAccepted),
      percent(r.acceptance),
      fixed(r.meanAcceptanceLength, 2),
      positions(r.acceptanceByPosition),
      positions(r.acceptedAt.map((n, i) => n / Math.max(1, r.reachedAt[i] ?? 0))),
    ]),
  };
}

/** Calls and time of the server's phases: the `#calls(b,p,g,a)` and `dur(b,p,g,a)` of the trained report. */
export function phaseTable(rows: readonly BenchRow[]): Table {
  return {
    columns: [left("Profile"), right("c"), left("Phase"), right("Calls"), right("ms"), right("ms per call")],
    rows: rows.flatMap((r) => r.phases.map((p) => [r.profile, String(r.concurrency), p.name, formatInteger(p.calls), formatFixed(p.ms, 1), p.calls === 0 ? na : formatFixed(p.ms / p.calls, 3)])),
  };
}

export function artifactTable(artifacts: readonly Artifact[]): Table {
  return {
    columns: [left("Artifact"), left("Type"), right("Bytes"), right("Size"), right("Bits per weight"), left("Made from"), left("SHA-256")],
    rows: artifacts.map((a) => [
      `${a.label}${a.note === null ? "" : ` (${a.note})`}`,
      a.type ?? na,
      formatInteger(a.sizeBytes),
      formatBytes(a.sizeBytes),
      fixed(a.bitsPerWeight, 2),
      a.sourceMiB === null ? na : `${formatFixed(a.sourceMiB, 2)} MiB${a.sourceBitsPerWeight === null ? "" : ` / ${formatFixed(a.sourceBitsPerWeight, 2)} BPW`}${a.resultMiB === null ? "" : ` to ${formatFixed(a.resultMiB, 2)} MiB`}`,
      a.sha256.slice(0, 12),
    ]),
  };
}

/** The trained report's "Metadata verification". */
export function metadataTable(files: readonly FileMetadata[]): Table {
  return {
    columns: [left("File"), left("Architecture"), left("File type"), right("block_count"), right("nextn_predict_layers"), right("Tensors"), right("Bits per weight"), left("Head's tensors"), left("Head")],
    rows: files.map((f) => [f.file, f.architecture, f.fileType, whole(f.blockCount), whole(f.nextnPredictLayers), whole(f.nTensors), fixed(f.bitsPerWeight, 2), f.headTypes, f.head]),
  };
}

/** Memory per profile: the bootstrap report's "Loaded VRAM", with what was expected before. */
export function memoryTable(profiles: readonly ProfileInfo[]): Table {
  return {
    columns: [left("Profile"), right("Estimated before load, MiB"), right("Added by loading, MiB"), right("Loaded in all, MiB"), right("Loaded in all, GiB")],
    rows: profiles.map((p) => [p.name, whole(p.estimatedMiB), whole(p.addedMiB), whole(p.loadedMiB), p.loadedMiB === null ? na : formatFixed(p.loadedMiB / 1024, 2)]),
  };
}

export function profileTable(profiles: readonly ProfileInfo[]): Table {
  return {
    columns: [left("Profile"), left("What it is"), left("Command")],
    rows: profiles.map((p) => [p.name, `${p.note ?? ""}${p.isSynthetic ? " (synthetic: not model text)" : ""}`, p.commandLine === null ? na : `\`${p.commandLine}\``]),
  };
}

export function correctnessTable(checks: readonly CheckRow[]): Table {
  return { columns: [left("Profile"), left("Check"), left("Result"), left("Detail")], rows: checks.map((c) => [c.profile, c.name, c.ok ? "passed" : "**failed**", c.detail]) };
}

export function determinismTable({ rows }: Determinism): Table {
  return {
    columns: [left("Mode"), left("Compared with"), right("Equal outputs"), right("Rate, 95% interval"), right("First fork (median)"), right("Margin at the fork, median / largest"), left("Note")],
    rows: rows.map((r) => [
      r.mode,
      r.reference,
      `${r.exact}/${r.prompts}`,
      `${percent(r.prompts === 0 ? null : r.exact / r.prompts, 1)} [${formatPercent(r.exactInterval.low, 1)}, ${formatPercent(r.exactInterval.high, 1)}]`,
      r.firstForkMin === null ? na : `${r.firstForkMin} (${fixed(r.firstForkMedian, 0)})`,
      r.marginMedian === null ? na : `${fixed(r.marginMedian, 3)} / ${fixed(r.marginMax, 3)}`,
      r.note ?? "",
    ]),
  };
}

/** The trained report's "row-shape trace", with forwards beside calls: a call is not a forward. */
export function shapeTable(shapes: readonly ShapeRow[]): Table {
  return {
    columns: [left("Profile"), right("Requests"), right("Output tokens"), right("tok/s"), right("Target decode calls"), right("Forwards"), right("Target rows"), right("Logit rows"), left("Steady-state shape")],
    rows: shapes.map((s) => [s.profile, whole(s.requests), whole(s.outputTokens), fixed(s.tokPerSec, 2), whole(s.decodeCalls), whole(s.forwards), whole(s.rows), whole(s.logitRows), s.shape]),
  };
}

export function costTable({ cells }: CostTable): Table {
  const contexts = [...new Set(cells.map((c) => `${c.context} ${c.rows} row${c.rows === 1 ? "" : "s"}`))];
  const sequences = [...new Set(cells.map((c) => c.sequences))].sort((a, b) => a - b);
  return {
    columns: [right("Sequences"), ...contexts.map(right)],
    rows: sequences.map((s) => [String(s), ...contexts.map((name) => fixed(cells.find((c) => c.sequences === s && `${c.context} ${c.rows} row${c.rows === 1 ? "" : "s"}` === name)?.ms, 2))]),
  };
}

export function trainingTable({ snapshots }: TrainingRun): Table {
  const table: Table = {
    columns: [left("Head"), left("Prompts"), right("Tokens per round"), left("Acceptance by position"), right("tok/s"), left("Verdict")],
    rows: snapshots.map((s) => [s.label, s.promptSet, fixed(s.tokensPerRound, 2), positions(s.acceptanceByPosition), fixed(s.tokPerSec, 1), s.verdict ?? ""]),
  };
  return withoutEmptyColumns(table);
}

/** Drops columns that say nothing in any row. */
function withoutEmptyColumns(table: Table): Table {
  const keep = table.columns.map((_, i) => table.rows.some((r) => r[i] !== "" && r[i] !== na));
  return { columns: table.columns.filter((_, i) => keep[i]), rows: table.rows.map((r) => r.filter((_, i) => keep[i])) };
}

export function extraTable(extra: ExtraTable): Table {
  const isNumeric = extra.columns.map((_, i) => extra.rows.every((r) => r[i] === null || typeof r[i] === "number"));
  return {
    columns: extra.columns.map((title, i) => (isNumeric[i] === true ? right(title) : left(title))),
    rows: extra.rows.map((r) => r.map((v) => (v === null ? na : typeof v === "number" ? (Number.isInteger(v) ? formatInteger(v) : formatFixed(v, Math.abs(v) < 10 ? 3 : 2)) : v))),
  };
}

export function stepTable(steps: readonly StepInfo[]): Table {
  return { columns: [left("Step"), right("Seconds"), left("Command"), left("Log")], rows: steps.map((s) => [s.title, formatFixed(s.seconds, 1), `\`${s.command}\``, s.log ?? ""]) };
}

export const mib = (bytes: number): number => bytes / MIB;

function sum(rows: readonly BenchRow[], pick: (r: BenchRow) => number | null): number {
  return rows.reduce((total, r) => total + (pick(r) ?? 0), 0);
}
