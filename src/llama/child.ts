/**
 * Work that may abort its process, done in a child. libllama ends the process on a failed assertion; in a child that is
 * one line of an error. The child serves one request, sends one answer, and ends with its parent.
 */
import { fork } from "node:child_process";
import { createRequire } from "node:module";
import * as path from "node:path";
import { fileURLToPath } from "node:url";
import { UserError, errorMessage } from "../util/errors.ts";

export interface ChildRun<Request> {
  /** File name beside this one, without extension; it calls `serveChild`. */
  readonly entry: string;
  readonly request: Request;
  /** What runs, for messages: "quantize". */
  readonly what: string;
  /** Every note the child sends while it works. */
  readonly onNote?: (note: string) => void;
  readonly signal?: AbortSignal | undefined;
  /** What the child gets when `signal` is aborted; one that it handles lets it finish what it keeps. */
  readonly stopSignal?: NodeJS.Signals;
}

interface Note {
  readonly note: string;
}
type Answer<Result> = { readonly result: Result } | { readonly error: string; readonly isUserError: boolean; readonly stack?: string };

/**
 * Runs the child and returns its answer.
 * @throws {UserError} what the child threw as one, the reason of the signal, or how the child died.
 */
export async function runInChild<Request, Result>(run: ChildRun<Request>): Promise<Result> {
  run.signal?.throwIfAborted();
  const here = fileURLToPath(import.meta.url);
  const file = path.join(path.dirname(here), `${run.entry}${path.extname(here)}`);
  const child = fork(file, [], { stdio: ["ignore", "ignore", "pipe", "ipc"], serialization: "advanced", execArgv: execArgvFor(file) });
  const stop = (): void => void child.kill(run.stopSignal ?? "SIGKILL");
  run.signal?.addEventListener("abort", stop, { once: true });
  let tail = "";
  child.stderr?.setEncoding("utf8").on("data", (text: string) => (tail = (tail + text).slice(-20_000)));
  try {
    const answer = await new Promise<Answer<Result> | undefined>((resolve, reject) => {
      let received: Answer<Result> | undefined;
      child.on("message", (message) => {
        if ("note" in (message as object)) run.onNote?.((message as Note).note);
        else received = message as Answer<Result>;
      });
      child.once("error", reject);
      child.once("close", () => resolve(received));
      child.send(run.request as object);
    });
    run.signal?.throwIfAborted();
    if (answer === undefined) throw new UserError(`${run.what} died in libllama: ${reasonOfDeath(tail.split(/\r?\n/), child.exitCode, child.signalCode)}`);
    if ("result" in answer) return answer.result;
    if (answer.isUserError) throw new UserError(answer.error);
    throw new Error(`${run.what}: ${answer.error}`, { cause: answer.stack });
  } finally {
    run.signal?.removeEventListener("abort", stop);
    if (child.exitCode === null) child.kill("SIGKILL");
  }
}

/** The assertion or error that libllama printed last, else how the process ended. */
export function reasonOfDeath(lines: readonly string[], exitCode: number | null, signal: string | null): string {
  const assertion = lines.findLast((line) => /GGML_ASSERT|GGML_ABORT|fatal error|terminate called|what\(\):|out of memory|bad_alloc/i.test(line));
  const ending = signal === "SIGKILL" ? "it was killed; the machine may be out of memory" : signal !== null ? `signal ${signal}` : `exit code ${exitCode}`;
  return assertion === undefined ? ending : `${assertion.trim().replace(/^.*[\\/](?=[\w-]+\.(?:c|cpp|h|cu):)/, "")} (${ending})`;
}

function execArgvFor(file: string): string[] {
  const inherited = process.execArgv.filter((argument) => !/^--(inspect|cpu-prof|heap-prof)/.test(argument));
  if (!file.endsWith(".ts") || inherited.some((argument) => argument.includes("tsx"))) return inherited;
  return [...inherited, "--import", createRequire(import.meta.url).resolve("tsx")];
}

/** The child's side. `work` should not block the event loop, so that the child can end with its parent. */
export function serveChild<Request, Result>(work: (request: Request, note: (text: string) => void) => Promise<Result> | Result): void {
  process.once("disconnect", () => process.exit(1));
  process.once("message", (request) => {
    void (async () => {
      let answer: Answer<Result>;
      try {
        answer = { result: await work(request as Request, (text) => process.send?.({ note: text })) };
      } catch (error) {
        answer = { error: errorMessage(error), isUserError: error instanceof UserError, ...(error instanceof Error && error.stack !== undefined ? { stack: error.stack } : {}) };
      }
      process.send?.(answer, () => process.exit(0));
    })();
  });
}
