import { describe, expect, test } from "vitest";
import { recommend } from "../../src/lab/rules.ts";
import { changesBetween, compareBlocks } from "../../src/report/compare.ts";
import { markdownDocument } from "../../src/report/markdown.ts";
import type { BenchRow, ProfileInfo, ReportData } from "../../src/report/model.ts";
import { draftLengthPlot } from "../../src/report/plots.ts";
import * as tables from "../../src/report/tables.ts";
import { renderReport } from "../../src/report/write.ts";
import { renderMarkdown, type Table } from "../../src/util/table.ts";
import { bootstrapReport, names, row, trainedReport } from "./seeds.ts";

/** Cells of the row that begins with this text. */
function cells(table: Table, first: string): readonly string[] {
  return table.rows.find((r) => r[0] === first) ?? [];
}

describe("every table of the two reports comes out of data", () => {
  test("throughput with p95 TTFT per concurrency", () => {
    const table = tables.throughputTable(bootstrapReport.rows);
    expect(table.columns.map((c) => c.title)).toEqual(["Profile", "c1 tok/s", "c1 p95 TTFT ms", "c4 tok/s", "c4 p95 TTFT ms", "c8 tok/s", "c8 p95 TTFT ms", "c16 tok/s", "c16 p95 TTFT ms"]);
    expect(renderMarkdown(table).split("\n")[2]).toBe("| IQ4_XS target only | 234.1 | 75.1 | 297.7 | 159.7 | 411.5 | 330.2 | 476.0 | 541.5 |");
  });

  test("draft acceptance", () => {
    expect(tables.acceptanceTable(bootstrapReport.rows).rows).toEqual([
      ["IQ4_XS + BF16 MTP draft, n_max=3", "195", "41,577", "0.47%"],
      ["IQ4_XS + BF16 MTP draft, n_max=1", "151", "14,060", "1.07%"],
      ["IQ4_XS + IQ4_XS MTP draft, n_max=1", "172", "14,215", "1.21%"],
    ]);
    // Two concurrencies together, as the trained report sums up its low-concurrency run.
    const of = (concurrency: number, accepted: number, by: readonly number[]): BenchRow => row("low", "p", concurrency, 1, { drafted: 200, accepted, by });
    expect(tables.acceptanceTable([of(1, 90, [0.6, 0.3]), of(4, 110, [0.7, 0.4])]).rows).toEqual([["p", "200", "400", "50.00%", "(0.650, 0.350)"]]);
  });

  test("loaded memory and artifacts", () => {
    expect(cells(tables.memoryTable(bootstrapReport.profiles), "IQ4_XS target only")).toEqual(["IQ4_XS target only", "n/a", "n/a", "19,806", "19.34"]);
    const artifacts = tables.artifactTable(bootstrapReport.artifacts);
    expect(artifacts.rows[0]?.slice(0, 4)).toEqual(["Target", "IQ4_XS", "18,939,311,680", "17.64 GiB"]);
    expect(artifacts.rows[2]?.slice(4, 6)).toEqual(["4.89", "3,552.05 MiB / 16.00 BPW to 1,085.37 MiB"]);
  });

  test("low-concurrency matrix with ratios", () => {
    const table = tables.ratioTable(trainedReport.rows.filter((r) => r.matrix === "trained head" && [names.t, names.perHead, names.sequential].includes(r.profile)));
    expect(cells(table, names.perHead)).toEqual([names.perHead, "235.99", "0.98x", "245.28", "0.57x", "247.82", "0.53x", "288.67", "0.48x"]);
    expect(cells(table, names.sequential).filter((_, i) => i > 0 && i % 2 === 0)).toEqual(["0.80x", "0.38x", "0.36x", "0.28x"]);
    expect(cells(table, names.t)[2]).toBe("n/a");
  });

  test("results with memory, detailed draft statistics", () => {
    const main = trainedReport.rows.filter((r) => r.matrix === "trained head" && r.concurrency === 16);
    expect(cells(tables.resultsTable(main), names.q6n3)).toEqual([names.q6n3, "16", "22,979", "128", "0", "15,572", "270.19", "845.3", "n/a", "58.54%; mean length 2.74; (0.708, 0.644, 0.390)"]);
    expect(cells(tables.draftTable(main), names.q6n2).slice(3, 9)).toEqual(["13,265", "8,917", "67.22%", "2.34", "(0.719, 0.621)", "(0.719, 0.864)"]);
  });

  test("row shapes and determinism, with intervals", () => {
    expect(tables.shapeTable(trainedReport.shapes).rows[1]).toEqual(["`draft-mtp n_max=2`, default verifier", "16", "512", "218.37", "17", "n/a", "1,050", "631", "`16 seq x 3 rows`"]);
    const [probe] = trainedReport.determinism;
    expect(probe).toBeDefined();
    if (probe === undefined) return;
    expect(tables.determinismTable(probe).rows[0]?.slice(2, 4)).toEqual(["3/3", "100.0% [43.9%, 100.0%]"]);
    expect(tables.determinismTable(probe).rows[1]?.slice(2, 4)).toEqual(["1/3", "33.3% [6.1%, 79.2%]"]);
  });

  test("external and integrated graft comparisons", () => {
    const external = tables.resultsTable(trainedReport.rows.filter((r) => r.matrix === "external graft"));
    expect(external.rows[1]?.slice(3)).toEqual(["128", "0", "15,782", "257.74", "868.5", "n/a", "90.67%; mean length 1.91"]);
    const integrated = tables.ratioTable(trainedReport.rows.filter((r) => r.matrix === "integrated graft" && r.concurrency === 1));
    expect(cells(integrated, names.graft)).toEqual([names.graft, "313.80", "1.30x"]);
    const both = tables.ratioTable(trainedReport.rows.filter((r) => r.concurrency === 1));
    expect(cells(both, names.graft).at(-1)).toBe(names.graftTarget);
  });
});

