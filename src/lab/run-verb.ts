/** Runs a verb of this program as a child process: its log is kept, its --json line is the result, its progress is shown. */
import { spawn } from "node:child_process";
import * as fs from "node:fs";
import * as path from "node:path";
import { quoteCommand, selfCommand } from "../bench/managed-server.ts";
import { UserError } from "../util/errors.ts";

export interface VerbRun {
  readonly exitCode: number;
  readonly result: unknown;
  readonly commandLine: string;
}

export interface VerbOptions {
  readonly logFile: string;
  readonly signal?: AbortSignal | undefined;
  /** The child's last line on stderr, as it comes. */
  readonly onLine?: (line: string) => void;
  readonly mayFail?: boolean;
}

/** @throws {UserError} with the child's own message when it fails, unless `mayFail` and it ended with exit code 1 and a result. */
export async function runVerb(words: readonly string[], options: VerbOptions): Promise<VerbRun> {
  const [program = "", ...before] = selfCommand();
  const commandLine = quoteCommand(["foretoken", ...words]);
  fs.mkdirSync(path.dirname(options.logFile), { recursive: true });
  const log = fs.createWriteStream(options.logFile);
  log.write(`$ ${commandLine}\n`);
  const child = spawn(program, [...before, ...words, "--json"], { stdio: ["ignore", "pipe", "pipe"], env: { ...process.env, FORETOKEN_PROGRESS: "plain" } });
  const killAtExit = (): void => void child.kill("SIGKILL");
  process.once("exit", killAtExit);
  const stop = (): void => {
    child.kill("SIGTERM");
    setTimeout(() => child.kill("SIGKILL"), 10_000).unref();
  };
  options.signal?.addEventListener("abort", stop, { once: true });
  const stdout: Buffer[] = [];
  let lastLine = "";
  child.stdout.on("data", (bytes: Buffer) => void (stdout.push(bytes), log.write(bytes)));
  child.stderr.on("data", (bytes: Buffer) => {
    log.write(bytes);
    const lines = bytes.toString("utf8").split(/[\r\n]+/).filter((line) => line.trim() !== "");
    lastLine = lines.at(-1) ?? lastLine;
    if (lines.length > 0) options.onLine?.(lastLine);
  });
  const exitCode = await new Promise<number>((resolve, reject) => {
    child.on("error", reject);
    child.on("close", (code, signal) => resolve(code ?? (signal === "SIGTERM" ? 143 : 137)));
  });
  process.removeListener("exit", killAtExit);
  options.signal?.removeEventListener("abort", stop);
  await new Promise<void>((resolve) => log.end(resolve));
  options.signal?.throwIfAborted();
  const result = lastJson(Buffer.concat(stdout).toString("utf8"));
  if (exitCode !== 0 && !(options.mayFail === true && exitCode === 1 && result !== undefined))
    throw new UserError(`${commandLine} failed (exit ${exitCode}): ${lastLine.replace(/^foretoken: /, "")}; log ${options.logFile}`);
  return { exitCode, result, commandLine };
}

function lastJson(text: string): unknown {
  const line = text.split("\n").findLast((l) => l.trim() !== "");
  try {
    return line === undefined ? undefined : (JSON.parse(line) as unknown);
  } catch {
    return undefined;
  }
}
