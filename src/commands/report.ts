import * as path from "node:path";
import * as z from "zod";
import { defineCommand } from "../config/command.ts";
import { collect } from "../lab/collect.ts";
import { readRecipe } from "../lab/recipe.ts";
import { writeReport } from "../report/write.ts";

export const command = defineCommand({
  name: "report",
  summary: "write a run folder's report again from its raw files",
  options: z.strictObject({
    folder: z.string().meta({ description: "run folder, such as runs/tiny-quick" }),
    output: z.string().optional().meta({ short: "o", description: "folder to write to; default: the run folder", placeholder: "DIR" }),
  }),
  positionals: ["folder"],
  async run(options, io) {
    const recipe = readRecipe(path.join(options.folder, "recipe.json"));
    const files = await writeReport(options.output ?? options.folder, collect(recipe, options.folder));
    io.out(io.json ? JSON.stringify(files) : `report: ${files.html}  (also ${files.markdown} and ${files.summary})`);
  },
});
