import * as fs from "node:fs";
import * as os from "node:os";
import * as path from "node:path";
import { afterAll, describe, expect, test } from "vitest";
import { endLeftovers } from "../../src/bench/leftovers.ts";
import { fillIn, quoteCommand, splitCommand, startServer } from "../../src/bench/managed-server.ts";
import { estimate, sweepRows } from "../../src/bench/paired.ts";
import { cellsOf, checkPlan } from "../../src/bench/sweep-plan.ts";
import { sweepTable } from "../../src/bench/sweep-table.ts";
import { readCells, runSweep, type CellResult } from "../../src/bench/sweep.ts";
import { summarize } from "../../src/bench/summarize.ts";
import { command as sweepCommand } from "../../src/commands/bench-sweep.ts";
import { checkOptions } from "../../src/config/options.ts";

const folder = fs.mkdtempSync(path.join(os.tmpdir(), "foretoken-sweep-"));
afterAll(() => fs.rmSync(folder, { recursive: true }));
const fake = (...more: string[]): string[] => [process.execPath, path.join(import.meta.dirname, "fake-openai.mjs"), "--port", "{port}", ...more];
const load = { requests: 4, maxTokens: 6, warmup: 1 };

describe("checkPlan", () => {
  const plan = (more: Record<string, unknown>): unknown => ({ name: "p", servers: [{ name: "a", url: "http://x" }], ...more });
  test.each([
    [plan({ sevrers: [] }), "Unrecognized key"],
    [plan({ baseline: "b" }), "baseline b is not among the servers a"],
    [plan({ servers: [{ name: "a" }] }), "needs either `command` or `url`"],
    [plan({ servers: [{ name: "a", command: "x {model}" }] }), "names {model}, which is not set"],
    [plan({ servers: [{ name: "a b", url: "u" }] }), "it names files"],
    [plan({ load: { maxTokens: 0 } }), "load.maxTokens"],
  ])("refuses %j", (raw, message) => expect(() => checkPlan(raw)).toThrow(message));

  test("fills variables from the plan and from --set, and leaves the port", () => {
    const made = checkPlan({ name: "p", vars: { model: "m.gguf" }, servers: [{ name: "a", command: "serve -m '{model}' --port {port}" }] }, ["model=o.gguf"]);
    expect(made.servers[0]?.command).toEqual(["serve", "-m", "o.gguf", "--port", "{port}"]);
  });
});

describe("cellsOf", () => {
  const order = (kind: string): string[] =>
    cellsOf(checkPlan({ name: "p", order: kind, rounds: 2, concurrency: [1, 4], servers: [{ name: "a", url: "u" }, { name: "b", url: "u", concurrency: [4] }] })).map((c) => `${c.server.name}${c.concurrency}.${c.round}`);

  test("servers take turns in the order of the plan", () => {
    expect(order("rounds")).toEqual(["a1.0", "a4.0", "b4.0", "b4.1", "a1.1", "a4.1"]);
    expect(order("servers")).toEqual(["a1.0", "a4.0", "a1.1", "a4.1", "b4.0", "b4.1"]);
    expect(order("cells")).toEqual(["a1.0", "b4.0", "a4.0", "a1.1", "a4.1", "b4.1"]);
  });

  test("all servers get the same prompts in a round, other rounds others; every change of a load changes the key", () => {
    const cells = cellsOf(checkPlan({ name: "p", rounds: 2, concurrency: [1], servers: [{ name: "a", url: "u" }, { name: "b", url: "u" }] }));
    const seeds = (round: number): number[] => cells.filter((c) => c.round === round).map((c) => c.load.seed);
    expect(new Set(seeds(0)).size).toBe(1);
    expect(seeds(0)[0]).not.toBe(seeds(1)[0]);
    const changed = cellsOf(checkPlan({ name: "p", rounds: 2, concurrency: [1], load: { maxTokens: 9 }, servers: [{ name: "a", url: "u" }, { name: "b", url: "u" }] }));
    expect(new Set([...cells, ...changed].map((c) => c.key)).size).toBe(8);
  });

  test("a load that is given for one concurrency counts there", () => {
    const cells = cellsOf(checkPlan({ name: "p", concurrency: [1, 16], load: { requests: 8 }, at: { 16: { requests: 64 } }, servers: [{ name: "a", url: "u" }] }));
    expect(cells.map((c) => [c.concurrency, c.load.concurrency, c.load.requests])).toEqual([[1, 1, 8], [16, 16, 64]]);
  });
});

