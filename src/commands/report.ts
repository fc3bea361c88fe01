import * as fs from "node:fs";
import * as path from "node:path";
import * as z from "zod";
import { defineCommand, type Io } from "../config/command.ts";
import { collect, collectSweep } from "../lab/collect.ts";
import { readRecipe } from "../lab/recipe.ts";
import { compareBlocks } from "../report/compare.ts";
import { htmlDocument } from "../report/html.ts";
import { markdownDocument } from "../report/markdown.ts";
import type { ReportData } from "../report/model.ts";
import { writeReport } from "../report/write.ts";
import { usageError } from "../util/errors.ts";
import { statFile, writeTextAtomic } from "../util/files.ts";

export const command = defineCommand({
  name: "report",
  summary: "write a run folder's report again from its raw files, or compare two runs",
  options: z.strictObject({
    folders: z.array(z.string()).min(1, "a run folder is needed").max(2, "one run folder, or two with --compare").meta({ description: "run folder of a lab or a sweep, such as runs/tiny-quick" }),
    compare: z.boolean().default(false).meta({ description: "compare two run folders (or summary.json files): A, then B" }),
    output: z.string().optional().meta({ short: "o", description: "folder to write to; default: the run folder; a comparison is only printed without it", placeholder: "DIR" }),
  }),
  positionals: ["folders..."],
  async run({ folders, compare, output }, io) {
    if (compare !== (folders.length === 2)) throw usageError(compare ? "--compare needs two run folders" : "two run folders are given; add --compare");
    if (compare) return compareRuns(folders as [string, string], output, io);
    const [folder] = folders as [string];
    const isSweep = fs.existsSync(path.join(folder, "sweep.json"));
    const data = isSweep ? collectSweep(folder) : collect(readRecipe(path.join(folder, "recipe.json")), folder);
    const files = await writeReport(output ?? folder, data);
    io.out(io.json ? JSON.stringify(files) : `report: ${files.html}  (also ${files.markdown} and ${files.summary})`);
  },
});

async function compareRuns(folders: readonly [string, string], output: string | undefined, io: Io): Promise<void> {
  const [a, b] = folders.map(readSummary) as [ReportData, ReportData];
  const title = `${a.title}: A ${a.conditions.date.slice(0, 10)} against B ${b.conditions.date.slice(0, 10)}`;
  const markdown = markdownDocument(title, compareBlocks(a, b));
  if (output !== undefined) {
    await writeTextAtomic(path.join(output, "compare.md"), markdown);
    await writeTextAtomic(path.join(output, "compare.html"), htmlDocument({ title, subtitle: `A: ${folders[0]} · B: ${folders[1]}`, footer: "Made by Foretoken from two summaries." }, compareBlocks(a, b)));
  }
  io.out(io.json ? JSON.stringify({ a: folders[0], b: folders[1], ...(output === undefined ? {} : { output }) }) : output === undefined ? markdown : `${path.join(output, "compare.html")} (also compare.md)`);
}

function readSummary(target: string): ReportData {
  const file = target.endsWith(".json") ? target : path.join(target, "summary.json");
  statFile(file, "summary");
  try {
    const data = JSON.parse(fs.readFileSync(file, "utf8")) as ReportData;
    if (Array.isArray(data.rows)) return data;
  } catch {
    // The message below says both.
  }
  throw usageError(`${file} is no summary of a lab run`);
}
