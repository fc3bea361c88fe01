/** Requests that never start: why one cannot run here, and what its client is told. Pure. */
import type { EngineConfig } from "./config.ts";
import { canServe } from "./placement.ts";
import type { FinishEvent, FinishReason, GenerateRequest } from "./request.ts";
import type { Sequence, SequenceShape } from "./sequence.ts";

/** Why the request can never run on these slots; undefined when it can. */
export function whyNot(request: GenerateRequest, shape: SequenceShape, config: EngineConfig, sequences: readonly Sequence[]): string | undefined {
  const n = request.prompt.length;
  if (n === 0) return "the prompt has no tokens";
  if (n > shape.nCtxSeq) return `the prompt has ${n} tokens, a slot holds ${shape.nCtxSeq}; raise --ctx-size or lower --parallel`;
  const isSynthetic = config.syntheticRates !== undefined;
  if (isSynthetic && request.nLogprobs !== undefined) return "log probabilities mean nothing with synthetic acceptance";
  if (isSynthetic && request.grammar !== undefined) return "a grammar cannot hold with synthetic acceptance: drafts are taken unseen";
  if (!sequences.some((s) => canServe(s.sampling, request)))
    return "the request needs all logits (grammar, penalties, bias, logprobs or a wide top_k) and no slot has them; start the server with --host-slots 1 or --sampling host";
  return undefined;
}

/** The only event of a request that got no slot. */
export function unstartedEvent(request: GenerateRequest, reason: FinishReason, message?: string): FinishEvent {
  return {
    kind: "finish",
    id: request.id,
    reason,
    ...(message === undefined ? {} : { message, isRefusal: true }),
    usage: { nPrompt: request.prompt.length, nCached: 0, nOutput: 0 },
    draft: { nDrafts: 0, nDrafted: 0, nAccepted: 0, acceptedAt: [], reachedAt: [] },
    timings: { queueMs: 0, prefillMs: 0, decodeMs: 0 },
  };
}
