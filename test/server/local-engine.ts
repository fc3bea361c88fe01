/** An EngineLoop in this process as a ServerEngine: for tests of what has nothing to do with the process border. */
import { EngineUnavailable, type EngineEvent, type EngineSnapshot, type GenerateRequest } from "../../src/engine/request.ts";
import { InFlightRequests } from "../../src/server/in-flight.ts";
import type { ServerEngine } from "../../src/server/server-engine.ts";
import { ScriptedEngine, type ScriptedOptions } from "./scripted-engine.ts";

export class LocalEngine implements ServerEngine {
  state: ServerEngine["state"] = "ready";
  readonly stateReason = "";
  readonly counters = { nStarts: 1, nFailures: { exit: 0, hang: 0, lost: 0, load: 0 }, nRequestsLost: 0 };
  readonly #inFlight = new InFlightRequests();
  readonly #loop: ScriptedEngine;
  #isStepping = false;

  constructor(options: ScriptedOptions) {
    this.#loop = new ScriptedEngine(options, (events) => {
      for (const event of events) this.#inFlight.deliver(event);
    });
  }

  get info(): ScriptedEngine["info"] {
    return this.#loop.info;
  }

  submit(requests: readonly GenerateRequest[], onEvent: (index: number, event: EngineEvent) => void): void {
    if (this.state !== "ready") throw new EngineUnavailable("stopped", "the server is shutting down", 1000);
    for (const [index, request] of requests.entries()) {
      this.#inFlight.add(request, (event) => onEvent(index, event));
      this.#loop.submit(request);
    }
    this.#wake();
  }

  cancel(id: number): void {
    this.#loop.cancel(id);
    this.#wake();
  }

  snapshot(): EngineSnapshot {
    return this.#loop.snapshot();
  }

  async close(): Promise<void> {
    this.state = "stopped";
    this.#inFlight.failAll("the server was shut down");
    return Promise.resolve();
  }

  #wake(): void {
    if (this.#isStepping) return;
    this.#isStepping = true;
    setImmediate(() => this.#turn());
  }

  #turn(): void {
    if (this.state === "ready" && this.#loop.step()) setImmediate(() => this.#turn());
    else this.#isStepping = false;
  }
}
