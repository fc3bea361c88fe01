/**
 * A backend sampler of our own (llama.h, `llama_sampler_i`): it may add any operators where libllama builds a context's
 * graph. The callbacks run while a graph is built, on the thread that decodes, and not at all while graphs are reused.
 */
import koffi from "koffi";
import { wordsAt } from "./graph-surgery.ts";
import type { Llama } from "./library.ts";
import type { Pointer } from "./structs.ts";

const P = "void *";

export interface UserSampler {
  /** A `llama_sampler *` for a chain, which frees it. */
  create(): Pointer;
  /** After the chains and the context are freed. */
  close(): void;
}

/** Places in `llama_sampler_data`: logits and what was sampled. */
export const dataWords = { logits: 0, sampled: 2 } as const;

export interface UserSamplerCallbacks {
  /** Before a graph is built. */
  readonly reset: () => void;
  /** Once for each output row of the graph, and once before there are graphs, with a row that is no view. Must not throw. `data`: 64-bit words of a llama_sampler_data. */
  readonly apply: (context: Pointer, graph: Pointer, data: BigUint64Array) => void;
}

export function createUserSampler(llama: Llama, name: string, { reset, apply }: UserSamplerCallbacks): UserSampler {
  // What native code points at must not be collected.
  const keep: unknown[] = [];
  const callbacks: Pointer[] = [];
  const callback = (result: string, args: readonly string[], run: (...args: never[]) => unknown): Pointer => {
    const type = koffi.pointer(koffi.proto(result, [...args]));
    const pointer = koffi.register(run, type);
    keep.push(run);
    callbacks.push(pointer);
    return pointer;
  };
  const nameBytes = Buffer.from(`${name}\0`);
  const table = new BigUint64Array(12);
  keep.push(nameBytes, table);
  table[0] = callback(P, [P], () => koffi.address(nameBytes));
  table[2] = callback("void", [P, P], () => {});
  table[6] = callback("bool", [P, P, "uint32_t"], () => true);
  table[8] = callback("void", [P, P, P, P], (_sampler: Pointer, context: Pointer, graph: Pointer, data: Pointer) => apply(context, graph, wordsAt(data, 32)));
  table[10] = callback("void", [P], reset);
  const iface = koffi.address(table);
  return {
    create: () => llama.api.llama_sampler_init(iface, null),
    close: () => {
      for (const pointer of callbacks.splice(0)) koffi.unregister(pointer);
      keep.length = 0;
    },
  };
}
