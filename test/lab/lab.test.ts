import * as fs from "node:fs";
import * as os from "node:os";
import * as path from "node:path";
import { afterAll, describe, expect, test } from "vitest";
import { command as sweepCommand } from "../../src/commands/bench-sweep.ts";
import { checkOptions } from "../../src/config/options.ts";
import { collect, collectSweep } from "../../src/lab/collect.ts";
import { runLab } from "../../src/lab/lab.ts";
import { checkRecipe, runFolder, type Recipe } from "../../src/lab/recipe.ts";
import { renderReport } from "../../src/report/write.ts";
import { embeddedCheckpoint } from "../../src/util/paths.ts";

const runs = fs.mkdtempSync(path.join(os.tmpdir(), "foretoken-lab-"));
afterAll(() => fs.rmSync(runs, { recursive: true }));
const fake = path.join(import.meta.dirname, "..", "bench", "fake-openai.mjs");

/** A real verb, and profiles on a program that answers at once: everything but weights. */
function recipe(more: { maxTokens?: number; broken?: boolean; rounds?: number } = {}): Recipe {
  const command = [process.execPath, fake, "--port", "{port}", "--model", "small"];
  return checkRecipe(
    {
      name: "small",
      title: "A small lab",
      artifacts: { head: { file: "{run}/artifacts/head", label: "Head", role: "head" }, gguf: { file: "{run}/artifacts/head.gguf", label: "Head", role: "head", type: "BF16", size: "10 MB" } },
      steps: [
        { id: "bootstrap", title: "Bootstrap", run: ["bootstrap", embeddedCheckpoint, "-o", "{head}"], inputs: [embeddedCheckpoint], outputs: ["head"] },
        { id: "convert", title: "Convert", run: ["convert", "{head}", "--mtp", "-o", "{gguf}"], outputs: ["gguf"] },
        { id: "bench", title: "Measure", matrix: { profiles: ["plain", "mtp"], concurrency: [1, 2], rounds: more.rounds ?? 2, load: { requests: 3, warmup: 1, maxTokens: more.maxTokens ?? 6 } } },
        ...(more.broken === true ? [{ id: "inspect", title: "Inspect", run: ["inspect", "{run}/no-such.gguf"] }] : []),
      ],
      profiles: { plain: { name: "target only", command, files: ["gguf"] }, mtp: { name: "with drafts", command, files: ["gguf"], baseline: "plain" } },
      correctness: { chatPrompt: "add", chatExpect: ["def add("], completionPrompt: "def", completionExpect: ["a + b"] },
    },
    { runsFolder: runs },
  );
}

