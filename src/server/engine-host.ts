/**
 * The engine's side of the process or thread border: owns an EngineLoop, feeds it messages, sends back one message a step.
 *
 * A step is synchronous and may last long (a prefill): submits and cancels that arrived in the meantime take effect at
 * the next one. A process reads them by returning to the event loop after each step, a thread asks its port and returns
 * now and then only.
 */
import { parentPort, receiveMessageOnPort } from "node:worker_threads";
import type { EngineLoop, EventSink } from "../engine/loop.ts";
import { UserError, errorMessage } from "../util/errors.ts";
import { EXIT_LOST, type FromEngine, type ToEngine } from "./engine-protocol.ts";

export const SNAPSHOT_INTERVAL_MS = 100;
export const HEARTBEAT_INTERVAL_MS = 500;
/** Longest time without a turn of the event loop (timers, the trace's file) where messages come without one. */
const TURN_MS = 50;

export interface HostHooks {
  /** Give this to the engine as its sink. */
  readonly sink: EventSink;
  /** Load progress, 0 to 1. May be called from inside a native call. */
  readonly progress: (fraction: number, what: string) => void;
}

/** Makes the engine from the options that the parent sent. Throws UserError when that cannot work. */
export type EngineFactory = (options: unknown, hooks: HostHooks) => EngineLoop | Promise<EngineLoop>;

/** Where messages come from and go to: the parent process, or the thread that started this one. */
export interface HostPort {
  listen(onMessage: (message: ToEngine) => void): void;
  /** `then` runs once the message is on its way. */
  send(message: FromEngine, then?: () => void): void;
  /** The next message that waits, where that can be asked without a turn of the event loop. */
  readonly poll?: () => ToEngine | undefined;
}

/** The port to `startEngineProcess`, which must have forked this process. The process ends when its parent goes away. */
export function processPort(): HostPort {
  if (process.send === undefined) throw new UserError("the engine process is started by `foretoken serve`, not by hand");
  // A terminal sends Ctrl-C to the whole group, a service manager SIGTERM: the parent drains, then closes us.
  process.on("SIGINT", () => {}).on("SIGTERM", () => {});
  process.on("disconnect", () => process.exit(0));
  return {
    listen: (onMessage) => void process.on("message", onMessage),
    send: (message, then) => {
      // A parent that is gone is noticed through "disconnect".
      if (process.connected) process.send?.(message, undefined, undefined, () => then?.());
    },
  };
}

/** The port to the thread that started this worker. */
export function threadPort(): HostPort {
  if (parentPort === null) throw new Error("threadPort: this is no worker thread");
  const port = parentPort;
  return {
    listen: (onMessage) => void port.on("message", onMessage),
    send: (message, then) => {
      port.postMessage(message);
      if (then !== undefined) setImmediate(then);
    },
    poll: () => receiveMessageOnPort(port)?.message,
  };
}

/** Runs an engine here. Returns at once; the process or thread ends when the other side says so. */
export function hostEngine(create: EngineFactory, port = processPort()): void {
  port.listen(receiveForEngine(create, port));
}

/** What `hostEngine` does with the messages of its port. */
export function receiveForEngine(create: EngineFactory, port: HostPort): (message: ToEngine) => void {
  const host = new EngineHost(create, port);
  return (message) => host.receive(message);
}

class EngineHost {
  readonly #create: EngineFactory;
  readonly #port: HostPort;
  #loop: EngineLoop | undefined;
  #isStepping = false;
  #lastSnapshotMs = 0;

  constructor(create: EngineFactory, port: HostPort) {
    this.#create = create;
    this.#port = port;
  }

  receive(message: ToEngine): void {
    switch (message.kind) {
      case "start":
        void this.#start(message.options);
        return;
      case "submit":
        this.#submit(message.request);
        return;
      case "cancel":
        this.#loop?.cancel(message.id);
        this.#wake();
        return;
      case "check":
        this.#check(message.id);
        return;
      case "close":
        this.#loop?.close();
        process.exit(0);
        break;
      default:
        message satisfies never;
    }
  }

  async #start(options: unknown): Promise<void> {
    try {
      const loop = await this.#create(options, {
        sink: (events) => {
          if (events.length > 0) this.#port.send({ kind: "events", events });
        },
        progress: (fraction, what) => this.#port.send({ kind: "progress", fraction, what }),
      });
      this.#loop = loop;
      this.#port.send({ kind: "ready", info: loop.info, snapshot: loop.snapshot() });
      setInterval(() => this.#port.send({ kind: "alive" }), HEARTBEAT_INTERVAL_MS);
    } catch (error) {
      const isUserError = error instanceof UserError;
      const message = isUserError ? error.message : ((error instanceof Error ? error.stack : undefined) ?? String(error));
      this.#port.send({ kind: "failed", message, isUserError, exitCode: isUserError ? error.exitCode : 1 }, () => process.exit(1));
    }
  }

  #submit(request: Extract<ToEngine, { kind: "submit" }>["request"]): void {
    if (this.#loop?.submit(request) === false) this.#port.send({ kind: "events", events: [refusal(request.id, request.prompt.length)] });
    this.#wake();
  }

  #wake(): void {
    if (this.#isStepping || this.#loop === undefined) return;
    this.#isStepping = true;
    setImmediate(() => this.#turn(this.#loop as EngineLoop));
  }

  #turn(loop: EngineLoop): void {
    const { poll } = this.#port;
    const untilMs = performance.now() + TURN_MS;
    let hasMore: boolean;
    let nowMs: number;
    do {
      try {
        hasMore = loop.step();
      } catch (error) {
        this.#port.send({ kind: "lost", message: errorMessage(error) }, () => process.exit(EXIT_LOST));
        return;
      }
      nowMs = performance.now();
      if (!hasMore || nowMs - this.#lastSnapshotMs >= SNAPSHOT_INTERVAL_MS) {
        this.#lastSnapshotMs = nowMs;
        this.#port.send({ kind: "snapshot", snapshot: loop.snapshot() });
      }
      if (poll === undefined) break;
      for (let message = poll(); message !== undefined; message = poll()) {
        this.receive(message);
        hasMore = true;
      }
    } while (hasMore && nowMs < untilMs);
    if (hasMore) setImmediate(() => this.#turn(loop));
    else this.#isStepping = false;
  }

  #check(id: number): void {
    let problem: string | undefined;
    try {
      this.#loop?.checkIntegrity();
    } catch (error) {
      problem = errorMessage(error);
    }
    this.#port.send({ kind: "checked", id, problem });
  }
}

function refusal(id: number, nPrompt: number): Extract<FromEngine, { kind: "events" }>["events"][number] {
  return {
    kind: "finish",
    id,
    reason: "error",
    message: "the engine's queue is full",
    usage: { nPrompt, nCached: 0, nOutput: 0 },
    draft: { nDrafts: 0, nDrafted: 0, nAccepted: 0, acceptedAt: [], reachedAt: [] },
    timings: { queueMs: 0, prefillMs: 0, decodeMs: 0 },
  };
}