// Starts eight programs in turn, which took 48 s on a busy machine: the limit is there for a hang, not for that.
describe("runSweep", { timeout: 600_000 }, () => {
  const plan = checkPlan({
    name: "p",
    rounds: 2,
    concurrency: [1, 2],
    load,
    baseline: "a",
    servers: [{ name: "a", command: fake() }, { name: "b", command: fake() }, { name: "broken", command: fake("--exit-code", "2") }],
  });

  test("measures each cell once, keeps raw files, skips a server that does not start, and goes on where it ended", async () => {
    const notes: string[] = [];
    const first = await runSweep(plan, folder, { note: (text) => notes.push(text) });
    expect(first.cells).toHaveLength(8);
    expect(first.skipped.map((s) => [s.server, s.reason.includes("exit code 2") && s.reason.includes("the model file is not there")])).toEqual(Array.from({ length: 4 }, () => ["broken", true]));
    for (const c of first.cells) {
      expect(c.summary).toMatchObject({ requests: 4, failed: 0, outputTokens: 24 });
      expect(c.drafts).toMatchObject({ nDrafts: 12, nDrafted: 12, nAccepted: 12 });
      expect(fs.readFileSync(path.join(folder, c.raw), "utf8").trimEnd().split("\n")).toHaveLength(6);
      expect(c.memory?.hostBytes).toBeGreaterThan(1e6);
    }
    // A line cut by a kill is measured again, and only that one.
    const file = path.join(folder, "cells.jsonl");
    const lines = fs.readFileSync(file, "utf8").trimEnd().split("\n");
    fs.writeFileSync(file, `${lines.slice(0, -1).join("\n")}\n${lines.at(-1)?.slice(0, 40)}\n`);
    notes.length = 0;
    const second = await runSweep(plan, folder, { note: (text) => notes.push(text) });
    expect(second.cells.map((c) => c.key)).toEqual(first.cells.map((c) => c.key));
    expect(notes.filter((n) => n.includes("tok/s"))).toHaveLength(1);
    expect(readCells(file)).toHaveLength(8);
  });

  test("a server that dies in the middle gives a reason, not a result", async () => {
    const dying = checkPlan({ name: "d", concurrency: [1], load, servers: [{ name: "x", command: fake("--die-after", "3") }] });
    const { cells, skipped } = await runSweep(dying, path.join(folder, "dying"), { note: () => {} });
    expect(cells).toEqual([]);
    expect(skipped[0]?.reason).toContain("ended during the measurement (exit code 3)");
  });

  test("a used-up budget leaves cells for the next run", async () => {
    const { cells, skipped } = await runSweep({ ...plan, budget: 1e-9 }, path.join(folder, "budget"), { note: () => {} });
    expect(cells).toEqual([]);
    expect(skipped[0]?.reason).toContain("run again to go on");
  });
});

