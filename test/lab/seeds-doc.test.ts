import * as fs from "node:fs";
import * as path from "node:path";
import { describe, expect, test } from "vitest";
import { verbs } from "../../src/commands/verbs.ts";
import { flagsOf } from "../../src/config/options.ts";
import { loadRecipe } from "../../src/lab/recipe.ts";

const root = path.join(import.meta.dirname, "..", "..");
const text = fs.readFileSync(path.join(root, "docs", "seeds.md"), "utf8");
/** The cells of the column "here", and the closing paragraph. */
const rows = text.split("\n").filter((line) => line.startsWith("|") && !line.startsWith("|---") && !line.includes("| here |")).map((line) => line.split(/(?<!\\)\|/).map((cell) => cell.trim()));
const here = [...rows.map((cells) => cells[2] ?? ""), text.split("## What the reports do not have")[1] ?? ""];

const commands = here.flatMap((cell) => [...cell.matchAll(/`([a-z][a-z ]*?)((?: --[a-z0-9-]+)*)`/g)].map((m) => ({ verb: m[1] as string, flags: (m[2] ?? "").trim().split(" ").filter((f) => f !== "") })));

describe("docs/seeds.md", () => {
  test("has a state in every row", () => {
    expect(rows.length).toBeGreaterThan(60);
    for (const cells of rows) expect(cells[3], cells.join(" | ")).toMatch(/^(works|recipe|GPU|not offered, because .+)$/);
  });

  test("names only flags that their verbs have", async () => {
    const named = commands.filter((c) => c.verb in verbs);
    expect(named.length).toBeGreaterThan(35);
    for (const { verb, flags } of named) {
      const command = await verbs[verb]?.load();
      expect(command, verb).toBeDefined();
      if (command === undefined) continue;
      const known = new Set(flagsOf(command.options).flatMap((f) => [f.name, ...(f.aliases ?? [])]));
      for (const flag of flags) expect(known.has(flag.slice(2)), `${verb} ${flag}`).toBe(true);
    }
  });

  test("names no verb with flags that does not exist", () => {
    for (const { verb, flags } of commands) if (flags.length > 0) expect(verbs[verb], verb).toBeDefined();
  });

  test("names only steps and profiles that their recipes have", () => {
    const mentions = here.flatMap((cell) => [...cell.matchAll(/(steps?|profile) ((?:`[a-z0-9-]+`(?:, )?)+) of (tiny-quick|tiny-full|ornith-1\.0-35b)(?: and (tiny-quick|tiny-full|ornith-1\.0-35b))?/g)]);
    expect(mentions.length).toBeGreaterThan(40);
    for (const [whole, kind, names = "", ...files] of mentions) {
      for (const file of files.filter((f) => f !== undefined)) {
        const recipe = loadRecipe(path.join(root, "recipes", `${file}.yaml`));
        const known = kind === "profile" ? Object.keys(recipe.profiles) : recipe.steps.map((s) => s.id);
        for (const name of names.split(", ")) expect(known, whole).toContain(name.replaceAll("`", ""));
      }
    }
  });

  test("names every environment variable of the reports", () => {
    const variables = "QUANT SPEC_TYPE SPEC_DRAFT_MODEL SPEC_DRAFT_N_MAX SPEC_DRAFT_N_MIN CTX_SIZE PARALLEL BATCH_SIZE UBATCH_SIZE REASONING CUDA_VISIBLE_DEVICES HOST PORT MODEL_PATH ALIAS SPEC_DRAFT_BACKEND_SAMPLING MTP_PER_HEAD_CONTEXT LLAMA_MTP_PER_HEAD_CONTEXT LLAMA_MTP_FAST_BACKEND_SAMPLE LLAMA_MTP_DRAFT_TOP_K LLAMA_MTP_DRAFT_TOP_P LLAMA_MTP_DRAFT_TEMP LLAMA_SPEC_VERIFY_SEQUENTIAL CACHE_RAM".split(" ");
    for (const name of variables) expect(text).toContain(`\`${name}\``);
  });
});
