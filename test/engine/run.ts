/** Drives an engine on the fake backend until it is idle; collects what clients would see. */
import type { EngineConfig } from "../../src/engine/config.ts";
import { defaultEngineConfig } from "../../src/engine/config.ts";
import type { EngineDependencies } from "../../src/engine/dependencies.ts";
import { Engine } from "../../src/engine/engine.ts";
import type { EngineEvent, FinishEvent } from "../../src/engine/request.ts";
import { createFakeBackend, type FakeBackend, type FakeOptions } from "../fake-backend.ts";

export interface Harness {
  readonly engine: Engine;
  readonly backend: FakeBackend;
  readonly events: EngineEvent[];
  readonly clock: { now: number };
  tokensOf(id: number): number[];
  finishOf(id: number): FinishEvent;
  runAll(maxSteps?: number): void;
}

export function harness(config: Partial<EngineConfig> = {}, fake: FakeOptions = {}, more: Partial<EngineDependencies> = {}): Harness {
  const backend = createFakeBackend({ nRollback: Math.max(4, config.nMax ?? 0), ...fake });
  const events: EngineEvent[] = [];
  const clock = { now: 0 };
  const engine = new Engine({
    backend,
    config: { ...defaultEngineConfig, ...config },
    sink: (batch) => void events.push(...batch),
    clock: () => (clock.now += 0.01),
    ...more,
  });
  return {
    engine,
    backend,
    events,
    clock,
    tokensOf: (id) => events.flatMap((e) => (e.kind === "tokens" && e.id === id ? [...e.tokens] : [])),
    finishOf: (id) => {
      const finish = events.filter((e): e is FinishEvent => e.kind === "finish" && e.id === id);
      if (finish.length !== 1) throw new Error(`request ${id} has ${finish.length} finish events`);
      return finish[0] as FinishEvent;
    },
    runAll: (maxSteps = 10_000) => {
      for (let i = 0; i < maxSteps; i++) if (!engine.step()) return;
      throw new Error(`not idle after ${maxSteps} steps`);
    },
  };
}

/** The text by the language itself, token by token. */
export function plainText(next: (history: readonly number[]) => number, prompt: readonly number[], n: number): number[] {
  const history = [...prompt];
  for (let i = 0; i < n; i++) history.push(next(history));
  return history.slice(prompt.length);
}