describe("startServer", () => {
  const base = { name: "s", logFile: path.join(folder, "s.log"), readyTimeoutMs: 30_000 };

  test("stop ends the process", async () => {
    const server = await startServer({ ...base, command: fake() });
    expect(server.exitReason()).toBeUndefined();
    await server.stop();
    expect(server.exitReason()).toBeDefined();
    expect(() => process.kill(server.pid, 0)).toThrow("ESRCH");
  });

  test("what a killed run left behind is ended by the next, and nothing else is", async () => {
    const noteFolder = path.join(folder, "running");
    const server = await startServer({ ...base, command: fake(), noteFolder });
    // A note whose process id now belongs to somebody else: this test.
    fs.writeFileSync(path.join(noteFolder, `${process.pid}.json`), JSON.stringify({ pid: process.pid, mark: "no such port" }));
    expect(endLeftovers(noteFolder)).toEqual([server.pid]);
    expect(fs.readdirSync(noteFolder)).toEqual([]);
    await server.stop();
    expect(server.exitReason()).toBe("signal SIGKILL");
    const other = await startServer({ ...base, command: fake(), noteFolder });
    await other.stop();
    expect(endLeftovers(noteFolder)).toEqual([]);
  });

  test("a program that is not there is an error of one line", async () => {
    await expect(startServer({ ...base, command: ["no-such-program-here", "{port}"] })).rejects.toThrow(/no-such-program-here .* ended before it was ready \(spawn no-such-program-here ENOENT\)/);
  });

  test("command lines split and quote as a shell would", () => {
    const words = ["a b", "it's", "plain", 'q"q', ""];
    expect(splitCommand("x  'a b' \"c \\\" d\" e\\ f g'h i'")).toEqual(["x", "a b", 'c " d', "e f", "gh i"]);
    expect(splitCommand(quoteCommand(words.filter((w) => w !== "it's")))).toEqual(words.filter((w) => w !== "it's"));
    expect(() => fillIn("{a}{b}", { a: "1" })).toThrow("{b}");
  });
});

describe("estimates", () => {
  test("the interval is Student's t on logarithms, and one sample has none", () => {
    const { median, low, high, n } = estimate([1.1, 1.21, 1.331]);
    expect([median, n]).toEqual([1.21, 3]);
    // Logs are 1, 2, 3 times ln 1.1: mean 2, deviation 1, half width 4.303 / sqrt(3).
    expect(low).toBeCloseTo(1.1 ** (2 - 4.303 / Math.sqrt(3)), 6);
    expect(high).toBeCloseTo(1.1 ** (2 + 4.303 / Math.sqrt(3)), 6);
    expect(Number.isNaN(estimate([2]).low)).toBe(true);
  });

  test("ratios are paired by round, so a machine that slows down for both changes nothing", () => {
    const cell = (server: string, round: number, tokPerSec: number): CellResult => ({ kind: "cell", key: `${server}${round}`, server, concurrency: 4, round, summary: { ...summarize([]), outputTokPerSec: tokPerSec }, drafts: undefined, counters: {}, client: { lagP50Ms: 0, lagP99Ms: 0, lagMaxMs: 0, cpuShare: 0, warning: undefined }, warnings: [], memory: undefined, commandLine: undefined, serverStartMs: undefined, conditions: { date: "", foretoken: "", commit: undefined, machine: "", node: "" }, raw: "" });
    const rows = sweepRows([cell("a", 0, 100), cell("b", 0, 150), cell("b", 1, 75), cell("a", 1, 50), cell("b", 2, 300)], () => "a");
    const b = rows.find((r) => r.server === "b");
    expect(b?.ratio).toMatchObject({ median: 1.5, n: 2 });
    expect(b?.ratio?.low).toBeCloseTo(1.5, 9);
    expect(b?.tokPerSec.median).toBe(150);
    expect(rows.find((r) => r.server === "a")?.ratio).toBeUndefined();
    expect(sweepTable(rows).rows[1]?.slice(0, 3)).toEqual(["b", "150.0", "1.50x [1.50, 1.50]"]);
  });
});

test("a recipe's first matrix is a plan too", async () => {
  const out: string[] = [];
  const io = { out: (text: string) => void out.push(text), note: () => {}, json: false, signal: new AbortController().signal };
  const recipe = path.join(import.meta.dirname, "..", "..", "recipes", "h200-shape.yaml");
  await sweepCommand.run(checkOptions(sweepCommand.options, { plan: recipe, set: ["model=x.gguf", "llamaDir=libs"], only: ["gate"], dryRun: true }), io);
  expect(out[0]).toBe("h200-shape: 1 servers, 16 cells, order by cells");
  expect(out[1]).toContain("-m x.gguf --llama-dir libs");
});
