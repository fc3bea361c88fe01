/** Entry of one group's thread: an engine on models that the engine process has loaded. */
import { workerData } from "node:worker_threads";
import { openEngine } from "../llama/open-engine.ts";
import type { SharedModels } from "../llama/backend.ts";
import { hostEngine, threadPort } from "../server/engine-host.ts";
import { Barrier, type BarrierMemory } from "../util/barrier.ts";
import type { EngineStart } from "./engine-child.ts";
import { traceFile } from "./trace-file.ts";

export interface EngineWorkerData {
  readonly group: number;
  readonly nLeastSlots: number;
  readonly models: SharedModels;
  readonly barrier: BarrierMemory;
}

const { group, nLeastSlots, models, barrier } = workerData as EngineWorkerData;
hostEngine((options, { sink, progress }) => {
  const { engine, maxQueue } = options as EngineStart;
  const trace = engine.trace === undefined ? undefined : traceFile(engine.trace);
  return openEngine(engine, { sink, progress, maxQueue, group: { nGroups: barrier.size, nLeastSlots, models, barrier: new Barrier(barrier, group) }, ...(trace === undefined ? {} : { trace }) }).engine;
}, threadPort());
