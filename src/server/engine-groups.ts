/**
 * Several engines behind one port: slots in groups that decode at the same time, each with contexts of its own in a
 * thread of its own, on one set of weights.
 *
 * A decode of few rows leaves most of a large GPU idle: its kernels are small and wait for each other. Measured on an
 * H200 with the 35B shape: sixteen streams in two groups of eight 1038 tok/s, in one group 814 (docs/log.md).
 */
import type { EngineInfo, EngineSnapshot, GenerateRequest } from "../engine/request.ts";
import { errorMessage, UserError } from "../util/errors.ts";
import { HEARTBEAT_INTERVAL_MS, SNAPSHOT_INTERVAL_MS, type HostPort } from "./engine-host.ts";
import { EXIT_LOST, type FromEngine, type ToEngine } from "./engine-protocol.ts";
import { HangWatch } from "./hang-watch.ts";
import { addTotals, emptySnapshot } from "./server-engine.ts";

/** One engine in its thread. */
export interface EngineThread {
  send(message: ToEngine): void;
  /** `onEnd` is called when the thread ends, with the reason if it was not asked to. */
  listen(onMessage: (message: FromEngine) => void, onEnd: (reason: string) => void): void;
}

/** What the engines share, and their threads; each is sent its "start" message by whoever opened it. */
export interface OpenGroups {
  readonly threads: readonly EngineThread[];
  readonly optionsOf: (group: number) => unknown;
  /** Longest silence of a thread before the process counts as hung; 0: any. */
  readonly hangMs: number;
  readonly loadedBytes: () => number;
  close(): void;
}

export interface GroupHooks {
  readonly open: (options: unknown, progress: (fraction: number, what: string) => void) => OpenGroups;
  readonly exit: (code: number) => void;
}

/** What a process of several engines does with the messages of its parent. It ends when the parent says so or one engine is lost. */
export function receiveForGroups(hooks: GroupHooks, port: HostPort): (message: ToEngine) => void {
  const groups = new EngineGroups(hooks, port);
  return (message) => groups.receive(message);
}

interface Member {
  readonly thread: EngineThread;
  info: EngineInfo | undefined;
  snapshot: EngineSnapshot;
  /** Requests that it has and that have not ended. */
  nInFlight: number;
  firstSlot: number;
  watch: HangWatch | undefined;
  hasEnded: boolean;
}

class EngineGroups {
  readonly #hooks: GroupHooks;
  readonly #port: HostPort;
  #members: readonly Member[] = [];
  #shared: OpenGroups | undefined;
  readonly #groupOf = new Map<number, Member>();
  /** Integrity checks that wait for answers: how many are missing, and the first problem. */
  readonly #checks = new Map<number, { nLeft: number; problem: string | undefined }>();
  #startMs = 0;
  #lastSnapshotMs = 0;
  #isClosing = false;
  #hasClosed = false;
  /** The parent knows why this process ends. */
  #hasFailed = false;

  constructor(hooks: GroupHooks, port: HostPort) {
    this.#hooks = hooks;
    this.#port = port;
  }