describe("renderReport", () => {
  const data: ReportData = {
    ...trainedReport,
    costs: [{ title: "Cost of a call", cells: [1, 2].flatMap((sequences) => [1, 3].map((rows) => ({ context: "target", sequences, rows, ms: sequences * rows * 2.5 }))) }],
    training: [{ name: "h2r9", detail: "Chain-corrected.", points: [0, 100].map((step) => ({ step, loss: 1, acceptance: [0.5 + step / 1000, 0.3] })), snapshots: [{ label: "step 100", promptSet: "chat", acceptanceByPosition: [0.6], tokensPerRound: 1.6, tokPerSec: 10, verdict: "promoted" }] }],
    extra: [{ title: "More", text: null, columns: ["a", "b"], rows: [["x", 1.5], ["y", null]] }],
    recommendation: recommend(trainedReport.rows, trainedReport.profiles, { minRatio: 1.02, minRatioSingleRun: 1.1, maxFailed: 0, minAcceptance: 0.3, development: {}, refinements: {}, incorrect: [] }),
    rawFiles: ["raw/a.jsonl"],
    steps: [{ id: "s", title: "Serve", command: "foretoken serve -m x", seconds: 3, log: "logs/s.log" }],
  };

  test("the same data gives the same bytes", () => {
    const withInterval: ReportData = { ...data, rows: data.rows.map((r) => ({ ...r, tokPerSecInterval: { low: r.tokPerSec * 0.9, high: r.tokPerSec * 1.1 } })) };
    const [a, b] = [renderReport(withInterval), renderReport(structuredClone(withInterval))];
    expect(a.html === b.html).toBe(true);
    expect(a.markdown).toBe(b.markdown);
    const ids = [...a.html.matchAll(/ id="([^"]+)"/g)].map((m) => m[1]);
    expect(new Set(ids).size).toBe(ids.length);
    expect([...a.plots]).toEqual([...b.plots]);
  });

  test("the page stands alone, holds every figure in two widths, and every table", () => {
    const { html, markdown, plots } = renderReport(data);
    expect(html).not.toMatch(/<script|<link|src=|href="http|@import|url\(/);
    expect(plots.size).toBeGreaterThanOrEqual(7);
    expect(html.match(/<figure>/g)).toHaveLength(plots.size);
    expect(html.match(/<svg xmlns/g)?.length).toBe(2 * plots.size);
    const nTables = markdown.match(/^\|[-:|]+\|$/gm)?.length ?? 0;
    expect(html.match(/<table>/g)).toHaveLength(nTables);
    for (const name of plots.keys()) expect(markdown).toContain(`plots/${name}`);
    expect(html).toContain("prefers-color-scheme:dark");
    expect(html).toContain("@media print");
  });

  test("text from data cannot become markup", () => {
    const { html } = renderReport({ ...data, title: "<img src=x onerror=1>", about: "a & b <script>alert(1)</script>" });
    expect(html).not.toContain("<img");
    expect(html).not.toContain("<script");
    expect(html).toContain("a &amp; b");
  });

  test("parts without data are left out, headings too", () => {
    const { markdown } = renderReport({ ...bootstrapReport, correctness: [], artifacts: [] });
    expect(markdown).not.toContain("## Training");
    expect(markdown).not.toContain("## Correctness");
    expect(markdown).toContain("## Throughput");
  });

  test("no number is made up: nothing measured is n/a, never NaN or undefined", () => {
    const { html, markdown } = renderReport(data);
    for (const text of [html, markdown]) expect(text).not.toMatch(/NaN|undefined|Infinity|\[object/);
  });
});

describe("comparing two runs", () => {
  const withIntervals = (data: ReportData, factor: number): ReportData => ({ ...data, rows: data.rows.map((r) => ({ ...r, tokPerSec: r.tokPerSec * factor, tokPerSecInterval: { low: r.tokPerSec * factor * 0.95, high: r.tokPerSec * factor * 1.05 } })) });

  test("a change counts only when the intervals do not touch", () => {
    const before = withIntervals(bootstrapReport, 1);
    expect(new Set(changesBetween(before, withIntervals(bootstrapReport, 1.2)).map((c) => c.verdict))).toEqual(new Set(["faster"]));
    expect(new Set(changesBetween(before, withIntervals(bootstrapReport, 0.8)).map((c) => c.verdict))).toEqual(new Set(["slower"]));
    expect(new Set(changesBetween(before, withIntervals(bootstrapReport, 1.05)).map((c) => c.verdict))).toEqual(new Set(["unclear"]));
    expect(new Set(changesBetween(bootstrapReport, withIntervals(bootstrapReport, 2)).map((c) => c.verdict))).toEqual(new Set(["unclear"]));
  });

  test("says what is in one only, which files differ, and when the machines do", () => {
    const other: ReportData = { ...trainedReport, artifacts: bootstrapReport.artifacts.map((a) => ({ ...a, sha256: "ff" })), rows: bootstrapReport.rows.slice(1), conditions: { ...trainedReport.conditions, machine: "another" } };
    const text = markdownDocument("t", compareBlocks(bootstrapReport, other));
    expect(text).toContain("Only in A: IQ4_XS target only at c1");
    expect(text).toContain("| ornith-1.0-35b-IQ4_XS.gguf |  | ff | differs |");
    expect(text).toContain("The machines differ");
    expect(markdownDocument("t", compareBlocks(bootstrapReport, trainedReport))).toContain("have no measurement in common");
  });
});

test("a measurement's warnings are on the page, and counted beside the recommendation", () => {
  const recommendation = recommend(bootstrapReport.rows, bootstrapReport.profiles, { minRatio: 1.02, minRatioSingleRun: 1.1, maxFailed: 0, minAcceptance: 0.3, development: {}, refinements: {}, incorrect: [] });
  const rows = bootstrapReport.rows.map((r, i) => (i === 0 ? { ...r, warnings: ["the client's event loop was 61 ms late"], clientLagP99Ms: 61, clientCores: 0.4, queueP50Ms: 3.25 } : r));
  const { markdown } = renderReport({ ...bootstrapReport, rows, recommendation });
  expect(markdown).toContain(`1 of ${rows.length} measurements carry a warning`);
  expect(markdown).toContain("- IQ4_XS target only at c1: the client's event loop was 61 ms late");
  const latency = tables.latencyTable(rows);
  expect(latency.columns.map((c) => c.title)).toEqual(["Profile", "c", "TTFT p95 ms", "queue p50 ms (server)", "client lag p99 ms", "client cores"]);
  expect(latency.rows[0]).toEqual(["IQ4_XS target only", "1", "75.1", "3.3", "61.0", "0.40"]);
});

test("draft lengths of one head are a line per concurrency, from 1 at no drafts; without two lengths there is no figure", () => {
  const profiles = ["n1", "n2", "gate"].map((name, i): ProfileInfo => ({ name, note: null, commandLine: `foretoken serve --spec-draft-n-max ${i + 1} --spec-gate ${name === "gate" ? "adaptive" : "fixed"}`, estimatedMiB: null, addedMiB: null, loadedMiB: null, isSynthetic: false, baseline: "plain" }));
  const at = (name: string, tps: number): BenchRow => row("m", name, 4, tps, { baseline: ["plain", 100] });
  const rows = [row("m", "plain", 4, 100), at("n1", 120), at("n2", 130), at("gate", 125)];
  const figure = draftLengthPlot("f", rows, profiles);
  expect(figure?.wide).toContain(">c4<");
  expect(figure?.wide.match(/<circle/g)).toHaveLength(3);
  expect(draftLengthPlot("f", rows, profiles.slice(1))).toBeUndefined();
});
