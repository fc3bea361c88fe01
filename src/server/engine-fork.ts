/** Starts the engine's process, and finds in what it printed why it ended. */
import { fork, type ChildProcess } from "node:child_process";
import { createRequire } from "node:module";
import { fileURLToPath } from "node:url";
import { UserError } from "../util/errors.ts";
import type { FromEngine } from "./engine-protocol.ts";

/**
 * stdout carries results of the command line, so what native libraries print goes to stderr; `onText` gets a copy.
 * Messages are structured clones: typed arrays cross as they are. ggml would start a debugger before it aborts.
 */
export function forkEngine(entry: URL | string, onText: (text: string) => void): ChildProcess {
  const file = entry instanceof URL ? fileURLToPath(entry) : entry;
  const child = fork(file, [], { serialization: "advanced", execArgv: execArgvFor(file), stdio: ["ignore", 2, "pipe", "ipc"], env: { GGML_NO_BACKTRACE: "1", ...process.env } });
  child.stderr?.on("data", (text: Buffer) => {
    process.stderr.write(text);
    onText(text.toString());
  });
  return child;
}

/** A TypeScript entry needs tsx in the child, also when this process was started without it (vitest). */
function execArgvFor(file: string): string[] {
  // A program given with --eval is not the child's: it would run again in every child, without end.
  const isEvalText = (i: number): boolean => /^(-e|-p|-pe|--eval|--print)$/.test(process.execArgv[i - 1] ?? "");
  const inherited = process.execArgv.filter((argument, i) => !/^(--(inspect|cpu-prof|heap-prof|eval|print|input-type)|-e$|-p$|-pe$)/.test(argument) && !isEvalText(i));
  if (!file.endsWith(".ts") || inherited.some((argument) => argument.includes("tsx"))) return inherited;
  return [...inherited, "--import", createRequire(import.meta.url).resolve("tsx")];
}

/** The line that says why: an assertion or error of ggml, CUDA or Node before the backtrace; else the last one. */
export function reasonIn(text: string): string {
  const lines = text.split("\n").map((line) => line.trim()).filter((line) => line !== "");
  return lines.findLast((line) => /GGML_ASSERT|GGML_ABORT|CUDA error|terminate called|what\(\):|\b\w*Error:|out of memory/i.test(line)) ?? lines.at(-1) ?? "";
}

/** What the first load failed with: the user's to fix when the engine said so, else a bug. */
export function loadError(message: Extract<FromEngine, { kind: "failed" }>): Error {
  return message.isUserError ? new UserError(message.message, { exitCode: message.exitCode }) : new Error(message.message);
}
