/**
 * Keeps one high cell of a unified KV cache occupied, so that its visible length does not grow.
 *
 * libllama's graphs see the cache up to its highest used cell, in steps of 256 (llama-kv-cache.cpp `get_n_kv`). Sixteen
 * streams that take 2.8 tokens a step cross such a border every sixth step, and each time the graph is rebuilt and the
 * CUDA graph captured anew: two steps of 50 ms instead of 43 on an H200. With a cell in use at the far end the length
 * stays as it is; the price is a mask over cells that are empty. A reserved sequence holds that cell: rows of
 * sequence 0 fill the cells before it once, when the context is made, and are dropped.
 */
import type { LlamaApi } from "./api.ts";
import type { NativeRows } from "./rows.ts";
import type { Pointer } from "./structs.ts";

/** @param lastCell the cell to occupy; @returns false when libllama refused, the cache is empty then */
export function pinCell(api: LlamaApi, context: Pointer, native: NativeRows, reservedSeq: number, lastCell: number): boolean {
  const { rows, batch } = native;
  const memory = api.llama_get_memory(context) as Pointer;
  const decode = (n: number): boolean => {
    batch.n_tokens = n;
    return api.llama_decode(context, batch) === 0;
  };
  rows.outputs.fill(0);
  rows.hidden.fill(0);
  rows.tokens.fill(0);
  let isOk = true;
  for (let cell = 0; isOk && cell < lastCell; ) {
    const n = Math.min(rows.capacity, lastCell - cell);
    for (let i = 0; i < n; i++) {
      rows.positions[i] = cell + i;
      rows.seqs[i] = 0;
    }
    isOk = decode(n);
    cell += n;
  }
  if (isOk) {
    rows.positions[0] = 0;
    rows.seqs[0] = reservedSeq;
    isOk = decode(1);
  }
  api.llama_memory_seq_rm(memory, 0, -1, -1);
  if (!isOk) api.llama_memory_seq_rm(memory, reservedSeq, -1, -1);
  api.llama_synchronize(context);
  rows.n = 0;
  return isOk;
}
