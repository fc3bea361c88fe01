/**
 * A server started by command line for a measurement: free port, log file, wait for /health, and an end that leaves no
 * process behind. Works for any program; `{port}` and other `{names}` in its arguments are filled in.
 */
import { spawn, type ChildProcess } from "node:child_process";
import * as fs from "node:fs";
import * as net from "node:net";
import { createRequire } from "node:module";
import * as path from "node:path";
import { setTimeout as sleep } from "node:timers/promises";
import { fileURLToPath, pathToFileURL } from "node:url";
import { UserError, usageError } from "../util/errors.ts";
import { getText } from "./http.ts";
import { forgetServer, noteServer } from "./leftovers.ts";

export interface ServerCommand {
  readonly name: string;
  /** Program and arguments. The program `foretoken` is this very program. */
  readonly command: readonly string[];
  readonly env?: Readonly<Record<string, string>> | undefined;
  readonly logFile: string;
  readonly readyTimeoutMs: number;
  readonly signal?: AbortSignal | undefined;
  /** Where a note of the running server is kept, so that the next run can end it when this one is killed. */
  readonly noteFolder?: string;
}

export interface ManagedServer {
  readonly url: string;
  readonly pid: number;
  /** From spawn to the first 200 of /health. */
  readonly startMs: number;
  /** What was run, for reports and for repeating it by hand. */
  readonly commandLine: string;
  /** Why the process ended, once it has. */
  exitReason(): string | undefined;
  stop(): Promise<void>;
}

/** "serve -m 'a b.gguf'" -> ["serve", "-m", "a b.gguf"]: blanks, quotes and backslashes, no expansion. */
export function splitCommand(text: string): string[] {
  const words = [...text.matchAll(/(?:[^\s"'\\]|\\[\s\S]|"(?:[^"\\]|\\[\s\S])*"|'[^']*')+/g)].map((m) => m[0]);
  return words.map((word) => word.replace(/"((?:[^"\\]|\\[\s\S])*)"|'([^']*)'|\\([\s\S])/g, (_, double: string | undefined, single: string | undefined, escaped: string | undefined) => double?.replace(/\\([\s\S])/g, "$1") ?? single ?? escaped ?? ""));
}

/** @throws {UserError} for a name that has no value. */
export function fillIn(text: string, values: Readonly<Record<string, string>>): string {
  return text.replace(/\{(\w+)\}/g, (_, name: string) => {
    const value = values[name];
    if (value === undefined) throw usageError(`"${text}" names {${name}}, which is not set; give it under vars or with --set ${name}=VALUE`);
    return value;
  });
}

/** How to run this program again: the build, or from source through tsx. */
export function selfCommand(): string[] {
  const isSource = import.meta.url.endsWith(".ts");
  const cli = fileURLToPath(new URL(isSource ? "../cli.ts" : "../cli.js", import.meta.url));
  return [process.execPath, ...(isSource ? ["--import", pathToFileURL(createRequire(import.meta.url).resolve("tsx/esm")).href] : []), cli];
}

export function quoteCommand(words: readonly string[]): string {
  return words.map((word) => (/^[\w@%+=:,./-]+$/.test(word) ? word : `'${word.replaceAll("'", `'\\''`)}'`)).join(" ");
}

export async function freePort(): Promise<number> {
  const server = net.createServer();
  await new Promise<void>((resolve) => server.listen(0, "127.0.0.1", resolve));
  const { port } = server.address() as net.AddressInfo;
  await new Promise((resolve) => server.close(resolve));
  return port;
}

/** What must not outlive this process: one listener for all, however many servers a sweep keeps up. */
const running = new Set<ChildProcess>();

function killAll(): void {
  for (const child of running) killGroup(child, "SIGKILL");
}

/** @throws {UserError} when the program cannot start, ends before it is ready, or is not ready in time; with the end of its log. */
export async function startServer(options: ServerCommand): Promise<ManagedServer> {
  const port = await freePort();
  const words = options.command.map((word) => fillIn(word, { port: String(port) }));
  const [program = "", ...args] = words[0] === "foretoken" ? [...selfCommand(), ...words.slice(1)] : words;
  fs.mkdirSync(path.dirname(options.logFile), { recursive: true });
  const log = fs.openSync(options.logFile, "w");
  const startMs = performance.now();
  const child = spawn(program, args, { stdio: ["ignore", log, log], detached: process.platform !== "win32", env: { ...process.env, ...options.env } });
  fs.closeSync(log);
  const { pid } = child;
  if (options.noteFolder !== undefined && pid !== undefined) noteServer(options.noteFolder, { pid, mark: String(port) });
  let reason: string | undefined;
  child.on("error", (error) => (reason = error.message));
  child.on("exit", (code, signal) => (reason ??= signal === null ? `exit code ${code}` : `signal ${signal}`));
  running.add(child);
  if (running.size === 1) process.once("exit", killAll);
  const stop = async (): Promise<void> => {
    await stopChild(child, () => reason !== undefined);
    if (options.noteFolder !== undefined && pid !== undefined) forgetServer(options.noteFolder, pid);
    running.delete(child);
    if (running.size === 0) process.removeListener("exit", killAll);
  };
  const url = `http://127.0.0.1:${port}`;
  const fail = async (message: string): Promise<never> => {
    await stop();
    throw new UserError(`${options.name}: ${message}; log ${options.logFile}${lastLine(options.logFile)}`);
  };
  while ((await getText(`${url}/health`, { timeoutMs: 2000 })) === undefined) {
    if (reason !== undefined) return fail(`${quoteCommand(words)} ended before it was ready (${reason})`);
    if (performance.now() - startMs > options.readyTimeoutMs) return fail(`not ready after ${options.readyTimeoutMs / 1000} s`);
    if (options.signal?.aborted === true) {
      await stop();
      options.signal.throwIfAborted();
    }
    await sleep(50);
  }
  return { url, pid: child.pid ?? 0, startMs: performance.now() - startMs, commandLine: quoteCommand(words), exitReason: () => reason, stop };
}

function killGroup(child: ChildProcess, signal: NodeJS.Signals): void {
  if (child.pid === undefined) return;
  try {
    if (process.platform === "win32") child.kill(signal);
    else process.kill(-child.pid, signal);
  } catch {
    // Already gone.
  }
}

async function stopChild(child: ChildProcess, hasEnded: () => boolean): Promise<void> {
  child.kill("SIGTERM");
  for (let i = 0; i < 100 && !hasEnded(); i++) await sleep(100);
  // Also what the server itself left in its process group.
  killGroup(child, "SIGKILL");
  for (let i = 0; i < 50 && !hasEnded(); i++) await sleep(20);
}

function lastLine(file: string): string {
  const lines = fs.readFileSync(file, "utf8").split("\n").filter((line) => line.trim() !== "");
  return lines.length === 0 ? " (empty)" : `, which ends: ${lines.at(-1)?.slice(0, 300)}`;
}
