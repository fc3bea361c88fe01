import * as path from "node:path";
import * as z from "zod";
import { localConditions } from "../bench/conditions.ts";
import { quoteCommand } from "../bench/managed-server.ts";
import { hashModelFiles, type ModelFile } from "../bench/model-files.ts";
import { sweepRows } from "../bench/paired.ts";
import { cellsOf, checkPlan, type SweepPlan } from "../bench/sweep-plan.ts";
import { sweepTable } from "../bench/sweep-table.ts";
import { runSweep } from "../bench/sweep.ts";
import { defineCommand, type Io } from "../config/command.ts";
import { matrixPlan } from "../lab/matrix.ts";
import { checkRecipe } from "../lab/recipe.ts";
import { usageError } from "../util/errors.ts";
import { writeTextAtomic } from "../util/files.ts";
import { renderMarkdown, renderText } from "../util/table.ts";
import { readYaml } from "../util/yaml-file.ts";

export const command = defineCommand({
  name: "bench sweep",
  summary: "measure servers against each other over concurrencies and rounds, from a plan file",
  details: "The plan names servers by URL or by command line, loads and rounds (docs/metrics.md has its keys). Cells that are measured are kept: run it again to go on.",
  options: z.strictObject({
    plan: z.string().meta({ description: "plan file, YAML or JSON, or a recipe" }),
    matrix: z.string().optional().meta({ description: "step of the recipe whose matrix is measured; default: the first that has one", placeholder: "ID" }),
    output: z.string().optional().meta({ short: "o", description: "folder for raw files, logs and tables; default runs/sweep-NAME", placeholder: "DIR" }),
    set: z.array(z.string()).default([]).meta({ description: "value for a {NAME} of the plan", placeholder: "NAME=VALUE" }),
    only: z.array(z.string()).default([]).meta({ description: "only this server", placeholder: "NAME" }),
    budget: z.number().positive().optional().meta({ description: "stop in good order before this many seconds", placeholder: "S" }),
    rounds: z.int().min(1).optional().meta({ description: "instead of the plan's", placeholder: "N" }),
    hash: z.boolean().default(false).meta({ description: "record the SHA-256 of the model files in the command lines" }),
    fresh: z.boolean().default(false).meta({ description: "measure everything again" }),
    dryRun: z.boolean().default(false).meta({ description: "print the cells and command lines, start nothing" }),
  }),
  positionals: ["plan"],
  async run(options, io) {
    const loaded = loadPlanOrRecipe(options.plan, options.set, options.matrix);
    const plan: SweepPlan = {
      ...loaded,
      servers: loaded.servers.filter((s) => options.only.length === 0 || options.only.includes(s.name)),
      ...(options.budget === undefined ? {} : { budget: options.budget }),
      ...(options.rounds === undefined ? {} : { rounds: options.rounds }),
    };
    if (options.dryRun) return describePlan(plan, io);
    const folder = options.output ?? path.join("runs", `sweep-${plan.name}`);
    const models = options.hash ? await hashModels(plan) : undefined;
    const { cells, skipped } = await runSweep(plan, folder, { signal: io.signal, note: (text) => io.note(text), fresh: options.fresh, ...(models === undefined ? {} : { models }) });
    const rows = sweepRows(cells, (server) => plan.servers.find((s) => s.name === server)?.baseline ?? plan.baseline);
    const table = sweepTable(rows);
    const synthetic = plan.servers.filter((s) => s.synthetic).map((s) => s.name);
    await writeTextAtomic(path.join(folder, "sweep.json"), `${JSON.stringify({ plan, conditions: localConditions(), rows, skipped, synthetic }, null, 2)}\n`);
    await writeTextAtomic(path.join(folder, "sweep.md"), `${renderMarkdown(table)}\n`);
    if (io.json) io.out(JSON.stringify({ folder, rows, skipped, synthetic }));
    else io.out(renderText(table));
    for (const s of skipped) io.note(`not measured: ${s.server} c${s.concurrency} round ${s.round + 1}: ${s.reason}`);
    if (synthetic.length > 0) io.note(`synthetic, not model text: ${synthetic.join(", ")}`);
    io.note(`${path.join(folder, "sweep.md")}, sweep.json, cells.jsonl and raw/ have the rest; foretoken report ${folder} makes a page of it`);
    return cells.length === 0 ? 1 : 0;
  },
});

/** Of a recipe one step's matrix is the plan. */
function loadPlanOrRecipe(file: string, sets: readonly string[], id: string | undefined): SweepPlan {
  const where = path.basename(file);
  const raw = readYaml(file, "plan");
  if (typeof raw !== "object" || raw === null || !("steps" in raw)) {
    if (id !== undefined) throw usageError(`--matrix ${id}: ${where} is a plan, not a recipe with steps; leave it out`);
    return checkPlan(raw, sets, where);
  }
  const recipe = checkRecipe(raw, { sets, where });
  const withMatrix = recipe.steps.filter((s) => s.matrix !== undefined);
  const step = id === undefined ? withMatrix[0] : withMatrix.find((s) => s.id === id);
  if (step?.matrix === undefined) throw usageError(`${where}: ${id === undefined ? "no step of this recipe has a matrix to measure" : `no step "${id}" with a matrix; there is ${withMatrix.map((s) => s.id).join(", ")}`}`);
  return { ...matrixPlan(recipe, step, step.matrix), name: recipe.name, title: recipe.title };
}

async function hashModels(plan: SweepPlan): Promise<(server: string) => readonly ModelFile[]> {
  const wordsOf = (name?: string): string[][] => plan.servers.flatMap((s) => (Array.isArray(s.command) && (name === undefined || s.name === name) ? [s.command] : []));
  const models = await hashModelFiles(wordsOf());
  return (name) => models.filter((m) => wordsOf(name).flat().includes(m.file));
}

function describePlan(plan: SweepPlan, io: Io): void {
  const cells = cellsOf(plan);
  if (io.json) return io.out(JSON.stringify({ plan, cells }));
  io.out(`${plan.name}: ${plan.servers.length} servers, ${cells.length} cells, order by ${plan.order}`);
  for (const server of plan.servers) io.out(`  ${server.name}: ${server.url ?? quoteCommand(server.command as string[])}`);
  for (const { server, concurrency, round, load } of cells) io.out(`  round ${round + 1}  ${server.name} c${concurrency}: ${load.requests} requests, ${load.maxTokens} new tokens${load.randomInputLen === undefined ? "" : `, prompts of ${load.randomInputLen} tokens`}`);
}
