/**
 * Runs the cells of a plan, one at a time, and keeps each as soon as it is measured, so that a run that is stopped, or
 * that must fit a time limit, goes on later where it ended.
 */
import * as fs from "node:fs";
import * as path from "node:path";
import { setTimeout as sleep } from "node:timers/promises";
import { UserError } from "../util/errors.ts";
import { formatDuration, formatFixed } from "../util/format.ts";
import type { Conditions } from "./conditions.ts";
import { localConditions, serverProps } from "./conditions.ts";
import type { DraftCounts } from "./counters.ts";
import { getText } from "./http.ts";
import type { ClientHealth } from "./lag.ts";
import { endLeftovers } from "./leftovers.ts";
import { startServer, type ManagedServer } from "./managed-server.ts";
import type { ModelFile } from "./model-files.ts";
import { loadedMemory, type LoadedMemory } from "./process-memory.ts";
import { runBench, writeRaw, type Target } from "./run.ts";
import type { Summary } from "./summarize.ts";
import { cellsOf, type Cell, type SweepPlan, type SweepServer } from "./sweep-plan.ts";

/** One line of cells.jsonl. */
export interface CellResult {
  readonly kind: "cell";
  readonly key: string;
  readonly server: string;
  readonly concurrency: number;
  readonly round: number;
  readonly summary: Summary;
  readonly drafts: DraftCounts | undefined;
  readonly counters: Readonly<Record<string, number>>;
  readonly client: ClientHealth;
  readonly warnings: readonly string[];
  readonly memory: LoadedMemory | undefined;
  readonly commandLine: string | undefined;
  readonly serverStartMs: number | undefined;
  readonly conditions: Conditions;
  /** Relative to the sweep's folder. */
  readonly raw: string;
}

export interface SweepOutcome {
  readonly cells: readonly CellResult[];
  /** Cells that were not measured, with the reason. */
  readonly skipped: readonly { readonly server: string; readonly concurrency: number; readonly round: number; readonly reason: string }[];
}

export interface SweepContext {
  readonly signal?: AbortSignal;
  readonly note: (text: string) => void;
  /** Measure cells again that are already there. */
  readonly fresh?: boolean;
  /** Model files of a server with their hashes, for the raw files. */
  readonly models?: (server: string) => readonly ModelFile[];
  /** Before a server is measured for the first time since it was started. */
  readonly onReady?: (server: string, target: Target) => Promise<void>;
}

/** @throws {UserError} when a server that is given by URL does not answer; one that fails to start is skipped with its reason. */
export async function runSweep(plan: SweepPlan, folder: string, context: SweepContext): Promise<SweepOutcome> {
  fs.mkdirSync(folder, { recursive: true });
  for (const pid of endLeftovers(path.join(folder, "running"))) context.note(`ended server ${pid} that a killed run had left behind`);
  const file = path.join(folder, "cells.jsonl");
  if (context.fresh === true) fs.rmSync(file, { force: true });
  const wanted = cellsOf(plan);
  const measured = new Map(readCells(file).map((c) => [c.key, c]));
  const todo = wanted.filter((c) => !measured.has(c.key));
  if (todo.length < wanted.length) context.note(`${wanted.length - todo.length} of ${wanted.length} cells are there already`);
  const skipped: { server: string; concurrency: number; round: number; reason: string }[] = [];
  const servers = new RunningServers(plan, folder, context);
  const budget = new Budget(plan.budget);
  try {
    for (const cell of todo) {
      const skip = (reason: string): void => void skipped.push({ server: cell.server.name, concurrency: cell.concurrency, round: cell.round, reason });
      if (!budget.hasRoom(cell)) {
        skip(`the time budget of ${plan.budget} s is used; run again to go on`);
        continue;
      }
      try {
        const result = await budget.time(cell, () => measureCell(cell, folder, servers, context));
        fs.appendFileSync(file, `${JSON.stringify(result)}\n`);
        measured.set(cell.key, result);
      } catch (error) {
        if (!(error instanceof UserError) || context.signal?.aborted === true) throw error;
        skip(error.message);
        context.note(`skipped ${cell.server.name} c${cell.concurrency}: ${error.message}`);
      }
    }
  } finally {
    await servers.stopAll();
  }
  return { cells: wanted.flatMap((c) => measured.get(c.key) ?? []), skipped };
}

