/** The log of a run: one event a line, in `train.jsonl` of the output folder. */
import * as fs from "node:fs";
import * as path from "node:path";
import type { TrainEvent } from "./train-options.ts";

export const trainLogFile = (output: string): string => path.join(output, "train.jsonl");

export function readTrainLog(output: string): TrainEvent[] {
  const file = trainLogFile(output);
  if (!fs.existsSync(file)) return [];
  return fs
    .readFileSync(file, "utf8")
    .split("\n")
    .flatMap((line) => {
      // A kill may have cut the last line.
      try {
        return line === "" ? [] : [JSON.parse(line) as TrainEvent];
      } catch {
        return [];
      }
    });
}

/** Appends events; when a run goes on from a snapshot, what was logged after that snapshot is dropped. */
export class TrainLog {
  readonly #output: string;
  readonly #isResumed: boolean;
  #isOpen = false;

  constructor(output: string, isResumed: boolean) {
    this.#output = output;
    this.#isResumed = isResumed;
    fs.mkdirSync(output, { recursive: true });
  }

  write(event: TrainEvent): void {
    const file = trainLogFile(this.#output);
    if (event.event === "start" && this.#isResumed) {
      const kept = readTrainLog(this.#output).filter((e) => !("step" in e) || e.step <= event.resumedAt).filter((e) => e.event !== "end");
      fs.writeFileSync(file, kept.map((e) => `${JSON.stringify(e)}\n`).join(""));
    } else if (!this.#isOpen && !this.#isResumed) fs.writeFileSync(file, "");
    this.#isOpen = true;
    fs.appendFileSync(file, `${JSON.stringify(event)}\n`);
  }
}