describe("runLab", () => {
  const folder = runFolder(recipe(), runs);
  const notes: string[] = [];
  const note = (text: string): void => void notes.push(text);

  test("makes the files, measures, writes the report; summary.json has a row per profile and concurrency", async () => {
    const { data, files, nRun } = await runLab(recipe(), folder, { note });
    expect(nRun).toBe(3);
    const summary = JSON.parse(fs.readFileSync(files.summary, "utf8")) as { rows: Record<string, unknown>[] };
    expect(summary.rows.map((r) => [r["profile"], r["concurrency"]])).toEqual([["target only", 1], ["target only", 2], ["with drafts", 1], ["with drafts", 2]]);
    for (const row of summary.rows) {
      expect(row).toMatchObject({ requests: 6, failed: 0, outputTokens: 36, nDrafts: 18, nDrafted: 18, nAccepted: 18, acceptance: 1, acceptanceByPosition: [1] });
      for (const key of ["tokPerSec", "ttftP95Ms", "loadedMiB"]) expect(row[key], key).toBeGreaterThan(0);
    }
    expect(summary.rows.map((r) => r["ratio"] === null)).toEqual([true, true, false, false]);
    expect(data.correctness.map((c) => c.ok)).toEqual(Array.from({ length: 6 }, () => true));
    expect(data.artifacts.map((a) => [a.label, a.type])).toEqual([["Head", null], ["Head", "BF16"]]);
    expect(fs.readFileSync(files.html, "utf8")).toContain("A small lab");
  });

  test("does nothing again while nothing changed, and writes the same report", async () => {
    const before = fs.readFileSync(path.join(folder, "report.html"), "utf8");
    const { nRun, nCached, data } = await runLab(recipe(), folder, { note });
    expect([nRun, nCached]).toEqual([0, 3]);
    expect(renderReport(data).html === before).toBe(true);
    expect(renderReport(collect(recipe(), folder)).html === before).toBe(true);
  });

  test("a changed load measures again and converts nothing; a damaged artifact is made again", async () => {
    expect((await runLab(recipe({ maxTokens: 4 }), folder, { note })).nRun).toBe(1);
    const file = path.join(folder, "artifacts", "head.gguf");
    const good = fs.readFileSync(file);
    fs.truncateSync(file, 100);
    const { nRun } = await runLab(recipe({ maxTokens: 4 }), folder, { note });
    // The measurement before the damage was of the same bytes.
    expect(nRun).toBe(1);
    expect(fs.readFileSync(file).equals(good)).toBe(true);
  });

  test("goes on in the middle of a matrix after it was stopped", async () => {
    const controller = new AbortController();
    const stopAtThird = (text: string): void => {
      if (text.includes("tok/s") && ++nCells === 3) controller.abort(new Error("stopped"));
    };
    let nCells = 0;
    await expect(runLab(recipe({ maxTokens: 8 }), folder, { note: stopAtThird, signal: controller.signal })).rejects.toThrow("stopped");
    notes.length = 0;
    const { nRun } = await runLab(recipe({ maxTokens: 8 }), folder, { note });
    expect(nRun).toBe(1);
    expect(notes.filter((n) => n.includes("tok/s"))).toHaveLength(8 - 3);
  });

  test("another round is added to those that are there; --fresh measures all again", async () => {
    const measured = (): number => notes.filter((n) => n.includes("tok/s")).length;
    notes.length = 0;
    expect((await runLab(recipe({ maxTokens: 8, rounds: 3 }), folder, { note })).nRun).toBe(1);
    expect(measured()).toBe(4);
    notes.length = 0;
    await runLab(recipe({ maxTokens: 8, rounds: 1 }), folder, { note, fresh: true });
    expect(measured()).toBe(4);
  });

  test("a step that fails says which, why, and where its log is", async () => {
    await expect(runLab(recipe({ broken: true, maxTokens: 8 }), folder, { note })).rejects.toThrow(/inspect .*no-such\.gguf failed \(exit 1\): .*does not exist.*log .*inspect\.log/);
    expect(fs.readFileSync(path.join(folder, "logs", "inspect.log"), "utf8")).toContain("$ foretoken inspect");
  });
});

test("a sweep's folder gives a report too", async () => {
  const plan = path.join(runs, "plan.yaml");
  const output = path.join(runs, "sweep");
  const server = (name: string): unknown => ({ name, command: [process.execPath, fake, "--port", "{port}"], synthetic: name === "fast" });
  fs.writeFileSync(plan, JSON.stringify({ name: "two", title: "Two servers", baseline: "plain", rounds: 2, concurrency: [1, 3], load: { requests: 3, maxTokens: 4, warmup: 1, rate: 500, goodput: ["ttft:60000", "e2el:90000"] }, servers: [server("plain"), server("fast")] }));
  const out: string[] = [];
  const io = { out: (text: string) => void out.push(text), note: () => {}, json: false, signal: new AbortController().signal };
  expect(await sweepCommand.run(checkOptions(sweepCommand.options, { plan, output }), io)).toBe(0);
  expect(out.join("\n")).toContain("c3 tok/s");
  expect(out.join("\n")).toContain("goodput/s");
  const data = collectSweep(output);
  expect(data.rows.map((r) => [r.profile, r.concurrency, r.outputTokens, r.ratio?.baseline])).toEqual([["plain", 1, 24, undefined], ["plain", 3, 24, undefined], ["fast", 1, 24, "plain"], ["fast", 3, 24, "plain"]]);
  expect(data.profiles.map((p) => p.isSynthetic)).toEqual([false, true]);
  expect(data.rows[0]).toMatchObject({ ratePerSec: 500, goodput: { limits: "ttft 60000 ms, e2el 90000 ms", good: 6 } });
  const { markdown } = renderReport(data);
  expect(markdown).toContain("## Throughput");
  expect(markdown).toContain("Open loop, 500 requests/s on average");
  expect(markdown).toContain("Goodput: requests within ttft 60000 ms, e2el 90000 ms.");
  expect(JSON.stringify(collectSweep(output))).toBe(JSON.stringify(data));
});
