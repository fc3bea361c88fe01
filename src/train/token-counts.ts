/** How often a model writes each token, from a capture: what a draft vocabulary is chosen by. */
import type { DatasetDocument } from "./dataset.ts";

/** Counts of the tokens that the target wrote itself, by token. */
export function countWritten(documents: Iterable<Pick<DatasetDocument, "tokens" | "nPrompt">>, nVocab: number): Float64Array {
  const counts = new Float64Array(nVocab);
  for (const { tokens, nPrompt } of documents) for (let i = nPrompt; i < tokens.length; i++) (counts[tokens[i] as number] as number)++;
  return counts;
}

/** The `n` most frequent tokens, most frequent first; of equals the lower, which a tokenizer of byte pairs learned first. */
export function mostFrequent(counts: Float64Array, n: number): Int32Array {
  const order = Int32Array.from(counts.keys()).sort((a, b) => (counts[b] as number) - (counts[a] as number) || a - b);
  return order.slice(0, n);
}

/** The share of counted tokens that `tokens` has; undefined where nothing was counted. */
export function shareOf(tokens: Int32Array, counts: Float64Array): number | undefined {
  const all = counts.reduce((sum, count) => sum + count, 0);
  return all === 0 ? undefined : tokens.reduce((sum, token) => sum + (counts[token] as number), 0) / all;
}
