/** A request with the defaults of a greedy one. */
import { greedySampling, type GenerateRequest } from "../src/engine/request.ts";

export function request(id: number, prompt: ArrayLike<number>, more: Partial<GenerateRequest> = {}): GenerateRequest {
  return {
    id,
    prompt: Int32Array.from(prompt),
    maxTokens: 32,
    sampling: greedySampling,
    stop: [],
    ignoreEos: false,
    nLogprobs: undefined,
    grammar: undefined,
    nMax: undefined,
    cachePrompt: false,
    ...more,
  };
}