async function measureCell(cell: Cell, folder: string, servers: RunningServers, context: SweepContext): Promise<CellResult> {
  const { server, concurrency, round, load, key } = cell;
  const { target, managed } = await servers.get(server, round);
  const result = await runBench(target, load, { label: `${server.name} c${concurrency} round ${round + 1}`, ...(context.signal === undefined ? {} : { signal: context.signal }) });
  if (result.summary.failed > 0 && managed !== undefined) await untilEndedOrAnswering(managed, server.readyTimeout * 1000);
  const died = managed?.exitReason();
  if (died !== undefined) {
    servers.forget(server);
    throw new UserError(`${server.name} ended during the measurement (${died})`);
  }
  if (result.summary.failed === result.summary.requests) throw new UserError(`all ${result.summary.requests} requests failed: ${result.records[0]?.failure?.message}`);
  const conditions = localConditions();
  const raw = path.join("raw", `${server.name}.c${concurrency}.r${round + 1}.jsonl`);
  await writeRaw(path.join(folder, raw), { ...conditions, server: server.name, commandLine: managed?.commandLine, models: context.models?.(server.name), concurrency, round, load, props: await serverProps(target) }, result);
  context.note(`${server.name} c${concurrency} round ${round + 1}: ${formatFixed(result.summary.outputTokPerSec, 1)} tok/s in ${formatDuration(result.summary.wallMs)}${result.summary.failed > 0 ? `, ${result.summary.failed} failed` : ""}`);
  const { summary, drafts, counters, client, warnings } = result;
  const memory = managed === undefined ? undefined : loadedMemory(managed.pid);
  return { kind: "cell", key, server: server.name, concurrency, round, summary, drafts, counters, client, warnings, memory, commandLine: managed?.commandLine, serverStartMs: managed?.startMs, conditions, raw };
}

/** Once requests failed: the system tells of a process's end only some time after its connections broke. */
async function untilEndedOrAnswering(managed: ManagedServer, limitMs: number): Promise<void> {
  const startMs = performance.now();
  while (managed.exitReason() === undefined && performance.now() - startMs < limitMs && (await getText(`${managed.url}/health`)) === undefined) await sleep(50);
}

export function readCells(file: string): CellResult[] {
  if (!fs.existsSync(file)) return [];
  const cells: CellResult[] = [];
  for (const line of fs.readFileSync(file, "utf8").split("\n")) {
    try {
      const value = JSON.parse(line) as CellResult;
      if (value.kind === "cell") cells.push(value);
    } catch {
      // A line cut by a kill: its cell is measured again.
    }
  }
  return cells;
}

/** Which servers are up. One at a time, unless the plan's order is by cells. */
class RunningServers {
  readonly #plan: SweepPlan;
  readonly #folder: string;
  readonly #context: SweepContext;
  readonly #running = new Map<string, ManagedServer>();
  readonly #broken = new Map<string, string>();
  readonly #greeted = new Set<string>();

  constructor(plan: SweepPlan, folder: string, context: SweepContext) {
    this.#plan = plan;
    this.#folder = folder;
    this.#context = context;
  }

  async get(server: SweepServer, round: number): Promise<{ target: Target; managed: ManagedServer | undefined }> {
    const target = (baseUrl: string): Target => ({ baseUrl, model: server.model ?? server.name, apiKey: server.apiKey });
    if (server.url !== undefined) {
      if (!this.#greeted.has(server.name)) await this.#context.onReady?.(server.name, target(server.url));
      this.#greeted.add(server.name);
      return { target: target(server.url), managed: undefined };
    }
    const key = this.#plan.order === "rounds" ? `${server.name} round ${round + 1}` : server.name;
    const running = this.#running.get(key);
    if (running !== undefined) return { target: target(running.url), managed: running };
    const broken = this.#broken.get(server.name);
    if (broken !== undefined) throw new UserError(broken);
    if (this.#plan.order !== "cells") await this.stopAll();
    this.#context.note(`starting ${server.name}`);
    try {
      const managed = await startServer({
        name: server.name,
        command: server.command as string[],
        env: server.env,
        logFile: path.join(this.#folder, "logs", `${key.replaceAll(" ", "-")}.log`),
        readyTimeoutMs: server.readyTimeout * 1000,
        signal: this.#context.signal,
        noteFolder: path.join(this.#folder, "running"),
      });
      this.#running.set(key, managed);
      this.#context.note(`${server.name} is ready after ${formatDuration(managed.startMs)}`);
      await this.#context.onReady?.(server.name, target(managed.url));
      return { target: target(managed.url), managed };
    } catch (error) {
      if (error instanceof UserError) this.#broken.set(server.name, error.message);
      throw error;
    }
  }

  /** A server that has ended by itself is started again when it is needed next. */
  forget(server: SweepServer): void {
    for (const [key, managed] of this.#running) if (managed.exitReason() !== undefined && key.split(" ")[0] === server.name) this.#running.delete(key);
  }

  async stopAll(): Promise<void> {
    const servers = [...this.#running.values()];
    this.#running.clear();
    await Promise.all(servers.map((s) => s.stop()));
  }
}

/** Expects a cell to take as long as the slowest one so far at its concurrency. */
class Budget {
  readonly #limitMs: number;
  readonly #startMs = performance.now();
  readonly #expectedMs = new Map<number, number>();

  constructor(seconds: number | undefined) {
    this.#limitMs = (seconds ?? Infinity) * 1000;
  }

  hasRoom(cell: Cell): boolean {
    return performance.now() - this.#startMs + (this.#expectedMs.get(cell.concurrency) ?? 0) < this.#limitMs;
  }

  async time<T>(cell: Cell, work: () => Promise<T>): Promise<T> {
    const startMs = performance.now();
    const result = await work();
    this.#expectedMs.set(cell.concurrency, Math.max(this.#expectedMs.get(cell.concurrency) ?? 0, performance.now() - startMs));
    return result;
  }
}
