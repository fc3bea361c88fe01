/** The engine as the HTTP side needs it: the client contract, what the engine told when it was ready, and its restarts. */
import type { EngineClient, EngineInfo, EngineSnapshot } from "../engine/request.ts";

export interface EngineCounters {
  /** Engine processes that became ready. */
  readonly nStarts: number;
  /** Ends of an engine process that nobody asked for, by cause. */
  readonly nFailures: Readonly<Record<EngineFailure, number>>;
  /** Requests that ended with an error because the engine process ended. */
  readonly nRequestsLost: number;
}

/** exit: it ended by itself (an abort, kill -9). hang: no sign of life. lost: the backend failed. load: it could not start. */
export type EngineFailure = "exit" | "hang" | "lost" | "load";

export interface ServerEngine extends EngineClient {
  /** Undefined until the engine was ready for the first time; kept while it restarts. */
  readonly info: EngineInfo | undefined;
  readonly counters: EngineCounters;
}

export const emptySnapshot: EngineSnapshot = {
  slots: [],
  nQueued: 0,
  nSteps: 0,
  nPromptTokens: 0,
  nCachedTokens: 0,
  nOutputTokens: 0,
  nRequests: 0,
  prefillMs: 0,
  decodeMs: 0,
  draft: { nDrafts: 0, nDrafted: 0, nAccepted: 0, acceptedAt: [], reachedAt: [] },
  nDraftNow: 0,
  gateReason: "",
  stepsAtK: [],
  rowShape: "",
  rssBytes: 0,
  deviceUsedBytes: undefined,
  isSynthetic: false,
};

const sumEach = (a: readonly number[], b: readonly number[]): number[] =>
  Array.from({ length: Math.max(a.length, b.length) }, (_, i) => (a[i] ?? 0) + (b[i] ?? 0));

/** `now` with the totals of engine processes that ended added, so that a counter never falls. */
export function addTotals(now: EngineSnapshot, earlier: EngineSnapshot): EngineSnapshot {
  return {
    ...now,
    nSteps: now.nSteps + earlier.nSteps,
    nPromptTokens: now.nPromptTokens + earlier.nPromptTokens,
    nCachedTokens: now.nCachedTokens + earlier.nCachedTokens,
    nOutputTokens: now.nOutputTokens + earlier.nOutputTokens,
    nRequests: now.nRequests + earlier.nRequests,
    prefillMs: now.prefillMs + earlier.prefillMs,
    decodeMs: now.decodeMs + earlier.decodeMs,
    stepsAtK: sumEach(now.stepsAtK, earlier.stepsAtK),
    draft: {
      nDrafts: now.draft.nDrafts + earlier.draft.nDrafts,
      nDrafted: now.draft.nDrafted + earlier.draft.nDrafted,
      nAccepted: now.draft.nAccepted + earlier.draft.nAccepted,
      acceptedAt: sumEach(now.draft.acceptedAt, earlier.draft.acceptedAt),
      reachedAt: sumEach(now.draft.reachedAt, earlier.draft.reachedAt),
    },
  };
}
