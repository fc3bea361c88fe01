import { afterEach, beforeEach, describe, expect, test, vi } from "vitest";
import type { EngineEvent } from "../../src/engine/request.ts";
import { receiveForGroups, type EngineThread } from "../../src/server/engine-groups.ts";
import { receiveForEngine } from "../../src/server/engine-host.ts";
import { EXIT_LOST, type FromEngine, type ToEngine } from "../../src/server/engine-protocol.ts";
import { UserError } from "../../src/util/errors.ts";
import { textOf } from "./byte-tokenizer.ts";
import { ScriptedEngine, scriptRequest } from "./scripted-engine.ts";

beforeEach(() => void vi.useFakeTimers({ toFake: ["setInterval", "clearInterval"] }));
afterEach(() => void vi.useRealTimers());

/** Groups of scripted engines in this thread: what each was sent, what the parent got, how the process ended. */
class Groups {
  readonly sent: ToEngine[][];
  readonly got: FromEngine[] = [];
  readonly exits: number[] = [];
  readonly tellFrom: ((message: FromEngine) => void)[] = [];
  readonly endOf: ((reason: string) => void)[] = [];
  isClosed = false;
  brokenGroup = -1;
  readonly #receive: (message: ToEngine) => void;

  constructor(slots: readonly number[], { fail = undefined as string | undefined } = {}) {
    this.sent = slots.map(() => []);
    this.#receive = receiveForGroups(
      {
        open: () => {
          if (fail !== undefined) throw new UserError(fail);
          return { threads: slots.map((n, i) => this.#thread(n, i)), optionsOf: () => undefined, hangMs: 0, loadedBytes: () => 7, close: () => void (this.isClosed = true) };
        },
        exit: (code) => void this.exits.push(code),
      },
      { listen: () => {}, send: (message, then) => (this.got.push(message), then?.()) },
    );
    this.#receive({ kind: "start", options: {} });
  }

  #thread(nSlots: number, i: number): EngineThread {
    const receive = receiveForEngine((_options, { sink }) => new ScriptedEngine({ nSlots, nMax: 2 }, sink), { listen: () => {}, send: (message) => this.tellFrom[i]?.(message) });
    return {
      send: (message) => {
        this.sent[i]?.push(message);
        // A thread that closes ends its process in this test's place.
        if (message.kind === "close") this.endOf[i]?.("closed");
        else if (message.kind === "check" && i === this.brokenGroup) this.tellFrom[i]?.({ kind: "checked", id: message.id, problem: "cells left over" });
        else receive(message);
      },
      listen: (onMessage, onEnd) => {
        this.tellFrom[i] = onMessage;
        this.endOf[i] = onEnd;
      },
    };
  }

  send(message: ToEngine): void {
    this.#receive(message);
  }

  get events(): EngineEvent[] {
    return this.got.flatMap((message) => (message.kind === "events" ? message.events : []));
  }

  async until(condition: () => boolean): Promise<void> {
    while (!condition()) await new Promise((resolve) => setImmediate(resolve));
  }

  async ready(): Promise<this> {
    await this.until(() => this.got.some((message) => message.kind === "ready"));
    return this;
  }

  groupsOf(): number[] {
    return this.sent.map((messages) => messages.filter((message) => message.kind === "submit").length);
  }
}

describe("groups of slots behind one port", () => {
  test("are one engine to the parent: slots and sizes together, ready once all are", async () => {
    const groups = await new Groups([2, 2, 1]).ready();
    const ready = groups.got.filter((message) => message.kind === "ready");
    expect(ready).toHaveLength(1);
    expect(ready[0]).toMatchObject({ info: { nSlots: 5, loadedBytes: 7 }, snapshot: { slots: [{ slot: 0 }, { slot: 1 }, { slot: 2 }, { slot: 3 }, { slot: 4 }] } });
  });

  test("a request goes to the group with the fewest for its slots, the first of equals", async () => {
    const groups = await new Groups([4, 4, 2]).ready();
    for (let id = 1; id <= 5; id++) groups.send({ kind: "submit", request: scriptRequest(id, "hold x") });
    expect(groups.groupsOf()).toEqual([2, 2, 1]);
    groups.send({ kind: "cancel", id: 1 });
    await groups.until(() => groups.events.some((event) => event.kind === "finish"));
    groups.send({ kind: "submit", request: scriptRequest(6, "hold x") });
    expect(groups.groupsOf()).toEqual([3, 2, 1]);
    expect(groups.sent.map((messages) => messages.filter((message) => message.kind === "cancel").length)).toEqual([1, 0, 0]);
  });

  test("texts arrive whole, from slots that no other group has, and totals count all groups", async () => {
    const groups = await new Groups([2, 2]).ready();
    const words = ["alpha", "beta", "gamma", "delta"];
    for (const [id, word] of words.entries()) groups.send({ kind: "submit", request: scriptRequest(id, `say ${word}`) });
    await groups.until(() => groups.events.filter((event) => event.kind === "finish").length === words.length);
    const texts = words.map((_, id) => textOf(groups.events.flatMap((event) => (event.kind === "tokens" && event.id === id ? event.tokens : []))));
    expect(texts).toEqual(words);
    const slots = groups.events.flatMap((event) => (event.kind === "start" ? [event.slot] : []));
    expect(slots.toSorted((a, b) => a - b)).toEqual([0, 1, 2, 3]);
    await groups.until(() => groups.got.some((message) => message.kind === "snapshot" && message.snapshot.nRequests === 4));
    const last = groups.got.findLast((message) => message.kind === "snapshot");
    expect(last?.kind === "snapshot" && last.snapshot.slots.every((slot) => slot.phase === "idle")).toBe(true);
  });

  test("an integrity check asks all and tells the first problem", async () => {
    const groups = await new Groups([1, 1]).ready();
    groups.send({ kind: "check", id: 9 });
    await groups.until(() => groups.got.some((message) => message.kind === "checked"));
    expect(groups.got.filter((message) => message.kind === "checked")).toEqual([{ kind: "checked", id: 9, problem: undefined }]);
    groups.brokenGroup = 0;
    groups.send({ kind: "check", id: 10 });
    expect(groups.got.findLast((message) => message.kind === "checked")).toEqual({ kind: "checked", id: 10, problem: "cells left over" });
  });

  test("one that is lost or ends ends the process, and the first reason is the one that is told", async () => {
    const lost = await new Groups([1, 1]).ready();
    lost.send({ kind: "submit", request: scriptRequest(1, "lost") });
    await lost.until(() => lost.exits.length > 0);
    expect([lost.exits[0], lost.got.at(-1)?.kind]).toEqual([EXIT_LOST, "lost"]);
    const ended = await new Groups([1, 1]).ready();
    ended.endOf[1]?.("out of memory");
    ended.endOf[0]?.("the thread of group 0 ended with 1");
    expect([ended.exits, ended.got.filter((message) => message.kind === "lost")]).toEqual([[EXIT_LOST], [{ kind: "lost", message: "out of memory" }]]);
  });

  test("what cannot be loaded is told as the user's to fix", () => {
    const groups = new Groups([1, 1], { fail: "no such file" });
    expect([groups.exits, groups.got]).toEqual([[1], [{ kind: "failed", message: "no such file", isUserError: true, exitCode: 1 }]]);
  });

  test("closing asks all threads, frees the weights after the last, and ends with 0", async () => {
    const groups = await new Groups([1, 1]).ready();
    groups.send({ kind: "close" });
    expect([groups.exits, groups.isClosed, groups.sent.map((messages) => messages.at(-1)?.kind)]).toEqual([[0], true, ["close", "close"]]);
  });
});
