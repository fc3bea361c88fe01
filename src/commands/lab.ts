import * as z from "zod";
import { defineCommand } from "../config/command.ts";
import { runLab } from "../lab/lab.ts";
import { describePlan, planSteps } from "../lab/plan.ts";
import { loadRecipe, runFolder } from "../lab/recipe.ts";
import { formatDuration } from "../util/format.ts";

export const command = defineCommand({
  name: "lab",
  summary: "run a recipe: make the files, serve and measure them, write the report",
  details: "Steps that are done are not done again while their inputs are the same; a run that was stopped goes on where it ended.",
  options: z.strictObject({
    recipe: z.string().meta({ description: "recipe file, YAML" }),
    runs: z.string().default("runs").meta({ description: "folder under which the recipe's run folder is", placeholder: "DIR" }),
    set: z.array(z.string()).default([]).meta({ description: "value of a variable of the recipe", placeholder: "NAME=VALUE" }),
    until: z.string().optional().meta({ description: "stop after this step, then report", placeholder: "STEP" }),
    fresh: z.boolean().default(false).meta({ description: "do every step again" }),
    dryRun: z.boolean().default(false).meta({ description: "print steps, command lines, sizes and the disk needed; do nothing" }),
  }),
  positionals: ["recipe"],
  async run(options, io) {
    const startMs = performance.now();
    const recipe = loadRecipe(options.recipe, { sets: options.set, runsFolder: options.runs });
    const folder = runFolder(recipe, options.runs);
    if (options.dryRun) {
      const planned = planSteps(recipe, folder);
      io.out(io.json ? JSON.stringify({ folder, steps: planned, sizeBytes: planned.reduce((sum, p) => sum + p.sizeBytes, 0) }) : describePlan(recipe, planned, folder));
      return;
    }
    const { data, files, nRun, nCached } = await runLab(recipe, folder, { signal: io.signal, note: (text) => io.note(text), fresh: options.fresh, until: options.until });
    if (io.json) return io.out(JSON.stringify({ folder, ...files, nRun, nCached, rows: data.rows }));
    for (const sentence of data.recommendation?.sentences ?? []) io.out(sentence.replaceAll("**", ""));
    io.note(`${nRun} steps run, ${nCached} done before, ${formatDuration(performance.now() - startMs)}`);
    io.out(`report: ${files.html}  (also ${files.markdown} and ${files.summary})`);
  },
});
