import type { EngineEvent, EngineInfo, EngineSnapshot, GenerateRequest } from "./request.ts";

/**
 * The engine as its host process drives it: submit and cancel between steps, `step` while it returns true.
 * Events leave through the sink that the engine was made with, one array a step, after the next decode is launched
 * where the device runs asynchronously.
 */
export interface EngineLoop {
  readonly info: EngineInfo;
  /** Queues a request; false when the queue is full. A request that cannot run gets a finish event with reason "error". */
  submit(request: GenerateRequest): boolean;
  cancel(id: number): void;
  /** One engine step. False: nothing to do until the next submit. Throws only when the backend is lost. */
  step(): boolean;
  snapshot(): EngineSnapshot;
  /** Throws when sequences, cells and contexts disagree. Call it when idle. */
  checkIntegrity(): void;
  close(): void;
}

export type EventSink = (events: readonly EngineEvent[]) => void;
