/**
 * A backend sampler of our own: one argmax over all output rows of a forward, over all tokens or some of them.
 *
 * libllama builds the sampler's part of the graph row by row, and its greedy sampler adds one argmax a row. On CUDA that
 * kernel uses one block a row, so 48 rows of a 248,320-token vocabulary run one after the other: 5 ms of a 40 ms verify
 * on an H200. Every row that a sampler of user code gets is a view of the matrix of all rows: so the first row adds one
 * argmax over that matrix, and each row answers with its element of the result.
 *
 * A draft need not choose from the whole vocabulary: the target verifies it anyway. With a limit the first row also puts
 * a product with some rows of the LM head in the place of the whole one (`shortenLogits`). Source of the idea: FR-Spec
 * (arXiv 2502.14856), which keeps the most frequent tokens.
 */
import { errorMessage } from "../util/errors.ts";
import type { GatheredRows } from "./gathered-rows.ts";
import { bindGraphOps, shortenLogits, tensorAt, unpadded, words, type GraphOps, type RowsOf } from "./graph-surgery.ts";
import type { Llama } from "./library.ts";
import { isStaged, manyParts, stagedArgmax } from "./staged-argmax.ts";
import type { Pointer } from "./structs.ts";
import { createUserSampler, dataWords, type UserSampler } from "./user-sampler.ts";

export interface BatchedArgmax extends UserSampler {
  /** After a context was made: why its graphs could not be limited; undefined where they are. */
  problem(): string | undefined;
}

/** By their parts. */
const unlimited = new WeakMap<Llama, Map<number, BatchedArgmax>>();

/**
 * @param nParts of the vocabulary that an argmax is made of (staged-argmax.ts); 0: as many as is best on these devices
 * @param limit tokens that answers are chosen among, by their places there; no other sampler may need the logits of such a context
 * @returns undefined when ggml's tensors are laid out otherwise than we know
 */
export function createBatchedArgmax(llama: Llama, nParts = 0, limit?: GatheredRows): BatchedArgmax | undefined {
  const shared = unlimited.get(llama) ?? new Map<number, BatchedArgmax>();
  unlimited.set(llama, shared);
  const known = limit === undefined ? shared.get(nParts) : undefined;
  if (known !== undefined) return known;
  const ops = bindGraphOps(llama);
  if (ops === undefined) return undefined;
  const parts = nParts > 0 ? nParts : llama.devices.some(({ name }) => name.startsWith("CUDA")) ? manyParts : 1;
  if (limit !== undefined) return createInterface(llama, ops, parts, (weights) => limit.of(weights));
  const made = { ...createInterface(llama, ops, parts), close: () => {} };
  shared.set(nParts, made);
  return made;
}

function createInterface(llama: Llama, ops: GraphOps, nParts: number, rowsOf?: RowsOf): BatchedArgmax {
  const { ggml } = ops;
  const argmaxOf = (context: Pointer, rows: Pointer): Pointer => {
    const { [words.ne0]: n, [words.ne1]: nOf } = tensorAt(rows);
    return isStaged(Number(n), nParts) ? stagedArgmax(ops, context, rows, Number(n), Number(nOf), nParts) : ggml.ggml_argmax(context, rows);
  };
  // One graph is built at a time; `backend_reset` comes before each.
  let matrix = 0n;
  let best: Pointer = 0n;
  let nRows = 0n;
  let problem: string | undefined = rowsOf === undefined ? undefined : "no graph of it has outputs";
  const forget = (): void => {
    matrix = 0n;
  };
  const shorten = (context: Pointer, source: Pointer, rows: RowsOf): Pointer | undefined => {
    try {
      const short = shortenLogits(ops, context, source, rows);
      problem = short === undefined ? "its LM head is not a plain product that can be shortened" : undefined;
      return short;
    } catch (error) {
      // The callback of a native caller must return.
      problem = errorMessage(error);
      return undefined;
    }
  };
  const start = (context: Pointer, source: Pointer): void => {
    const logits = unpadded(ops, source);
    nRows = tensorAt(logits)[words.ne1] as bigint;
    matrix = source;
    if (nRows === 0n) {
      // No row is an output: all there is is the padding.
      best = argmaxOf(context, source);
      return;
    }
    best = argmaxOf(context, (rowsOf === undefined ? undefined : shorten(context, source, rowsOf)) ?? logits);
    ggml.ggml_set_output(best);
  };
  const apply = (context: Pointer, _graph: Pointer, data: BigUint64Array): void => {
    const row = data[dataWords.logits] as bigint;
    const tensor = tensorAt(row);
    const source = tensor[words.viewSource] as bigint;
    const nVocab = tensor[words.ne0] as bigint;
    if (source === 0n) {
      // libllama tries the operators out on a row of its own before it makes graphs.
      data[dataWords.sampled] = argmaxOf(context, ggml.ggml_reshape_1d(context, row, nVocab));
      return;
    }
    if (matrix !== source) start(context, source);
    const index = (tensor[words.viewOffset] as bigint) / (4n * nVocab);
    // Logits left in place would be copied to the host row by row: a megabyte each, 80 a step at 16 streams.
    data[dataWords.logits] = 0n;
    // What a sequence without a row gets nobody reads.
    data[dataWords.sampled] = ggml.ggml_view_1d(context, best, 1, index < nRows ? 4 * Number(index) : 0);
  };
  return { ...createUserSampler(llama, "batched-argmax", { reset: forget, apply }), problem: () => problem };
}
