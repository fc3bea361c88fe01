import { afterEach, describe, expect, test } from "vitest";
import { EngineUnavailable, type EngineEvent, type FinishEvent, type GenerateRequest } from "../../src/engine/request.ts";
import { startEngineProcess, type EngineProcess, type EngineProcessOptions } from "../../src/server/engine-process.ts";
import { textOf } from "./byte-tokenizer.ts";
import { scriptRequest, type ScriptedOptions } from "./scripted-engine.ts";

const engines: EngineProcess[] = [];
function start(scripted: ScriptedOptions & { fail?: string } = {}, options: Partial<EngineProcessOptions> = {}): EngineProcess {
  const engine = startEngineProcess({ entry: new URL("./scripted-child.ts", import.meta.url), options: scripted, ...options });
  engines.push(engine);
  return engine;
}
afterEach(async () => {
  await Promise.all(engines.splice(0).map(async (engine) => engine.close(0)));
});

let nextId = 1;
const request = (script: string, more: Partial<GenerateRequest> = {}): GenerateRequest => scriptRequest(nextId++, script, more);

interface Outcome {
  readonly text: string;
  readonly finish: FinishEvent;
  readonly events: readonly EngineEvent[];
}

async function run(engine: EngineProcess, wanted: GenerateRequest, onEvent?: (event: EngineEvent) => void): Promise<Outcome> {
  const events: EngineEvent[] = [];
  return new Promise((resolve) => {
    engine.submit([wanted], (_index, event) => {
      events.push(event);
      onEvent?.(event);
      if (event.kind !== "finish") return;
      const tokens = events.flatMap((e) => (e.kind === "tokens" ? e.tokens : []));
      resolve({ text: textOf(tokens), finish: event, events });
    });
  });
}

async function until(condition: () => boolean): Promise<void> {
  while (!condition()) await new Promise((resolve) => setTimeout(resolve, 5));
}

describe("engine process", () => {
  test("answers across the process border, several tokens in an event, usage equal to tokens delivered", async () => {
    const engine = start();
    expect(engine.state).toBe("loading");
    const info = await engine.ready;
    expect(info).toMatchObject({ nSlots: 4, nMax: 3 });
    const { text, finish, events } = await run(engine, request("say héllo, 🙂 the end"));
    expect(text).toBe("héllo, 🙂 the end");
    expect(finish.reason).toBe("stop");
    const sizes = events.flatMap((e) => (e.kind === "tokens" ? [e.tokens.length] : []));
    expect(Math.max(...sizes)).toBe(4);
    expect(finish.usage.nOutput).toBe(sizes.reduce((a, b) => a + b, 0));
    expect(events[0]?.kind).toBe("start");
    expect(await engine.checkIntegrity()).toBeUndefined();
  });

  test("cancel frees the slot at the next step, running or waiting", async () => {
    const engine = start({ nSlots: 1 });
    await engine.ready;
    const running = request("hold x", { maxTokens: 1e9 });
    const waiting = request("say never");
    const first = run(engine, running, (event) => {
      if (event.kind === "tokens") engine.cancel(running.id);
    });
    const second = run(engine, waiting);
    const third = run(engine, request("say third"));
    engine.cancel(waiting.id);
    expect((await first).finish.reason).toBe("abort");
    expect((await second).finish).toMatchObject({ reason: "abort", usage: { nOutput: 0 } });
    expect((await third).text).toBe("third");
    await until(() => engine.snapshot().slots.every((slot) => slot.phase === "idle"));
    expect(await engine.checkIntegrity()).toBeUndefined();
  });

  test.each([
    ["abort", "exit", /signal SIGABRT/, 120_000],
    ["lost", "lost", /exit code 70.*device lost/, 120_000],
    ["hang", "hang", /signal SIGKILL.*no sign of life/, 2500],
  ] as const)("%s ends requests with an error, refuses new ones, and comes back", async (script, cause, message, hangMs) => {
    const engine = start({}, { hangMs });
    await engine.ready;
    const pid = engine.pid;
    const forever = run(engine, request("hold x", { maxTokens: 1e9 }));
    const fatal = run(engine, request(script));
    for (const { finish } of await Promise.all([forever, fatal])) {
      expect(finish.reason).toBe("error");
      expect(finish.message).toMatch(message);
    }
    expect(engine.state).toBe("restarting");
    const refused = (() => {
      try {
        engine.submit([request("say no")], () => {});
      } catch (error) {
        return error as EngineUnavailable;
      }
      return undefined;
    })();
    expect(refused).toBeInstanceOf(EngineUnavailable);
    expect(refused?.reason).toBe("restarting");
    expect(refused?.retryAfterMs).toBeGreaterThan(0);
    await until(() => engine.state === "ready");
    expect(engine.pid).not.toBe(pid);
    expect((await run(engine, request("say back"))).text).toBe("back");
    expect(engine.counters).toMatchObject({ nStarts: 2, nRequestsLost: 2, nFailures: { [cause]: 1 } });
  });

  test("totals never fall when the process is replaced", async () => {
    const engine = start();
    await engine.ready;
    await run(engine, request("say one two three"));
    await until(() => engine.snapshot().nOutputTokens > 0);
    const before = engine.snapshot();
    process.kill(engine.pid as number, "SIGKILL");
    await until(() => engine.state === "ready" && engine.counters.nStarts === 2);
    await run(engine, request("say four"));
    await until(() => engine.snapshot().nOutputTokens > before.nOutputTokens);
    expect(engine.snapshot().draft.nDrafted).toBeGreaterThan(before.draft.nDrafted);
    expect(engine.snapshot().nRequests).toBe(2);
  });

  test("a queue that is full refuses at once", async () => {
    const engine = start({ nSlots: 1 }, { maxQueue: 1 });
    await engine.ready;
    const held = [request("hold x", { maxTokens: 1e9 }), request("say waits")];
    const results = held.map(async (r) => run(engine, r));
    expect(() => engine.submit([request("say no")], () => {})).toThrow(/2 requests are running or waiting and 1 more was asked for, the limit is 2/);
    expect(() => engine.submit([request("say no"), request("say no")], () => {})).toThrow(/2 more were asked for/);
    engine.cancel(held[0]?.id as number);
    expect((await results[1])?.text).toBe("waits");
    expect((await run(engine, request("say yes"))).text).toBe("yes");
  });

  test("an engine that cannot be made rejects with its own message and does not restart", async () => {
    const engine = start({ fail: "model.gguf: not a GGUF file; check the path" });
    await expect(engine.ready).rejects.toThrow("model.gguf: not a GGUF file; check the path");
    await until(() => engine.state === "stopped");
    expect(engine.counters.nStarts).toBe(0);
  });

  test("close waits for what runs, then refuses", async () => {
    const engine = start();
    await engine.ready;
    const last = run(engine, request("repeat 200 abc"));
    const closed = engine.close(10_000);
    expect(() => engine.submit([request("say no")], () => {})).toThrow(/shutting down/);
    expect((await last).text).toBe("abc".repeat(200));
    await closed;
    expect(engine.state).toBe("stopped");
  });

  test("close ends what does not finish in time", async () => {
    const engine = start();
    await engine.ready;
    const last = run(engine, request("hold x", { maxTokens: 1e9 }));
    await engine.close(50);
    expect((await last).finish.reason).toBe("error");
  });
});
