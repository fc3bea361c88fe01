/**
 * Work that may abort its process, done in a child. libllama ends the process on a failed assertion; in a child that is
 * one line of an error. A child answers one call after the other, and ends with its parent.
 */
import { fork, type ChildProcess } from "node:child_process";
import { createRequire } from "node:module";
import * as path from "node:path";
import { fileURLToPath } from "node:url";
import { UserError, errorMessage } from "../util/errors.ts";

export interface ChildOptions {
  /** File name beside this one, without extension; it calls `serveChild`. */
  readonly entry: string;
  /** What runs, for messages: "quantize". */
  readonly what: string;
  readonly signal?: AbortSignal | undefined;
  /** What the child gets when `signal` is aborted; one that it handles lets it finish what it keeps. */
  readonly stopSignal?: NodeJS.Signals;
}

interface Note {
  readonly note: string;
}
type Answer = { readonly result: unknown } | { readonly error: string; readonly isUserError: boolean; readonly stack?: string };

interface PendingCall {
  readonly onNote: (note: string) => void;
  resolve(result: unknown): void;
  reject(error: unknown): void;
}

export class WorkChild implements Disposable {
  readonly #child: ChildProcess;
  readonly #options: ChildOptions;
  readonly #stop = (): void => void this.#child.kill(this.#options.stopSignal ?? "SIGKILL");
  #pending: PendingCall | undefined;
  #stderrTail = "";

  constructor(options: ChildOptions) {
    options.signal?.throwIfAborted();
    this.#options = options;
    const here = fileURLToPath(import.meta.url);
    const file = path.join(path.dirname(here), `${options.entry}${path.extname(here)}`);
    // Without this, ggml starts a debugger on itself before it aborts.
    const env = { ...process.env, GGML_NO_BACKTRACE: "1" };
    this.#child = fork(file, [], { stdio: ["ignore", "ignore", "pipe", "ipc"], serialization: "advanced", execArgv: execArgvFor(file), env });
    this.#child.stderr?.setEncoding("utf8").on("data", (text: string) => (this.#stderrTail = (this.#stderrTail + text).slice(-20_000)));
    this.#child.on("message", (message) => this.#receive(message as Note | Answer));
    this.#child.once("error", (error) => this.#settle((call) => call.reject(error)));
    this.#child.once("close", (code, signal) => this.#settle((call) => call.reject(this.#deathOf(code, signal))));
    options.signal?.addEventListener("abort", this.#stop, { once: true });
  }

  /**
   * One call at a time.
   * @throws {UserError} what the child threw as one, the reason of the signal, or how the child died.
   */
  call<Request extends object, Result>(request: Request, onNote: (note: string) => void = () => {}): Promise<Result> {
    this.#options.signal?.throwIfAborted();
    if (this.#pending !== undefined) throw new Error(`${this.#options.what}: a call is running`);
    return new Promise<Result>((resolve, reject) => {
      this.#pending = { onNote, resolve: (result) => resolve(result as Result), reject };
      this.#child.send(request, (error) => (error === null ? undefined : this.#settle((call) => call.reject(error))));
    });
  }

  #receive(message: Note | Answer): void {
    if ("note" in message) this.#pending?.onNote(message.note);
    else if ("result" in message) this.#settle((call) => call.resolve(message.result));
    else this.#settle((call) => call.reject(message.isUserError ? new UserError(message.error) : new Error(`${this.#options.what}: ${message.error}`, { cause: message.stack })));
  }

  #settle(how: (call: PendingCall) => void): void {
    const call = this.#pending;
    this.#pending = undefined;
    if (call !== undefined) how(call);
  }

  #deathOf(code: number | null, signal: string | null): unknown {
    if (this.#options.signal?.aborted === true) return this.#options.signal.reason;
    return new UserError(`${this.#options.what} died in libllama: ${reasonOfDeath(this.#stderrTail.split(/\r?\n/), code, signal)}`);
  }

  close(): void {
    this.#options.signal?.removeEventListener("abort", this.#stop);
    this.#child.kill("SIGKILL");
  }

  [Symbol.dispose](): void {
    this.close();
  }
}

export interface ChildRun<Request> extends ChildOptions {
  readonly request: Request;
  /** Every note the child sends while it works. */
  readonly onNote?: (note: string) => void;
}

/** A child for one call. An aborted signal is thrown also when the child still answered. */
export async function runInChild<Request extends object, Result>(run: ChildRun<Request>): Promise<Result> {
  using child = new WorkChild(run);
  const result = await child.call<Request, Result>(run.request, run.onNote);
  run.signal?.throwIfAborted();
  return result;
}

/** The assertion or error that libllama printed last, else how the process ended. */
export function reasonOfDeath(lines: readonly string[], exitCode: number | null, signal: string | null): string {
  const assertion = lines.findLast((line) => /GGML_ASSERT|GGML_ABORT|fatal error|terminate called|what\(\):|out of memory|bad_alloc/i.test(line));
  const ending = signal === "SIGKILL" ? "it was killed; the machine may be out of memory" : signal !== null ? `signal ${signal}` : `exit code ${exitCode}`;
  return assertion === undefined ? ending : `${assertion.trim().replace(/^.*[\\/](?=[\w-]+\.(?:c|cpp|h|cu):)/, "")} (${ending})`;
}

function execArgvFor(file: string): string[] {
  // A program given with --eval is not the child's: it would run again in every child, without end.
  const isEvalText = (i: number): boolean => /^(-e|-p|-pe|--eval|--print)$/.test(process.execArgv[i - 1] ?? "");
  const inherited = process.execArgv.filter((argument, i) => !/^(--(inspect|cpu-prof|heap-prof|eval|print|input-type)|-e$|-p$|-pe$)/.test(argument) && !isEvalText(i));
  if (!file.endsWith(".ts") || inherited.some((argument) => argument.includes("tsx"))) return inherited;
  return [...inherited, "--import", createRequire(import.meta.url).resolve("tsx")];
}

/** The child's side. `work` should not block the event loop, so that the child can end with its parent. */
export function serveChild<Request, Result>(work: (request: Request, note: (text: string) => void) => Promise<Result> | Result): void {
  process.once("disconnect", () => process.exit(1));
  const answer = async (request: Request): Promise<Answer> => {
    try {
      return { result: await work(request, (text) => process.send?.({ note: text })) };
    } catch (error) {
      return { error: errorMessage(error), isUserError: error instanceof UserError, ...(error instanceof Error && error.stack !== undefined ? { stack: error.stack } : {}) };
    }
  };
  process.on("message", (request) => void answer(request as Request).then((message) => process.send?.(message)));
}
