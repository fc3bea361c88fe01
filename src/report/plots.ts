/** The figures of a report, each in a wide and a phone-wide drawing. Pure functions of the rows. */
import * as Plot from "@observablehq/plot";
import { formatFixed } from "../util/format.ts";
import type { Block } from "./block.ts";
import type { BenchRow, CostTable, ProfileInfo, TrainingRun } from "./model.ts";
import { baselineColor, drawFigure, narrowSize, plain, seriesColor, wideSize, type LegendEntry, type Size } from "./svg.ts";
import { concurrenciesOf } from "./tables.ts";

type Figure = Extract<Block, { kind: "figure" }>;

function figure(id: string, title: string, caption: string, draw: (size: Size) => string): Figure {
  return { kind: "figure", id, title, caption, wide: draw(wideSize), narrow: draw(narrowSize) };
}

/** Series in the order of the rows; baselines in ink, the others in the palette's order. */
function legendOf(rows: readonly BenchRow[]): LegendEntry[] {
  const baselines = new Set(rows.flatMap((r) => (r.ratio === null ? [] : [r.ratio.baseline])));
  let n = 0;
  return [...new Set(rows.map((r) => r.profile))].map((label) => ({ label, color: baselines.has(label) ? baselineColor : seriesColor(n++), isDashed: baselines.has(label) }));
}

const colorOf = (legend: readonly LegendEntry[]): ((name: string) => string) => (name) => legend.find((e) => e.label === name)?.color ?? baselineColor;

const axis = { label: null, tickSize: 0, labelArrow: "none" } as const;

/** Lines over concurrency, with the interval of each point where there is one; series stand a little aside of each other. */
function overConcurrency(title: string, rows: readonly BenchRow[], legend: readonly LegendEntry[], size: Size, yLabel: string, value: (r: BenchRow) => number | null, interval: (r: BenchRow) => { low: number; high: number } | null, one?: number): string {
  const points = rows.flatMap((r) => {
    const y = value(r);
    const range = interval(r);
    return y === null ? [] : [{ profile: r.profile, x: `c${r.concurrency}`, y, low: range?.low ?? y, high: range?.high ?? y }];
  });
  // Wide intervals run out of the picture; the table has their ends.
  const most = Math.max(one ?? 0, ...points.map((p) => p.y)) * 1.15;
  const aside = (label: string): number => (legend.findIndex((e) => e.label === label) - (legend.length - 1) / 2) * Math.min(size.isNarrow ? 4 : 6, (size.isNarrow ? 36 : 60) / legend.length);
  return drawFigure(title, legend, size, {
    height: size.isNarrow ? 260 : 320,
    marginLeft: 48,
    marginRight: 14,
    x: { ...axis, type: "point", domain: concurrenciesOf(rows).map((c) => `c${c}`), padding: 0.25 },
    y: { ...axis, label: yLabel, grid: false, domain: [0, most], ticks: 6 },
    marks: [
      Plot.gridY({ ticks: 6, stroke: "var(--rule)", strokeOpacity: 1 }),
      ...(one === undefined ? [] : [Plot.ruleY([one], { stroke: "var(--ink)", strokeWidth: 1.5, strokeDasharray: "5 3" })]),
      ...legend.flatMap((e) => {
        const own = points.filter((p) => p.profile === e.label);
        const dx = aside(e.label);
        return [
          Plot.ruleX(own.filter((p) => p.high > p.low), { x: "x", y1: "low", y2: "high", stroke: e.color, strokeOpacity: 0.4, strokeWidth: size.isNarrow ? 2 : 3, dx, clip: true }),
          Plot.line(own, { x: "x", y: "y", stroke: e.color, strokeWidth: 2.2, dx, ...(e.isDashed ? { strokeDasharray: "6 3" } : {}) }),
          Plot.dot(own, { x: "x", y: "y", r: 3.6, fill: e.color, stroke: "var(--paper)", strokeWidth: 1, dx }),
        ];
      }),
    ],
  });
}