  receive(message: ToEngine): void {
    switch (message.kind) {
      case "start":
        this.#start(message.options);
        return;
      case "submit":
        this.#submit(message.request);
        return;
      case "cancel":
        this.#groupOf.get(message.id)?.thread.send(message);
        return;
      case "check":
        this.#checks.set(message.id, { nLeft: this.#members.length, problem: undefined });
        for (const { thread } of this.#members) thread.send(message);
        return;
      case "close":
        this.#isClosing = true;
        for (const { watch } of this.#members) watch?.stop();
        for (const { thread } of this.#members) thread.send(message);
        this.#endWhenAllHave();
        return;
      default:
        message satisfies never;
    }
  }

  #start(options: unknown): void {
    this.#startMs = performance.now();
    const progress = (fraction: number, what: string): void => this.#port.send({ kind: "progress", fraction, what });
    try {
      this.#shared = this.#hooks.open(options, progress);
    } catch (error) {
      const isUserError = error instanceof UserError;
      this.#port.send({ kind: "failed", message: errorMessage(error), isUserError, exitCode: isUserError ? error.exitCode : 1 }, () => this.#hooks.exit(1));
      return;
    }
    this.#members = this.#shared.threads.map((thread) => ({ thread, info: undefined, snapshot: emptySnapshot, nInFlight: 0, firstSlot: 0, watch: undefined, hasEnded: false }));
    for (const [i, member] of this.#members.entries()) {
      member.thread.listen((message) => this.#receiveFrom(member, message), (reason) => this.#onEnd(member, reason));
      member.thread.send({ kind: "start", options: this.#shared.optionsOf(i) });
    }
  }

  /** To the group with the fewest requests for its slots; of equals the first, so that few streams share few groups' costs. */
  #submit(request: GenerateRequest): void {
    const loadOf = (member: Member): number => member.nInFlight / (member.info?.nSlots ?? 1);
    const member = this.#members.reduce((best, other) => (loadOf(other) < loadOf(best) ? other : best));
    member.nInFlight++;
    this.#groupOf.set(request.id, member);
    member.thread.send({ kind: "submit", request });
  }

  #receiveFrom(member: Member, message: FromEngine): void {
    member.watch?.sign();
    switch (message.kind) {
      case "events": {
        for (const event of message.events) {
          if (event.kind !== "finish" || !this.#groupOf.delete(event.id)) continue;
          member.nInFlight--;
        }
        const events = message.events.map((event) => (event.kind === "start" ? { ...event, slot: event.slot + member.firstSlot } : event));
        this.#port.send({ kind: "events", events });
        return;
      }
      case "snapshot":
        member.snapshot = message.snapshot;
        this.#sendSnapshot(message.snapshot.slots.every((slot) => slot.phase === "idle"));
        return;
      case "ready":
        member.info = message.info;
        member.snapshot = message.snapshot;
        if (this.#members.every((m) => m.info !== undefined)) this.#onReady();
        return;
      case "progress":
        // They calibrate together: one of them tells enough.
        if (member === this.#members[0]) this.#port.send(message);
        return;
      case "failed":
        this.#end(message, 1);
        return;
      case "lost":
        this.#end(message, EXIT_LOST);
        return;
      case "checked":
        this.#onChecked(message);
        return;
      case "alive":
        return;
      default:
        message satisfies never;
    }
  }

  #onReady(): void {
    let nSlots = 0;
    for (const member of this.#members) {
      member.firstSlot = nSlots;
      nSlots += member.info?.nSlots ?? 0;
    }
    const info = this.#members[0]?.info as EngineInfo;
    this.#port.send({ kind: "ready", info: { ...info, nSlots, nCtxSeq: Math.min(...this.#members.map((m) => m.info?.nCtxSeq ?? Infinity)), loadMs: performance.now() - this.#startMs, loadedBytes: this.#shared?.loadedBytes() ?? 0 }, snapshot: this.#merged() });
    // This thread always has a sign of life to give: it must not hide one that hangs.
    for (const member of this.#members) member.watch = new HangWatch(this.#shared?.hangMs ?? 0, (silentMs) => this.#onHang(silentMs));
    setInterval(() => this.#port.send({ kind: "alive" }), HEARTBEAT_INTERVAL_MS).unref();
  }

  #onHang(silentMs: number): void {
    this.#end({ kind: "lost", message: `a group of slots gave no sign of life for ${(silentMs / 1000).toFixed(1)} s` }, EXIT_LOST);
  }

  /** Tells the first reason only: what ends after it ends because of it. */
  #end(message: FromEngine, code: number): void {
    if (this.#hasFailed) return;
    this.#hasFailed = true;
    this.#port.send(message, () => this.#hooks.exit(code));
  }

  #onChecked({ id, problem }: Extract<FromEngine, { kind: "checked" }>): void {
    const check = this.#checks.get(id);
    if (check === undefined) return;
    check.problem ??= problem;
    if (--check.nLeft > 0) return;
    this.#checks.delete(id);
    this.#port.send({ kind: "checked", id, problem: check.problem });
  }

  #sendSnapshot(isUrgent: boolean): void {
    const now = performance.now();
    if (!isUrgent && now - this.#lastSnapshotMs < SNAPSHOT_INTERVAL_MS) return;
    this.#lastSnapshotMs = now;
    this.#port.send({ kind: "snapshot", snapshot: this.#merged() });
  }

  #merged(): EngineSnapshot {
    return mergeSnapshots(this.#members.map((m) => m.snapshot));
  }

  #onEnd(member: Member, reason: string): void {
    member.hasEnded = true;
    if (this.#isClosing) this.#endWhenAllHave();
    else this.#end({ kind: "lost", message: reason }, EXIT_LOST);
  }

  #endWhenAllHave(): void {
    if (this.#hasClosed || !this.#members.every((m) => m.hasEnded)) return;
    this.#hasClosed = true;
    this.#shared?.close();
    this.#hooks.exit(0);
  }
}

/** Several groups as one engine: totals and slots side by side, times summed over the groups, the gate of the busiest. */
export function mergeSnapshots(snapshots: readonly EngineSnapshot[]): EngineSnapshot {
  const nRunning = (s: EngineSnapshot): number => s.slots.filter((slot) => slot.phase !== "idle").length;
  const busiest = snapshots.reduce((a, b) => (nRunning(b) > nRunning(a) ? b : a), snapshots[0] ?? emptySnapshot);
  const shapes = new Set(snapshots.filter((s) => nRunning(s) > 0).map((s) => s.rowShape));
  const total = snapshots.reduce((sum, s) => addTotals(sum, s), emptySnapshot);
  const slots = snapshots.flatMap((s) => s.slots).map((slot, i) => ({ ...slot, slot: i }));
  return {
    ...total,
    slots,
    nQueued: snapshots.reduce((sum, s) => sum + s.nQueued, 0),
    nDraftNow: busiest.nDraftNow,
    gateReason: busiest.gateReason,
    rowShape: shapes.size > 0 ? [...shapes].join(", ") : busiest.rowShape,
    rssBytes: Math.max(0, ...snapshots.map((s) => s.rssBytes)),
    deviceUsedBytes: busiest.deviceUsedBytes,
    isSynthetic: busiest.isSynthetic,
  };
}
