/** Log probabilities of the verifier's raw logits, before any sampling filter: what OpenAI's API calls `logprob`. */
import type { TokenLogprob } from "./request.ts";
import { selectTop } from "./sampler.ts";

export function tokenLogprob(logits: Float32Array, token: number, nTop: number, ids: Int32Array, top: Float32Array): TokenLogprob {
  let best = -Infinity;
  for (let i = 0; i < logits.length; i++) if ((logits[i] as number) > best) best = logits[i] as number;
  let total = 0;
  for (let i = 0; i < logits.length; i++) total += Math.exp((logits[i] as number) - best);
  const shift = best + Math.log(total);
  const n = nTop > 0 ? selectTop(logits, nTop, ids, top) : 0;
  return {
    token,
    logprob: (logits[token] as number) - shift,
    top: Array.from({ length: n }, (_, i) => [ids[i] as number, (top[i] as number) - shift] as const),
  };
}
