/**
 * Counts forwards as libllama runs them. A decode is split into ubatches by rules of its own (equal lengths, trailing
 * rows together, n_ubatch), each is one forward, and nothing tells how many there were. ggml's eval callback sees every
 * node of every graph: the first node is the embedding of the rows, so each time it comes by a forward begins.
 *
 * Some 600 callbacks a forward: for tests and traces, off otherwise. The callback runs on the thread that decodes.
 */
import koffi from "koffi";
import type { Llama } from "./library.ts";
import type { Pointer } from "./structs.ts";

export interface ForwardCounter {
  /** For `BackendOptions.evalCallback`. */
  readonly callback: Pointer;
  /** Forgets what was counted. Call it before each decode that is to be counted: the first node is learnt anew. */
  reset(): void;
  /** Rows of each forward since `reset`, in order. */
  rowsOfForwards(): readonly number[];
  /** After every context that has the callback is closed. */
  close(): void;
}

const evalCallbackType = koffi.pointer(koffi.proto("bool", ["void *", "bool", "void *"]));

export function createForwardCounter(llama: Llama): ForwardCounter {
  const nameOf = llama.base.func("ggml_get_name", "str", ["void *"]) as (tensor: Pointer) => string;
  const rowsOf = llama.base.func("ggml_nrows", "int64_t", ["void *"]) as (tensor: Pointer) => number | bigint;
  let firstName: string | undefined;
  let rows: number[] = [];
  const onNode = (tensor: Pointer, isQuestion: boolean): boolean => {
    if (!isQuestion) return true;
    const name = nameOf(tensor);
    firstName ??= name;
    if (name === firstName) rows.push(Number(rowsOf(tensor)));
    // Not wanting a node lets ggml compute the whole graph at once.
    return false;
  };
  const callback = koffi.register(onNode, evalCallbackType);
  return {
    callback,
    reset() {
      firstName = undefined;
      rows = [];
    },
    rowsOfForwards: () => rows,
    close: () => koffi.unregister(callback),
  };
}
