/** Entry of the engine process: libllama, and one engine here or several in threads, serving the parent. */
import { SHARE_ENV } from "node:worker_threads";
import type { EngineOptions } from "../config/engine-options.ts";
import { loadShared, openEngine } from "../llama/open-engine.ts";
import { receiveForGroups, type EngineThread, type GroupHooks } from "../server/engine-groups.ts";
import { processPort, receiveForEngine, type EngineFactory } from "../server/engine-host.ts";
import type { ToEngine } from "../server/engine-protocol.ts";
import { barrierMemory } from "../util/barrier.ts";
import { startWorker } from "../util/start-worker.ts";
import type { EngineWorkerData } from "./engine-worker.ts";
import { groupOptions } from "./group-options.ts";
import { traceFile } from "./trace-file.ts";

/** What `serve` sends with the start message. */
export interface EngineStart {
  readonly engine: EngineOptions;
  readonly maxQueue: number;
  /** Groups of slots that decode at the same time, each an engine in a thread of its own. */
  readonly nGroups: number;
  /** Milliseconds without a sign of life after which a group counts as hung; 0: never. */
  readonly hangMs: number;
}

const port = processPort();
let receive: ((message: ToEngine) => void) | undefined;
port.listen((message) => {
  if (message.kind === "start") receive = (message.options as EngineStart).nGroups > 1 ? receiveForGroups(groupHooks, port) : receiveForEngine(openOne, port);
  receive?.(message);
});

const openOne: EngineFactory = (options, { sink, progress }) => {
  const { engine, maxQueue } = options as EngineStart;
  const trace = engine.trace === undefined ? undefined : traceFile(engine.trace);
  return openEngine(engine, { sink, progress, maxQueue, ...(trace === undefined ? {} : { trace }) }).engine;
};

const groupHooks: GroupHooks = {
  open: (options, progress) => {
    const { engine, nGroups, ...rest } = options as EngineStart;
    const shared = loadShared(engine, progress);
    const barrier = barrierMemory(nGroups);
    const threads = Array.from({ length: nGroups }, (_, group) => startThread({ group, nLeastSlots: Math.floor(engine.parallel / nGroups), models: shared.models, barrier }));
    return { threads, optionsOf: (group) => ({ ...rest, nGroups, engine: groupOptions(engine, nGroups, group) }), hangMs: rest.hangMs, loadedBytes: shared.loadedBytes, close: () => shared.close() };
  },
  exit: (code) => process.exit(code),
};

function startThread(workerData: EngineWorkerData): EngineThread {
  // libllama reads the environment itself: what a thread sets there must be the process's.
  const worker = startWorker(new URL(import.meta.url.endsWith(".ts") ? "./engine-worker.ts" : "./engine-worker.js", import.meta.url), { workerData, env: SHARE_ENV });
  return {
    send: (message) => worker.postMessage(message, []),
    listen: (onMessage, onEnd) => {
      let reason: string | undefined;
      worker.on("message", onMessage);
      worker.on("error", (error: Error) => (reason = error.stack ?? error.message));
      worker.on("exit", (code) => onEnd(reason ?? `the thread of group ${workerData.group} ended with ${code}`));
    },
  };
}
