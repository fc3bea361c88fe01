import * as fs from "node:fs";
import type { StepRecord } from "../engine/trace.ts";

/** JSON lines, written in pieces so that a step waits for the disk at most now and then. */
export function traceFile(file: string): (record: StepRecord) => void {
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
