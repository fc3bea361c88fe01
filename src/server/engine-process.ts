/**
 * The parent side of the process border: an EngineClient whose engine may die.
 *
 * libllama ends its process with abort() on a failed assertion, and a driver can hang it. Either ends one child:
 * requests in flight get a finish event with reason "error", new ones are refused with a time to retry, and a new
 * child is started, at once the first time and with growing pauses when it keeps failing.
 */
import type { ChildProcess } from "node:child_process";
import {
  EngineUnavailable,
  type EngineClient,
  type EngineEvent,
  type EngineInfo,
  type EngineSnapshot,
  type GenerateRequest,
} from "../engine/request.ts";
import { UserError } from "../util/errors.ts";
import { silentLogger, type Logger } from "../util/log.ts";
import { forkEngine, loadError, reasonIn } from "./engine-fork.ts";
import type { FromEngine, ToEngine } from "./engine-protocol.ts";
import { HangWatch } from "./hang-watch.ts";
import { InFlightRequests } from "./in-flight.ts";
import { addTotals, emptySnapshot, type EngineCounters, type EngineFailure, type ServerEngine } from "./server-engine.ts";

export interface EngineProcessOptions {
  /** The file that calls `hostEngine`: a URL or path, `.js` or (with tsx installed) `.ts`. */
  readonly entry: URL | string;
  /** Sent to the engine factory; plain data. */
  readonly options: unknown;
  /** Requests that may be in flight beyond the slots. */
  readonly maxQueue?: number;
  /** Without a sign of life for this long, the process counts as hung. 0: never. A long prefill is one step: be generous. */
  readonly hangMs?: number;
  /** First and longest pause before a restart that follows a failed one. */
  readonly backoffMs?: { readonly first: number; readonly longest: number };
  readonly logger?: Logger;
  /** Load progress, 0 to 1. */
  readonly onProgress?: (fraction: number, what: string) => void;
}

export interface EngineProcess extends ServerEngine {
  /** Settles with the first load. @throws {UserError} when the engine cannot be made from these options. */
  readonly ready: Promise<EngineInfo>;
  readonly pid: number | undefined;
  /** Asks the engine to compare its sequences, cells and contexts. Returns the problem, or undefined. Call it when idle. */
  checkIntegrity(): Promise<string | undefined>;
}

export function startEngineProcess(options: EngineProcessOptions): EngineProcess {
  return new ForkedEngine(options);
}

interface Settle<T> {
  resolve(value: T): void;
  reject(error: Error): void;
}

const defaults = {
  maxQueue: 512,
  hangMs: 120_000,
  backoffMs: { first: 500, longest: 30_000 },
  logger: silentLogger,
  onProgress: () => {},
};

/** A process that ran this long was healthy: its end starts the back-off anew. */
const HEALTHY_MS = 60_000;
const CLOSE_MS = 5_000;
/** Characters of the engine's last words that are kept. */
const STDERR_TAIL = 8_000;

class ForkedEngine implements EngineProcess {
  state: EngineClient["state"] = "loading";
  stateReason = "loading the model";
  info: EngineInfo | undefined;
  readonly ready: Promise<EngineInfo>;
  readonly #options: Required<EngineProcessOptions>;
  readonly #inFlight = new InFlightRequests();
  readonly #checks = new Map<number, (problem: string | undefined) => void>();
  readonly #settleReady: Settle<EngineInfo>;
  readonly #watch: HangWatch;
  readonly #counts = { nStarts: 0, nRequestsLost: 0, nFailures: { exit: 0, hang: 0, lost: 0, load: 0 } };
  #child: ChildProcess | undefined;
  #snapshot = emptySnapshot;
  #earlier = emptySnapshot;
  #readySinceMs = 0;
  #failure: { cause: EngineFailure; message: string } | undefined;
  #stderrTail = "";
  #nFailuresInRow = 0;
  #restartTimer: NodeJS.Timeout | undefined;
  #nextCheck = 1;
  #isClosing = false;

  constructor(options: EngineProcessOptions) {
    this.#options = { ...defaults, ...options };
    let settle: Settle<EngineInfo> | undefined;
    this.ready = new Promise((resolve, reject) => {
      settle = { resolve, reject };
    });
    this.#settleReady = settle as unknown as Settle<EngineInfo>;
    // Whoever does not wait for the first load sees its failure in `state`.
    this.ready.catch(() => {});
    this.#watch = new HangWatch(this.#options.hangMs, (silentMs) => this.#onHang(silentMs));
    this.#spawn();
  }

