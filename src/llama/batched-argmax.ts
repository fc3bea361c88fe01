/**
 * A backend sampler of our own: one argmax over all output rows of a forward, over all tokens or the first of them.
 *
 * libllama builds the sampler's part of the graph row by row, and its greedy sampler adds one argmax a row. On CUDA that
 * kernel uses one block a row, so 48 rows of a 248,320-token vocabulary run one after the other: 5 ms of a 40 ms verify
 * on an H200. A sampler of user code may add any operators when the graph is built (llama.h, `llama_sampler_i`), and
 * every row it gets is a view of the matrix of all rows: so the first row adds one argmax over that matrix, and each row
 * answers with its element of the result. The callbacks run while a graph is built, on the thread that decodes, and
 * not at all while graphs are reused.
 *
 * A draft need not choose from the whole vocabulary: the target verifies it anyway. With a limit the first row also puts
 * a product with the LM head's first rows in the place of the whole one (`shortenLogits`). Tokens that a tokenizer of
 * byte pairs learned first, its most frequent, come first. Source of the idea: FR-Spec (arXiv 2502.14856), which chooses
 * them by frequency.
 */
import koffi from "koffi";
import { bindGraphOps, shortenLogits, tensorAt, unpadded, words, wordsAt, type GraphOps } from "./graph-surgery.ts";
import type { Llama } from "./library.ts";
import type { Pointer } from "./structs.ts";

const P = "void *";

/** What samplers of one limit share. */
interface Shared {
  readonly iface: Pointer;
  /** Kept alive as long as any sampler may be called. */
  readonly keep: unknown[];
  /** Graphs were built, and in all of them the limit held. */
  isLimited(): boolean;
}

const shared = new WeakMap<Llama, Map<number, Shared>>();

export interface BatchedArgmax {
  /** A `llama_sampler *` for a chain. */
  readonly sampler: Pointer;
  /** After a context was made with the sampler: whether its graphs could be limited. */
  isLimited(): boolean;
}

/**
 * @param nTokens answers are among the first `nTokens` tokens; Infinity: all. No other sampler may need the logits of such a context.
 * @returns undefined when ggml's tensors are laid out otherwise than we know
 */
export function createBatchedArgmax(llama: Llama, nTokens = Infinity): BatchedArgmax | undefined {
  const byLimit = shared.get(llama) ?? new Map<number, Shared>();
  shared.set(llama, byLimit);
  let interfaceOf = byLimit.get(nTokens);
  if (interfaceOf === undefined) {
    const ops = bindGraphOps(llama);
    if (ops === undefined) return undefined;
    interfaceOf = createInterface(ops, nTokens);
    byLimit.set(nTokens, interfaceOf);
  }
  return { sampler: llama.api.llama_sampler_init(interfaceOf.iface, null), isLimited: interfaceOf.isLimited };
}

function createInterface(ops: GraphOps, nTokens: number): Shared {
  // One graph is built at a time; `backend_reset` comes before each.
  let matrix = 0n;
  let best: Pointer = 0n;
  let nRows = 0n;
  let nLimited = 0;
  let nWhole = 0;
  const forget = (): void => {
    matrix = 0n;
  };
  const keep: unknown[] = [];
  const callback = (result: string, args: readonly string[], run: (...args: never[]) => unknown): Pointer => {
    const type = koffi.pointer(koffi.proto(result, [...args]));
    const pointer = koffi.register(run, type);
    keep.push(run, pointer);
    return pointer;
  };
  const start = (context: Pointer, source: Pointer): void => {
    const logits = unpadded(ops, source);
    nRows = tensorAt(logits)[words.ne1] as bigint;
    matrix = source;
    if (nRows === 0n) {
      // No row is an output: all there is is the padding.
      best = ops.argmax(context, source);
      return;
    }
    const short = nTokens === Infinity ? undefined : shortenLogits(ops, context, source, nTokens);
    if (short === undefined) nWhole++;
    else nLimited++;
    best = ops.argmax(context, short ?? logits);
    ops.setOutput(best);
  };
  const apply = (_sampler: Pointer, context: Pointer, _graph: Pointer, data: Pointer): void => {
    const fields = wordsAt(data, 32);
    const row = fields[0] as bigint;
    const tensor = tensorAt(row);
    const source = tensor[words.viewSource] as bigint;
    const nVocab = tensor[words.ne0] as bigint;
    if (source === 0n) {
      // libllama tries the operators out on a row of its own before it makes graphs.
      fields[2] = ops.argmax(context, ops.reshape1d(context, row, nVocab));
      return;
    }
    if (matrix !== source) start(context, source);
    const index = (tensor[words.viewOffset] as bigint) / (4n * nVocab);
    // Logits left in place would be copied to the host row by row: a megabyte each, 80 a step at 16 streams.
    fields[0] = 0n;
    // Sequences without a row get the padding row, which nobody reads.
    fields[2] = ops.view1d(context, best, 1n, index < nRows ? 4n * index : 0n);
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
  keep.push(table);
  return { iface: koffi.address(table), keep, isLimited: () => nLimited > 0 && nWhole === 0 };
}
