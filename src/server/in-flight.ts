/** The requests that the engine process has and has not finished: what must be told when it dies. */
import type { EngineEvent, FinishEvent, GenerateRequest } from "../engine/request.ts";

interface Entry {
  readonly request: GenerateRequest;
  readonly onEvent: (event: EngineEvent) => void;
  nCached: number;
  nOutput: number;
}

export class InFlightRequests {
  readonly #entries = new Map<number, Entry>();
  #idleWaiters: (() => void)[] = [];

  get size(): number {
    return this.#entries.size;
  }

  has(id: number): boolean {
    return this.#entries.has(id);
  }

  add(request: GenerateRequest, onEvent: (event: EngineEvent) => void): void {
    this.#entries.set(request.id, { request, onEvent, nCached: 0, nOutput: 0 });
  }

  /** Passes an event on; events of unknown requests are dropped. */
  deliver(event: EngineEvent): void {
    const entry = this.#entries.get(event.id);
    if (entry === undefined) return;
    if (event.kind === "tokens") entry.nOutput += event.tokens.length;
    else if (event.kind === "start") entry.nCached = event.nCached;
    else this.#entries.delete(event.id);
    entry.onEvent(event);
    this.#tellIdle();
  }

  /** Ends every request with reason "error". Returns how many there were. */
  failAll(message: string): number {
    const entries = [...this.#entries.values()];
    this.#entries.clear();
    for (const entry of entries) entry.onEvent(lostFinish(entry, message));
    this.#tellIdle();
    return entries.length;
  }

  /** Resolves when nothing is in flight, or after `limitMs`. */
  async untilIdle(limitMs: number): Promise<void> {
    if (this.#entries.size === 0) return;
    await new Promise<void>((resolve) => {
      const timer = setTimeout(resolve, limitMs);
      this.#idleWaiters.push(() => {
        clearTimeout(timer);
        resolve();
      });
    });
  }

  #tellIdle(): void {
    if (this.#entries.size > 0 || this.#idleWaiters.length === 0) return;
    for (const tell of this.#idleWaiters.splice(0)) tell();
  }
}

function lostFinish(entry: Entry, message: string): FinishEvent {
  return {
    kind: "finish",
    id: entry.request.id,
    reason: "error",
    message,
    usage: { nPrompt: entry.request.prompt.length, nCached: entry.nCached, nOutput: entry.nOutput },
    draft: { nDrafts: 0, nDrafted: 0, nAccepted: 0, acceptedAt: [], reachedAt: [] },
    timings: { queueMs: 0, prefillMs: 0, decodeMs: 0 },
  };
}
