import * as fs from "node:fs";
import * as os from "node:os";
import * as path from "node:path";
import { afterAll, describe, expect, test } from "vitest";
import { HashCache, filesBelow, sourceHash } from "../../src/lab/keys.ts";
import { lockFolder } from "../../src/lab/lock.ts";
import { describePlan, planSteps, stepKey } from "../../src/lab/plan.ts";
import { checkRecipe, loadRecipe, parseSize } from "../../src/lab/recipe.ts";
import { parseArguments } from "../../src/config/options.ts";
import { verbs } from "../../src/commands/verbs.ts";
import { checkPlan } from "../../src/bench/sweep-plan.ts";
import { readYaml } from "../../src/util/yaml-file.ts";
import { loadCertifyPlan } from "../../src/probe/certify-plan.ts";

const folder = fs.mkdtempSync(path.join(os.tmpdir(), "foretoken-recipe-"));
afterAll(() => fs.rmSync(folder, { recursive: true }));
const recipes = path.join(import.meta.dirname, "..", "..", "recipes");

const base = { name: "r", title: "R", steps: [{ id: "s", title: "S", run: ["inspect", "x"] }] };

describe("checkRecipe", () => {
  test.each([
    [{ ...base, stepz: [] }, "Unrecognized key"],
    [{ ...base, steps: [{ id: "s", title: "S" }] }, "needs either `run` or `matrix`"],
    [{ ...base, steps: [{ id: "s", title: "S", run: ["a"], outputs: ["f"] }] }, "artifact f is not defined; there are none"],
    [{ ...base, steps: [...base.steps, ...base.steps] }, "two steps have the same id"],
    [{ ...base, steps: [{ id: "s", title: "S", run: ["x", "{nothing}"] }] }, "names {nothing}, which is neither a variable nor an artifact"],
    [{ ...base, steps: [{ id: "s", title: "S", matrix: { profiles: ["p"] } }] }, "profile p is not defined"],
    [{ ...base, profiles: { p: { name: "P", serve: [], baseline: "q" } } }, "baseline q is not defined"],
    [{ ...base, profiles: { p: { name: "P" } } }, "needs one of `serve`, `command` and `url`"],
    [{ ...base, sections: [{ title: "T", show: ["nonsense"] }] }, "sections.0.show.0"],
    [{ ...base, rules: { development: { p: "why" } } }, "rules: profile p is not defined"],
  ])("refuses %#", (raw, message) => expect(() => checkRecipe(raw)).toThrow(message));

  test("variables may name each other and artifacts, --set wins, {port} stays", () => {
    const recipe = checkRecipe(
      { ...base, vars: { a: "1", b: "{a}2" }, artifacts: { f: { file: "{run}/{b}.bin", label: "F" } }, steps: [{ id: "s", title: "S", run: ["x", "{f}"], outputs: ["f"] }], profiles: { p: { name: "P", command: "serve {f} --port {port}" } } },
      { sets: ["a=9"], runsFolder: "out" },
    );
    expect(recipe.steps[0]?.run).toEqual(["x", path.join("out", "r") + "/92.bin"]);
    expect(recipe.profiles["p"]?.command).toBe(`serve ${path.join("out", "r")}/92.bin --port {port}`);
  });

  test("sizes are read in powers of ten and of two", () => {
    expect([parseSize("18.9 GB"), parseSize("17.64 GiB"), parseSize("1,024 KiB"), parseSize(7)]).toEqual([18_900_000_000, 18_940_805_775, 1_048_576, 7]);
    expect(() => parseSize("big")).toThrow("must be a number of bytes");
  });
});