/** Lines for profiles measured at several concurrencies; bars at the highest one when it has others too, or when there is but one. */
export function throughputPlots(id: string, rows: readonly BenchRow[]): Figure[] {
  const isLine = (profile: string): boolean => new Set(rows.filter((r) => r.profile === profile).map((r) => r.concurrency)).size > 1;
  const lines = rows.filter((r) => isLine(r.profile));
  const figures: Figure[] = [];
  if (lines.length > 0) {
    const legend = legendOf(lines);
    const title = "Output tokens per second by concurrency";
    const caption = "Output tokens per second of all streams together, by streams in flight. Bands are 95% intervals over rounds, where there were rounds.";
    figures.push(figure(id, title, caption, (size) => overConcurrency(title, lines, legend, size, "tok/s", (r) => r.tokPerSec, (r) => r.tokPerSecInterval)));
  }
  const top = concurrenciesOf(rows).at(-1);
  if (lines.length < rows.length) figures.push(throughputBars(`${id}-bars`, rows.filter((r) => r.concurrency === top)));
  return figures;
}

function throughputBars(id: string, rows: readonly BenchRow[]): Figure {
  const baselines = new Set(rows.flatMap((r) => (r.ratio === null ? [] : [r.ratio.baseline])));
  const points = rows.map((r) => ({ profile: plain(r.profile), fill: baselines.has(r.profile) ? baselineColor : seriesColor(0), x: r.tokPerSec, low: r.tokPerSecInterval?.low ?? r.tokPerSec, high: r.tokPerSecInterval?.high ?? r.tokPerSec }));
  const title = `Output tokens per second at c${rows[0]?.concurrency ?? 0}`;
  const most = Math.max(...points.map((p) => p.x)) * 1.15;
  return figure(id, title, "All streams together. Lines are 95% intervals over rounds, where there were rounds.", (size) =>
    drawFigure(title, [], size, {
      height: 36 + 38 * points.length,
      marginLeft: 8,
      marginRight: 44,
      x: { ...axis, domain: [0, most], ticks: size.isNarrow ? 4 : 8 },
      y: { ...axis, domain: points.map((p) => p.profile), padding: 0.3, axis: null },
      marks: [
        Plot.gridX({ ticks: size.isNarrow ? 4 : 8, stroke: "var(--rule)", strokeOpacity: 1 }),
        Plot.ruleY(points, { y: "profile", x1: 0, x2: "x", stroke: "fill", strokeWidth: 10, strokeOpacity: 0.75, dy: 8 }),
        Plot.ruleY(points.filter((p) => p.high > p.low), { y: "profile", x1: "low", x2: "high", stroke: "var(--ink)", strokeWidth: 1.2, dy: 8, clip: true }),
        Plot.text(points, { y: "profile", text: "profile", frameAnchor: "left", textAnchor: "start", dy: -9, dx: 2, fill: "var(--ink)", stroke: "var(--paper)", strokeWidth: 3, ...(size.isNarrow ? { lineWidth: 27, textOverflow: "ellipsis" as const } : {}) }),
        Plot.text(points, { y: "profile", x: "x", text: (p: { x: number }) => formatFixed(p.x, 1), textAnchor: "start", dx: 6, dy: 8, fill: "var(--soft)", stroke: "var(--paper)", strokeWidth: 3 }),
      ],
    }),
  );
}

/** Undefined when no row has a ratio. */
export function ratioPlot(id: string, rows: readonly BenchRow[]): Figure | undefined {
  const compared = rows.filter((r) => r.ratio !== null);
  if (compared.length === 0) return undefined;
  const legend = legendOf(rows).filter((e) => compared.some((r) => r.profile === e.label));
  const title = "Throughput over the baseline's";
  const caption = "Above the dashed line a profile is faster than its baseline, below it is slower. Ratios are paired: same round, same prompts, same concurrency.";
  return figure(id, title, caption, (size) =>
    overConcurrency(title, compared, legend, size, "ratio", (r) => r.ratio?.median ?? null, (r) => (r.ratio !== null && Number.isFinite(r.ratio.low) ? { low: r.ratio.low, high: r.ratio.high } : null), 1),
  );
}

