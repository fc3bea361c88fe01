/** A report as files: summary.json, report.md with its plots, report.html. */
import * as fs from "node:fs";
import * as path from "node:path";
import { writeTextAtomic } from "../util/files.ts";
import type { Block } from "./block.ts";
import { reportBlocks } from "./document.ts";
import { htmlDocument } from "./html.ts";
import { markdownDocument } from "./markdown.ts";
import type { ReportData } from "./model.ts";
import { standaloneSvg } from "./svg.ts";

export interface RenderedReport {
  readonly markdown: string;
  readonly html: string;
  /** File name -> SVG. */
  readonly plots: ReadonlyMap<string, string>;
}

export function renderReport(data: ReportData): RenderedReport {
  const blocks = reportBlocks(data);
  const intro: Block[] = data.about === null ? [] : [{ kind: "text", text: data.about }];
  const { conditions: c } = data;
  const subtitle = [c.date.slice(0, 10), c.device ?? c.machine, ...(c.library === null ? [] : [c.library.includes("llama") ? c.library : `llama.cpp ${c.library}`])].join(" · ");
  const footer = `Made by Foretoken ${c.version} from the measurements named above; recipe ${data.recipe}. Every figure can be traced to a raw file; docs/metrics.md says how each is computed.`;
  return {
    markdown: markdownDocument(data.title, [{ kind: "text", text: subtitle }, ...intro, ...blocks]),
    html: htmlDocument({ title: data.title, subtitle, footer }, [...intro, ...blocks]),
    plots: new Map(figures(blocks).map((f) => [`${f.id}.svg`, standaloneSvg(f.wide)])),
  };
}

function figures(blocks: readonly Block[]): Extract<Block, { kind: "figure" }>[] {
  return blocks.flatMap((b) => (b.kind === "figure" ? [b] : b.kind === "details" ? figures(b.blocks) : []));
}

/** Returns the paths written. */
export async function writeReport(folder: string, data: ReportData): Promise<{ summary: string; markdown: string; html: string }> {
  const { markdown, html, plots } = renderReport(data);
  const file = (name: string): string => path.join(folder, name);
  fs.rmSync(file("plots"), { recursive: true, force: true });
  for (const [name, svg] of plots) await writeTextAtomic(path.join(folder, "plots", name), svg);
  await writeTextAtomic(file("summary.json"), `${JSON.stringify(data, null, 2)}\n`);
  await writeTextAtomic(file("report.md"), markdown);
  await writeTextAtomic(file("report.html"), html);
  return { summary: file("summary.json"), markdown: file("report.md"), html: file("report.html") };
}
