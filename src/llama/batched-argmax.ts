/**
 * A backend sampler of our own: one argmax over all output rows of a forward.
 *
 * libllama builds the sampler's part of the graph row by row, and its greedy sampler adds one argmax a row. On CUDA that
 * kernel uses one block a row, so 48 rows of a 248,320-token vocabulary run one after the other: 5 ms of a 40 ms verify
 * on an H200. A sampler of user code may add any operators when the graph is built (llama.h, `llama_sampler_i`), and
 * every row it gets is a view of the matrix of all rows: so the first row adds one argmax over that matrix, and each row
 * answers with its element of the result. The callbacks run while a graph is built, on the thread that decodes, and
 * not at all while graphs are reused.
 */
import koffi from "koffi";
import type { Llama } from "./library.ts";
import type { Nullable, Pointer } from "./structs.ts";

const P = "void *";

/** Offsets in ggml_tensor (ggml.h 0.25): checked against tensors of our own in `checkTensorLayout`. */
const tensorWords = { bytes: 336, ne0: 2, viewSource: 29, viewOffset: 30 } as const;

interface Ops {
  argmax(context: Pointer, a: Pointer): Pointer;
  view1d(context: Pointer, a: Pointer, n: bigint, offset: bigint): Pointer;
  reshape1d(context: Pointer, a: Pointer, n: bigint): Pointer;
  setOutput(tensor: Pointer): void;
  init(params: { mem_size: number; mem_buffer: null; no_alloc: boolean }): Nullable;
  free(context: Pointer): void;
  new2d(context: Pointer, type: number, ne0: bigint, ne1: bigint): Pointer;
}

interface Shared {
  readonly iface: Pointer;
  /** Kept alive as long as any sampler may be called. */
  readonly keep: unknown[];
}

const shared = new WeakMap<Llama, Shared>();
const initParams = koffi.struct({ mem_size: "size_t", mem_buffer: P, no_alloc: "bool" });

/** A `llama_sampler *` for a chain; undefined when ggml's tensors are laid out otherwise than we know. */
export function createBatchedArgmax(llama: Llama): Pointer | undefined {
  let interfaceOf = shared.get(llama);
  if (interfaceOf === undefined) {
    const ops = bindOps(llama);
    if (!checkTensorLayout(ops)) return undefined;
    interfaceOf = createInterface(ops);
    shared.set(llama, interfaceOf);
  }
  return llama.api.llama_sampler_init(interfaceOf.iface, null);
}

function bindOps(llama: Llama): Ops {
  const { base } = llama;
  return {
    argmax: base.func("ggml_argmax", P, [P, P]) as Ops["argmax"],
    view1d: base.func("ggml_view_1d", P, [P, P, "int64_t", "size_t"]) as Ops["view1d"],
    reshape1d: base.func("ggml_reshape_1d", P, [P, P, "int64_t"]) as Ops["reshape1d"],
    setOutput: base.func("ggml_set_output", "void", [P]) as Ops["setOutput"],
    init: base.func("ggml_init", P, [initParams]) as Ops["init"],
    free: base.func("ggml_free", "void", [P]) as Ops["free"],
    new2d: base.func("ggml_new_tensor_2d", P, [P, "int32_t", "int64_t", "int64_t"]) as Ops["new2d"],
  };
}

const words = (address: Pointer, bytes: number): BigUint64Array => new BigUint64Array(koffi.view(address, bytes));

/** A view that we make ourselves must show its source and offset where we look for them. */
function checkTensorLayout(ops: Ops): boolean {
  const context = ops.init({ mem_size: 1 << 16, mem_buffer: null, no_alloc: true });
  if (context === null) return false;
  const matrix = ops.new2d(context, 0, 7n, 5n);
  const view = words(ops.view1d(context, matrix, 7n, 84n), tensorWords.bytes);
  const isKnown = view[tensorWords.ne0] === 7n && view[tensorWords.viewSource] === matrix && view[tensorWords.viewOffset] === 84n;
  ops.free(context);
  return isKnown;
}

function createInterface(ops: Ops): Shared {
  // One graph is built at a time; `backend_reset` comes before each.
  let matrix = 0n;
  let best: Pointer = 0n;
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
  const apply = (_sampler: Pointer, context: Pointer, _graph: Pointer, data: Pointer): void => {
    const fields = words(data, 32);
    const row = fields[0] as bigint;
    const tensor = words(row, tensorWords.bytes);
    const source = tensor[tensorWords.viewSource] as bigint;
    const nVocab = tensor[tensorWords.ne0] as bigint;
    if (source === 0n) {
      fields[2] = ops.argmax(context, ops.reshape1d(context, row, nVocab));
      return;
    }
    if (matrix !== source) {
      best = ops.argmax(context, source);
      ops.setOutput(best);
      matrix = source;
    }
    const index = (tensor[tensorWords.viewOffset] as bigint) / (4n * nVocab);
    // Logits left in place would be copied to the host row by row: a megabyte each, 80 a step at 16 streams.
    fields[0] = 0n;
    fields[2] = ops.view1d(context, best, 1n, 4n * index);
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
  return { iface: koffi.address(table), keep };
}
