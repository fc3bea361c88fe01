/** Token counts and times of a reply, in the shapes of OpenAI (`usage`) and llama-server (`timings`). */
import type { DraftStats, FinishEvent } from "../engine/request.ts";

export interface Usage {
  readonly prompt_tokens: number;
  readonly completion_tokens: number;
  readonly total_tokens: number;
  readonly prompt_tokens_details: { readonly cached_tokens: number };
}

const sum = <T>(items: readonly T[], of: (item: T) => number): number => items.reduce((total, item) => total + of(item), 0);

/** `nPrompt`: tokens of the prompts, each counted once however many choices share it. */
export function usageOf(finishes: readonly FinishEvent[], nPrompt: number): Usage {
  const nOutput = sum(finishes, (f) => f.usage.nOutput);
  const nCached = Math.min(nPrompt, sum(finishes, (f) => f.usage.nCached));
  return { prompt_tokens: nPrompt, completion_tokens: nOutput, total_tokens: nPrompt + nOutput, prompt_tokens_details: { cached_tokens: nCached } };
}

const rate = (n: number, ms: number): number => (ms > 0 ? (n / ms) * 1000 : 0);
const each = (ms: number, n: number): number => (n > 0 ? ms / n : 0);

/**
 * llama-server's names, sums over the choices. `predicted_ms` runs from the first token, so a rate is over the tokens
 * after it, as TPOT is. `draft_*` only when there were drafts; `draft_accepted_at[i]` / `draft_n_drafts` is the
 * unconditional acceptance at position i, over `draft_reached_at[i]` the conditional one.
 */
export function timingsOf(finishes: readonly FinishEvent[]): Readonly<Record<string, unknown>> {
  const nPrompt = sum(finishes, (f) => f.usage.nPrompt - f.usage.nCached);
  const nOutput = sum(finishes, (f) => f.usage.nOutput);
  const nAfterFirst = sum(finishes, (f) => Math.max(0, f.usage.nOutput - 1));
  const promptMs = sum(finishes, (f) => f.timings.prefillMs);
  const decodeMs = sum(finishes, (f) => f.timings.decodeMs);
  return {
    queue_ms: sum(finishes, (f) => f.timings.queueMs),
    cache_n: sum(finishes, (f) => f.usage.nCached),
    prompt_n: nPrompt,
    prompt_ms: promptMs,
    prompt_per_token_ms: each(promptMs, nPrompt),
    prompt_per_second: rate(nPrompt, promptMs),
    predicted_n: nOutput,
    predicted_ms: decodeMs,
    predicted_per_token_ms: each(decodeMs, nAfterFirst),
    predicted_per_second: rate(nAfterFirst, decodeMs),
    ...draftFields(finishes.map((f) => f.draft)),
  };
}

function draftFields(drafts: readonly DraftStats[]): Readonly<Record<string, unknown>> {
  const nDrafts = sum(drafts, (d) => d.nDrafts);
  if (nDrafts === 0) return {};
  const nAccepted = sum(drafts, (d) => d.nAccepted);
  const nPositions = Math.max(...drafts.map((d) => d.reachedAt.length));
  const positions = Array.from({ length: nPositions }, (_, i) => i);
  return {
    draft_n: sum(drafts, (d) => d.nDrafted),
    draft_n_accepted: nAccepted,
    draft_n_drafts: nDrafts,
    draft_accepted_at: positions.map((i) => sum(drafts, (d) => d.acceptedAt[i] ?? 0)),
    draft_reached_at: positions.map((i) => sum(drafts, (d) => d.reachedAt[i] ?? 0)),
    draft_mean_length: 1 + nAccepted / nDrafts,
  };
}