describe("the recipes of the package", () => {
  const files = fs.readdirSync(recipes).filter((f) => f.endsWith(".yaml"));

  test.each(files)("%s is valid, and every command line in it has only flags that its verb knows", async (file) => {
    const recipe = loadRecipe(path.join(recipes, file));
    const serve = (await verbs["serve"]?.load())?.options;
    expect(serve).toBeDefined();
    if (serve === undefined) return;
    for (const profile of Object.values(recipe.profiles)) if (profile.serve !== undefined) expect(() => parseArguments(serve, [...recipe.serve, ...(profile.serve ?? [])])).not.toThrow();
    for (const step of recipe.steps) {
      if (step.run === undefined) continue;
      const name = [3, 2, 1].map((n) => step.run?.slice(0, n).join(" ") ?? "").find((n) => n in verbs) ?? "";
      const command = await verbs[name]?.load();
      expect(command, `${file} step ${step.id}: verb ${step.run[0]}`).toBeDefined();
      if (command !== undefined) expect(() => parseArguments(command.options, step.run?.slice(name.split(" ").length) ?? [], command.positionals), `${file} step ${step.id}`).not.toThrow();
    }
  });

  test.each(fs.readdirSync(path.join(recipes, "plans")))("plan %s is valid and its servers' flags are known", async (file) => {
    const whole = path.join(recipes, "plans", file);
    const sets = ["model=m.gguf", "head=h.gguf", "h1=h1.gguf", "h2=h2.gguf"];
    const raw = readYaml(whole, "plan") as object;
    const plan = "modes" in raw ? loadCertifyPlan(whole, sets) : checkPlan(raw, sets, file);
    const serve = (await verbs["serve"]?.load())?.options;
    for (const server of plan.servers) {
      const words = server.command as string[];
      if (words[0] === "foretoken" && serve !== undefined) expect(() => parseArguments(serve, words.slice(2).map((w) => (w === "{port}" ? "0" : w)))).not.toThrow();
    }
  });

  test.each(files)("%s plans without any file of its own being there", (file) => {
    const recipe = loadRecipe(path.join(recipes, file), { runsFolder: folder });
    const text = describePlan(recipe, planSteps(recipe, folder), folder);
    expect(text).toMatch(/disk needed: [\d.]+ (MiB|GiB)/);
  });
});

describe("what a step depends on", () => {
  const file = path.join(folder, "in.bin");
  const recipeOf = (run: readonly string[]): ReturnType<typeof checkRecipe> => checkRecipe({ ...base, artifacts: { f: { file: path.join(folder, "f.bin"), label: "F" } }, steps: [{ id: "s", title: "S", run, inputs: [file], outputs: ["f"] }] });
  const keyOf = async (run: readonly string[], hashes = new HashCache(path.join(folder, `h-${Math.abs(run.length)}.json`))): Promise<string> => {
    const recipe = recipeOf(run);
    const [planned] = planSteps(recipe, folder);
    if (planned === undefined) throw new Error("no step");
    return stepKey(recipe, planned, hashes);
  };

  test("flags and contents are in the key; the name and the time of a file are not", async () => {
    fs.writeFileSync(file, "one");
    const hashes = new HashCache(path.join(folder, "hashes.json"));
    const first = await keyOf(["convert", file], hashes);
    fs.utimesSync(file, 1000, 1000);
    expect(await keyOf(["convert", file], hashes)).toBe(first);
    expect(await keyOf(["convert", file, "--force"], hashes)).not.toBe(first);
    fs.writeFileSync(file, "two");
    expect(await keyOf(["convert", file], hashes)).not.toBe(first);
    fs.rmSync(file);
    await expect(keyOf(["convert", file], hashes)).rejects.toThrow("in.bin does not exist");
  });

  test("a folder of links, as the hub's cache has it, counts with the contents behind them", async () => {
    const snapshot = path.join(folder, "snapshot");
    fs.mkdirSync(snapshot);
    fs.writeFileSync(path.join(folder, "blob"), "weights");
    fs.symlinkSync(path.join("..", "blob"), path.join(snapshot, "model.safetensors"));
    expect(filesBelow(snapshot)).toEqual([path.join(snapshot, "model.safetensors")]);
    const hashes = new HashCache(path.join(folder, "h-links.json"));
    const before = await hashes.contentHash(snapshot);
    fs.writeFileSync(path.join(folder, "blob"), "other weights");
    expect(await hashes.contentHash(snapshot)).not.toBe(before);
  });

  test("the code of other verbs is not", () => {
    expect(sourceHash("convert")).toBe(sourceHash("bootstrap"));
    expect(sourceHash("convert")).not.toBe(sourceHash("train"));
    expect(sourceHash("serve")).toBe(sourceHash("bench"));
  });
});

describe("lockFolder", () => {
  test("one holder at a time, and a dead holder's lock is taken over", () => {
    const own = path.join(folder, "locked");
    const release = lockFolder(own);
    expect(() => lockFolder(own)).toThrow(`is in use by process ${process.pid}`);
    release();
    fs.writeFileSync(path.join(own, "lab.lock"), JSON.stringify({ pid: 2 ** 22 + 1, host: os.hostname(), started: "", since: "" }));
    lockFolder(own)();
    fs.writeFileSync(path.join(own, "lab.lock"), "half a li");
    lockFolder(own)();
    fs.writeFileSync(path.join(own, "lab.lock"), JSON.stringify({ pid: 1, host: "another-host", started: "", since: "yesterday" }));
    expect(() => lockFolder(own)).toThrow("on another-host since yesterday");
  });
});