/** Fixed draft lengths of one head beside each other: ratio over n_max, a line per concurrency. Undefined with fewer than two lengths. */
export function draftLengthPlot(id: string, rows: readonly BenchRow[], profiles: readonly ProfileInfo[]): Figure | undefined {
  const lengths = new Map(profiles.flatMap((p) => (fixedLength(p) === undefined ? [] : [[p.name, fixedLength(p) as number] as const])));
  const drafting = rows.flatMap((r) => (r.ratio !== null && lengths.has(r.profile) ? [{ series: `c${r.concurrency}`, x: lengths.get(r.profile) as number, y: r.ratio.median, low: r.ratio.low, high: r.ratio.high }] : []));
  if (new Set(drafting.map((p) => p.x)).size < 2) return undefined;
  const legend = concurrenciesOf(rows).map((c, i): LegendEntry => ({ label: `c${c}`, color: seriesColor(i), isDashed: false }));
  const points = [...legend.map((e) => ({ series: e.label, x: 0, y: 1, low: NaN, high: NaN })), ...drafting];
  const title = "Throughput over the baseline's, by draft length";
  const caption = "A fixed draft length (n_max) across, a line per concurrency; 0 is the baseline itself. Bars are 95% intervals.";
  return figure(id, title, caption, (size) => {
    const aside = (label: string): number => (legend.findIndex((e) => e.label === label) - (legend.length - 1) / 2) * (size.isNarrow ? 4 : 7);
    return drawFigure(title, legend, size, {
      height: size.isNarrow ? 250 : 300,
      marginLeft: 48,
      marginBottom: 40,
      x: { ...axis, type: "point", label: "n_max", labelAnchor: "center", domain: [...new Set(points.map((p) => p.x))].sort((a, b) => a - b), padding: 0.3 },
      y: { ...axis, label: "ratio", domain: [0, Math.max(1, ...points.map((p) => p.y)) * 1.15], ticks: 6 },
      marks: [
        Plot.gridY({ ticks: 6, stroke: "var(--rule)", strokeOpacity: 1 }),
        Plot.ruleY([1], { stroke: "var(--ink)", strokeWidth: 1.5, strokeDasharray: "5 3" }),
        ...legend.flatMap((e) => {
          const own = points.filter((p) => p.series === e.label);
          const dx = aside(e.label);
          return [
            Plot.ruleX(own.filter((p) => p.high > p.low), { x: "x", y1: "low", y2: "high", stroke: e.color, strokeOpacity: 0.4, strokeWidth: 3, dx, clip: true }),
            Plot.line(own, { x: "x", y: "y", stroke: e.color, strokeWidth: 2.2, dx, sort: "x" }),
            Plot.dot(own, { x: "x", y: "y", r: 3.6, fill: e.color, stroke: "var(--paper)", strokeWidth: 1, dx }),
          ];
        }),
      ],
    });
  });
}

/** n_max of a profile that always drafts so much; undefined for the gate and for another program's server. */
function fixedLength({ commandLine }: ProfileInfo): number | undefined {
  const length = /--spec-draft-n-max (\d+)/.exec(commandLine ?? "")?.[1];
  return length === undefined || !(commandLine ?? "").includes("--spec-gate fixed") ? undefined : Number(length);
}