  get pid(): number | undefined {
    return this.#child?.pid;
  }

  get counters(): EngineCounters {
    return this.#counts;
  }

  snapshot(): EngineSnapshot {
    return addTotals(this.#snapshot, this.#earlier);
  }

  submit(requests: readonly GenerateRequest[], onEvent: (index: number, event: EngineEvent) => void): void {
    if (this.#isClosing) throw new EngineUnavailable("stopped", "the server is shutting down", 10_000);
    if (this.state !== "ready") throw new EngineUnavailable(this.state, this.stateReason, this.#retryAfterMs());
    const limit = (this.info?.nSlots ?? 0) + this.#options.maxQueue;
    if (this.#inFlight.size + requests.length > limit)
      throw new EngineUnavailable("queue-full", `${this.#inFlight.size} requests are running or waiting and ${requests.length} more ${requests.length === 1 ? "was" : "were"} asked for, the limit is ${limit}; try again later`, 1000);
    for (const [index, request] of requests.entries()) {
      this.#inFlight.add(request, (event) => onEvent(index, event));
      this.#send({ kind: "submit", request });
    }
  }

  cancel(id: number): void {
    if (this.#inFlight.has(id)) this.#send({ kind: "cancel", id });
  }

  async checkIntegrity(): Promise<string | undefined> {
    if (this.state !== "ready") return `the engine is ${this.state}`;
    const id = this.#nextCheck++;
    return new Promise((resolve) => {
      this.#checks.set(id, resolve);
      this.#send({ kind: "check", id });
    });
  }

  async close(graceMs: number): Promise<void> {
    this.#isClosing = true;
    clearTimeout(this.#restartTimer);
    if (this.state === "ready") await this.#inFlight.untilIdle(graceMs);
    await this.#logIntegrity();
    this.#watch.stop();
    const isLoading = this.state !== "ready";
    this.#setState("stopped", "the server is shutting down");
    // One that loads has nothing to lose and cannot hear us.
    if (isLoading) this.#child?.kill("SIGKILL");
    await this.#endChild();
    this.#inFlight.failAll("the server was shut down");
  }

  /** A last look before the end: an idle engine whose parts disagree has a bug that its next user should know. */
  async #logIntegrity(): Promise<void> {
    if (this.state !== "ready" || this.#inFlight.size > 0) return;
    const timeout = new Promise<string>((resolve) => setTimeout(() => resolve("no answer"), CLOSE_MS).unref());
    const problem = await Promise.race([this.checkIntegrity(), timeout]);
    if (problem === undefined) this.#options.logger.info("engine integrity: sequences, cells and contexts agree");
    else this.#options.logger.error("engine integrity", { problem });
  }

  async #endChild(): Promise<void> {
    const child = this.#child;
    if (child === undefined || child.exitCode !== null || child.signalCode !== null) return;
    await new Promise<void>((resolve) => {
      const timer = setTimeout(() => child.kill("SIGKILL"), CLOSE_MS);
      child.once("exit", () => {
        clearTimeout(timer);
        resolve();
      });
      this.#send({ kind: "close" });
    });
  }

  #spawn(): void {
    const { entry, options } = this.#options;
    this.#failure = undefined;
    this.#stderrTail = "";
    this.#watch.sign();
    const child = forkEngine(entry, (text) => {
      this.#stderrTail = (this.#stderrTail + text).slice(-STDERR_TAIL);
    });
    this.#child = child;
    child.on("message", (message: FromEngine) => this.#receive(message));
    child.on("error", (error) => this.#options.logger.error("engine process", { error: error.message }));
    // "close", not "exit": the last messages of the child come before it.
    child.once("close", (code, signal) => this.#onEnd(child, code, signal));
    this.#send({ kind: "start", options });
  }

  #send(message: ToEngine): void {
    // A child that is going away cannot be written to; its exit settles every request.
    if (this.#child?.connected === true) this.#child.send(message, () => {});
  }

  #receive(message: FromEngine): void {
    this.#watch.sign();
    switch (message.kind) {
      case "events":
        for (const event of message.events) this.#inFlight.deliver(event);
        return;
      case "snapshot":
        this.#snapshot = message.snapshot;
        return;
      case "alive":
        return;
      case "progress":
        if (this.state === "loading") this.stateReason = `${message.what} (${Math.floor(message.fraction * 100)}%)`;
        this.#options.onProgress(message.fraction, message.what);
        return;
      case "ready":
        this.#onReady(message);
        return;
      case "failed":
        this.#failure = { cause: "load", message: message.message };
        this.#killIfItStays();
        if (this.#counts.nStarts === 0) this.#settleReady.reject(loadError(message));
        return;
      case "lost":
        this.#failure = { cause: "lost", message: message.message };
        this.#killIfItStays();
        return;
      case "checked":
        this.#checks.get(message.id)?.(message.problem);
        this.#checks.delete(message.id);
        return;
      default:
        message satisfies never;
    }
  }

  #onReady({ info, snapshot }: Extract<FromEngine, { kind: "ready" }>): void {
    this.info = info;
    this.#snapshot = snapshot;
    this.#readySinceMs = performance.now();
    this.#counts.nStarts++;
    this.#setState("ready", "");
    this.#options.logger.info("engine ready", { loadMs: Math.round(info.loadMs), pid: this.pid, nSlots: info.nSlots });
    this.#settleReady.resolve(info);
  }

  /** A process waits for its threads when it ends, and one in a native call may never come back. */
  #killIfItStays(): void {
    const child = this.#child;
    const timer = setTimeout(() => child?.kill("SIGKILL"), CLOSE_MS);
    child?.once("exit", () => clearTimeout(timer));
  }

  #onHang(silentMs: number): void {
    // Loading is one long native call: only its end tells how it went.
    if (this.state !== "ready" || this.#failure !== undefined) return;
    this.#failure = { cause: "hang", message: `no sign of life for ${(silentMs / 1000).toFixed(1)} s` };
    this.#options.logger.error("engine hangs, killing it", { silentMs: Math.round(silentMs), pid: this.pid });
    this.#child?.kill("SIGKILL");
  }

  #onEnd(child: ChildProcess, code: number | null, signal: NodeJS.Signals | null): void {
    if (child !== this.#child || this.state === "stopped") return;
    const how = signal === null ? `exit code ${code}` : `signal ${signal}`;
    const wasReady = this.state === "ready";
    const cause = this.#failure?.cause ?? (wasReady ? "exit" : "load");
    const said = this.#failure?.message ?? reasonIn(this.#stderrTail);
    const message = `the engine process ended (${how})${said === "" ? "" : `: ${said}`}`;
    this.#counts.nFailures[cause]++;
    this.#earlier = addTotals(this.#snapshot, this.#earlier);
    this.#snapshot = emptySnapshot;
    const isHealthyEnd = wasReady && performance.now() - this.#readySinceMs >= HEALTHY_MS;
    this.#nFailuresInRow = isHealthyEnd ? 0 : this.#nFailuresInRow + 1;
    this.#failChecks(message);
    this.#options.logger.error("engine process ended", { cause, how, error: said, nRequestsLost: this.#inFlight.size });
    if (this.#counts.nStarts === 0) {
      // The first load failed: that is the user's to fix, not ours to repeat.
      this.#setState("stopped", message);
      this.#settleReady.reject(new UserError(message));
      return;
    }
    this.#setState("restarting", `${message}; restarting`);
    this.#counts.nRequestsLost += this.#inFlight.failAll(`${message}; the request is lost, send it again`);
    if (!this.#isClosing) this.#restartTimer = setTimeout(() => this.#spawn(), this.#pauseMs());
  }

  /** 0 after the first failure, then doubling. */
  #pauseMs(): number {
    const { first, longest } = this.#options.backoffMs;
    return this.#nFailuresInRow <= 1 ? 0 : Math.min(longest, first * 2 ** (this.#nFailuresInRow - 2));
  }

  #retryAfterMs(): number {
    return Math.max(1000, (this.info?.loadMs ?? 2000) + (this.state === "restarting" ? this.#pauseMs() : 0));
  }

  #setState(state: EngineClient["state"], reason: string): void {
    this.state = state;
    this.stateReason = reason;
  }

  #failChecks(problem: string): void {
    for (const resolve of this.#checks.values()) resolve(problem);
    this.#checks.clear();
  }
}
