/** Entry of the engine process: libllama, the engine, and the loop that serves the parent. */
import * as fs from "node:fs";
import type { EngineOptions } from "../config/engine-options.ts";
import type { StepRecord } from "../engine/trace.ts";
import { openEngine } from "../llama/open-engine.ts";
import { hostEngine } from "../server/engine-host.ts";

/** What `serve` sends with the start message. */
export interface EngineStart {
  readonly engine: EngineOptions;
  readonly maxQueue: number;
}

hostEngine((options, { sink, progress }) => {
  const { engine: engineOptions, maxQueue } = options as EngineStart;
  const trace = engineOptions.trace === undefined ? undefined : traceFile(engineOptions.trace);
  return openEngine(engineOptions, { sink, progress, maxQueue, ...(trace === undefined ? {} : { trace }) }).engine;
});

/** JSON lines, written in pieces so that a step waits for the disk at most now and then. */
function traceFile(file: string): (record: StepRecord) => void {
  const fd = fs.openSync(file, "w");
  let pending: string[] = [];
  const write = (): void => {
    if (pending.length > 0) fs.writeSync(fd, pending.join(""));
    pending = [];
  };
  process.on("exit", write);
  setInterval(write, 1000).unref();
  return (record) => {
    pending.push(`${JSON.stringify(record)}\n`);
    if (pending.length >= 256) write();
  };
}