/** Unconditional acceptance by position, all concurrencies of a profile together. Undefined when there is but one position. */
export function acceptancePlot(id: string, rows: readonly BenchRow[]): Figure | undefined {
  const drafting = rows.filter((r) => r.acceptedAt.length > 0 && (r.nDrafts ?? 0) > 0);
  if (drafting.length === 0) return undefined;
  const legend = legendOf(rows).filter((e) => drafting.some((r) => r.profile === e.label));
  const points = legend.flatMap(({ label }) => pooled(drafting.filter((r) => r.profile === label)).map((y, i) => ({ profile: label, x: String(i + 1), y })));
  const color = colorOf(legend);
  if (new Set(points.map((p) => p.x)).size < 2) return undefined;
  const top = Math.max(...points.map((p) => p.y));
  const title = "Acceptance by draft position";
  const caption = "Share of drafts that are accepted up to this position, among drafts that are so long. A later position can never be above an earlier one.";
  return figure(id, title, caption, (size) =>
    drawFigure(title, legend, size, {
      height: size.isNarrow ? 230 : 260,
      marginLeft: 48,
      marginRight: 14,
      marginBottom: 40,
      x: { ...axis, type: "point", label: "position in the draft", domain: [...new Set(points.map((p) => p.x))].sort(), padding: 0.4, labelAnchor: "center" },
      y: { ...axis, domain: [0, top > 0.4 ? 1 : top * 1.25], tickFormat: top > 0.1 ? ".0%" : ".1%", ticks: 5 },
      marks: [
        Plot.gridY({ ticks: 5, stroke: "var(--rule)", strokeOpacity: 1 }),
        ...legend.map((e) => Plot.line(points.filter((p) => p.profile === e.label), { x: "x", y: "y", stroke: e.color, strokeWidth: 2.2 })),
        Plot.dot(points, { x: "x", y: "y", r: 4, fill: (p: { profile: string }) => color(p.profile), stroke: "var(--paper)", strokeWidth: 1 }),
      ],
    }),
  );
}

/** Chance that a draft is accepted up to each position: the product of the conditional rates, so drafts of other lengths do not dilute it. */
function pooled(rows: readonly BenchRow[]): number[] {
  const n = Math.max(...rows.map((r) => r.acceptedAt.length));
  const sum = (pick: (r: BenchRow) => number | undefined): number => rows.reduce((total, r) => total + (pick(r) ?? 0), 0);
  let chance = 1;
  return Array.from({ length: n }, (_, i) => (chance *= sum((r) => r.acceptedAt[i]) / Math.max(1, sum((r) => r.reachedAt[i]))));
}

/** Time to first token at the highest concurrency: from the 5th to the 95th percentile, half of the requests in the bar. */
export function ttftPlot(id: string, rows: readonly BenchRow[]): Figure | undefined {
  const top = concurrenciesOf(rows.filter((r) => r.ttftQuantilesMs.length === 21)).at(-1);
  const at = rows.filter((r) => r.concurrency === top && r.ttftQuantilesMs.length === 21);
  if (at.length === 0) return undefined;
  const legend = legendOf(rows);
  const color = colorOf(legend);
  const points = at.map((r) => {
    const q = r.ttftQuantilesMs as readonly number[] & { [i: number]: number };
    return { profile: plain(r.profile), color: color(r.profile), low: q[1] as number, q1: q[5] as number, mid: q[10] as number, q3: q[15] as number, high: q[19] as number };
  });
  const stroke = "color";
  const title = `Time to first token at c${top}`;
  const caption = "Per profile: line from the 5th to the 95th percentile of the requests, bar over the middle half, dot at the median. Milliseconds at the client.";
  return figure(id, title, caption, (size) =>
    drawFigure(title, [], size, {
      height: 40 + 44 * points.length,
      marginLeft: 8,
      marginRight: 40,
      x: { ...axis, domain: [0, Math.max(...points.map((p) => p.high)) * 1.02], ticks: size.isNarrow ? 4 : 8 },
      y: { ...axis, domain: points.map((p) => p.profile), padding: 0.3, axis: null },
      marks: [
        Plot.gridX({ ticks: size.isNarrow ? 4 : 8, stroke: "var(--rule)", strokeOpacity: 1 }),
        Plot.ruleY(points, { y: "profile", x1: "low", x2: "high", stroke, strokeWidth: 1.5, dy: 8 }),
        Plot.ruleY(points, { y: "profile", x1: "q1", x2: "q3", stroke, strokeWidth: 9, strokeOpacity: 0.5, dy: 8 }),
        Plot.dot(points, { y: "profile", x: "mid", fill: stroke, r: 5, stroke: "var(--paper)", dy: 8 }),
        Plot.text(points, { y: "profile", text: "profile", frameAnchor: "left", textAnchor: "start", dy: -10, dx: 2, fill: "var(--ink)", stroke: "var(--paper)", strokeWidth: 3 }),
        Plot.text(points, { y: "profile", x: "high", text: (p: { high: number }) => formatFixed(p.high, p.high < 100 ? 1 : 0), textAnchor: "start", dx: 6, dy: 8, fill: "var(--soft)" }),
      ],
    }),
  );
}

