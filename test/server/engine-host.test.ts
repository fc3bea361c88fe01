/** The engine's side of a thread's border: messages that come while it works. */
import { expect, test } from "vitest";
import type { FromEngine, ToEngine } from "../../src/server/engine-protocol.ts";
import { receiveForEngine } from "../../src/server/engine-host.ts";
import { ScriptedEngine, scriptRequest } from "./scripted-engine.ts";

const immediate = (): Promise<void> => new Promise((resolve) => setImmediate(resolve));

interface Steps {
  n: number;
  /** What the last step returned. */
  hasMore: boolean;
}

/** An engine behind a thread's port; `waiting` is what it finds there after a step. */
async function host(waiting: (steps: Steps) => ToEngine | undefined): Promise<{ receive: (message: ToEngine) => void; sent: FromEngine[]; steps: Steps }> {
  const sent: FromEngine[] = [];
  const steps: Steps = { n: 0, hasMore: true };
  const receive = receiveForEngine(
    (_options, { sink }) => {
      const engine = new ScriptedEngine({ nSlots: 2, nMax: 2 }, sink);
      const step = engine.step.bind(engine);
      engine.step = () => {
        steps.n++;
        return (steps.hasMore = step());
      };
      return engine;
    },
    { listen: () => {}, send: (message) => void sent.push(message), poll: () => waiting(steps) },
  );
  receive({ kind: "start", options: {} });
  await immediate();
  return { receive, sent, steps };
}

const endOf = (sent: readonly FromEngine[], id: number): string | undefined =>
  sent.flatMap((message) => (message.kind === "events" ? message.events : [])).flatMap((event) => (event.kind === "finish" && event.id === id ? [event.reason] : []))[0];

test("a thread takes many steps in one turn of the event loop, and reads its port after each", async () => {
  const cancel: ToEngine[] = [{ kind: "cancel", id: 1 }];
  const { receive, sent, steps } = await host(({ n }) => (n === 4 ? cancel.pop() : undefined));
  receive({ kind: "submit", request: scriptRequest(1, "forever x") });
  await immediate();
  expect(endOf(sent, 1)).toBe("abort");
  expect(steps.n).toBeLessThan(8);
});

test("a request found in the port after the last step of the one before is served", async () => {
  const late: ToEngine[] = [{ kind: "submit", request: scriptRequest(2, "say b") }];
  const { receive, sent, steps } = await host(({ hasMore }) => (hasMore ? undefined : late.pop()));
  receive({ kind: "submit", request: scriptRequest(1, "say a") });
  for (let i = 0; i < 5; i++) await immediate();
  expect([endOf(sent, 1), endOf(sent, 2)]).toEqual(["stop", "stop"]);
  expect(steps.hasMore).toBe(false);
});
