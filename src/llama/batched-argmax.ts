/**
 * A backend sampler of our own: one argmax over all output rows of a forward, over all tokens or some of them.
 *
 * libllama builds the sampler's part of the graph row by row, and its greedy sampler adds one argmax a row. On CUDA that
 * kernel uses one block a row, so 48 rows of a 248,320-token vocabulary run one after the other: 5 ms of a 40 ms verify
 * on an H200. A sampler of user code may add any operators when the graph is built (llama.h, `llama_sampler_i`), and
 * every row it gets is a view of the matrix of all rows: so the first row adds one argmax over that matrix, and each row
 * answers with its element of the result. The callbacks run while a graph is built, on the thread that decodes, and
 * not at all while graphs are reused.
 *
 * A draft need not choose from the whole vocabulary: the target verifies it anyway. With a limit the first row also puts
 * a product with some rows of the LM head in the place of the whole one (`shortenLogits`). Source of the idea: FR-Spec
 * (arXiv 2502.14856), which keeps the most frequent tokens.
 */
import koffi from "koffi";
import { errorMessage } from "../util/errors.ts";
import type { GatheredRows } from "./gathered-rows.ts";
import { bindGraphOps, shortenLogits, tensorAt, unpadded, words, wordsAt, type GraphOps, type RowsOf } from "./graph-surgery.ts";
import type { Llama } from "./library.ts";
import type { Pointer } from "./structs.ts";

const P = "void *";

export interface BatchedArgmax {
  /** A `llama_sampler *` for a chain, which frees it. */
  create(): Pointer;
  /** After a context was made: why its graphs could not be limited; undefined where they are. */
  problem(): string | undefined;
  /** After the chains and the context are freed. */
  close(): void;
}

const unlimited = new WeakMap<Llama, BatchedArgmax>();

/**
 * @param limit tokens that answers are chosen among, by their places there; no other sampler may need the logits of such a context
 * @returns undefined when ggml's tensors are laid out otherwise than we know
 */
export function createBatchedArgmax(llama: Llama, limit?: GatheredRows): BatchedArgmax | undefined {
  const known = limit === undefined ? unlimited.get(llama) : undefined;
  if (known !== undefined) return known;
  const ops = bindGraphOps(llama);
  if (ops === undefined) return undefined;
  if (limit !== undefined) return createInterface(llama, ops, (weights) => limit.of(weights));
  const shared = { ...createInterface(llama, ops), close: () => {} };
  unlimited.set(llama, shared);
  return shared;
}

function createInterface(llama: Llama, ops: GraphOps, rowsOf?: RowsOf): BatchedArgmax {
  const { ggml } = ops;
  // One graph is built at a time; `backend_reset` comes before each.
  let matrix = 0n;
  let best: Pointer = 0n;
  let nRows = 0n;
  let problem: string | undefined = rowsOf === undefined ? undefined : "no graph of it has outputs";
  const forget = (): void => {
    matrix = 0n;
  };
  const keep: unknown[] = [];
  const callbacks: Pointer[] = [];
  const callback = (result: string, args: readonly string[], run: (...args: never[]) => unknown): Pointer => {
    const type = koffi.pointer(koffi.proto(result, [...args]));
    const pointer = koffi.register(run, type);
    keep.push(run);
    callbacks.push(pointer);
    return pointer;
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
      best = ggml.ggml_argmax(context, source);
      return;
    }
    best = ggml.ggml_argmax(context, (rowsOf === undefined ? undefined : shorten(context, source, rowsOf)) ?? logits);
    ggml.ggml_set_output(best);
  };
  const apply = (_sampler: Pointer, context: Pointer, _graph: Pointer, data: Pointer): void => {
    const fields = wordsAt(data, 32);
    const row = fields[0] as bigint;
    const tensor = tensorAt(row);
    const source = tensor[words.viewSource] as bigint;
    const nVocab = tensor[words.ne0] as bigint;
    if (source === 0n) {
      // libllama tries the operators out on a row of its own before it makes graphs.
      fields[2] = ggml.ggml_argmax(context, ggml.ggml_reshape_1d(context, row, nVocab));
      return;
    }
    if (matrix !== source) start(context, source);
    const index = (tensor[words.viewOffset] as bigint) / (4n * nVocab);
    // Logits left in place would be copied to the host row by row: a megabyte each, 80 a step at 16 streams.
    fields[0] = 0n;
    // What a sequence without a row gets nobody reads.
    fields[2] = ggml.ggml_view_1d(context, best, 1, index < nRows ? 4 * Number(index) : 0);
  };
  const name = Buffer.from("batched-argmax\0");
  keep.push(name);
  const table = new BigUint64Array(12);
  const set = (slot: number, pointer: Pointer): void => void (table[slot] = pointer);
  set(0, callback(P, [P], () => koffi.address(name)));
  set(2, callback("void", [P, P], () => {}));
  set(6, callback("bool", [P, P, "uint32_t"], () => true));
  set(8, callback("void", [P, P, P, P], apply));
  set(10, callback("void", [P], forget));
  const iface = koffi.address(table);
  keep.push(table);
  return {
    create: () => llama.api.llama_sampler_init(iface, null),
    problem: () => problem,
    close: () => {
      for (const pointer of callbacks.splice(0)) koffi.unregister(pointer);
      keep.length = 0;
    },
  };
}