/** Measured cost of a call by sequences and rows, as a heat map: darker is dearer per row. */
export function costPlot(id: string, table: CostTable): Figure {
  const contexts = [...new Set(table.cells.map((c) => c.context))];
  const points = table.cells.map((c) => ({ ...c, x: `${c.rows}`, y: `${c.sequences}`, perRow: c.ms / (c.rows * c.sequences) }));
  const caption = "Milliseconds of one call, by sequences (down) and rows of each sequence (across). The shade is time per row: a wide call is worth it where the shade is light.";
  return figure(id, table.title, caption, (size) =>
    drawFigure(table.title, [], size, {
      height: 46 + 34 * new Set(points.map((p) => p.y)).size * (size.isNarrow ? contexts.length : 1),
      marginLeft: 40,
      marginTop: 30,
      ...(size.isNarrow ? { fy: { domain: contexts, label: null } } : { fx: { domain: contexts, label: null } }),
      x: { ...axis, type: "band", domain: [...new Set(points.map((p) => p.x))].sort((a, b) => Number(a) - Number(b)) },
      y: { ...axis, type: "band", domain: [...new Set(points.map((p) => p.y))].sort((a, b) => Number(a) - Number(b)) },
      opacity: { type: "linear", domain: [0, Math.max(...points.map((p) => p.perRow))], range: [0.06, 0.6] },
      marks: [
        Plot.cell(points, { x: "x", y: "y", ...(size.isNarrow ? { fy: "context" } : { fx: "context" }), fill: "var(--s0)", fillOpacity: "perRow", inset: 1, rx: 3 }),
        Plot.text(points, { x: "x", y: "y", ...(size.isNarrow ? { fy: "context" } : { fx: "context" }), text: (p: { ms: number }) => formatFixed(p.ms, p.ms < 10 ? 2 : 1), fill: "var(--ink)" }),
      ],
    }),
  );
}

/** Offline acceptance (or loss, when a run has no acceptance) over training steps. */
export function trainingPlot(id: string, run: TrainingRun): Figure | undefined {
  const n = Math.max(0, ...run.points.map((p) => p.acceptance.length));
  const legend: LegendEntry[] = n > 0 ? Array.from({ length: n }, (_, i) => ({ label: `position ${i + 1}`, color: seriesColor(i), isDashed: false })) : [{ label: "loss", color: seriesColor(0), isDashed: false }];
  const points = run.points.flatMap((p) => (n > 0 ? p.acceptance.map((y, i) => ({ series: `position ${i + 1}`, x: p.step, y })) : p.loss === null ? [] : [{ series: "loss", x: p.step, y: p.loss }]));
  if (points.length === 0) return undefined;
  const title = `${run.name}: ${n > 0 ? "offline acceptance by position" : "loss"} over steps`;
  const caption = n > 0 ? "Acceptance on held-out captures while training (unconditional). The served acceptance is in the table: it decides." : "Training loss. The served acceptance decides, not the loss.";
  return figure(id, title, caption, (size) =>
    drawFigure(title, legend, size, {
      height: size.isNarrow ? 240 : 280,
      marginLeft: 48,
      marginBottom: 40,
      x: { ...axis, label: "step", labelAnchor: "center", ticks: size.isNarrow ? 4 : 8 },
      y: { ...axis, ...(n > 0 ? { domain: [0, 1], tickFormat: "%" } : { zero: true }), ticks: 5 },
      marks: [
        Plot.gridY({ ticks: 5, stroke: "var(--rule)", strokeOpacity: 1 }),
        ...legend.map((e) => Plot.line(points.filter((p) => p.series === e.label), { x: "x", y: "y", stroke: e.color, strokeWidth: 2 })),
      ],
    }),
  );
}
