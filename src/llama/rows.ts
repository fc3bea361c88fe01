/** Rows of a decode in memory that libllama reads in place: nothing is copied or allocated per call. */
import koffi from "koffi";
import type { Rows } from "../engine/backend.ts";
import type { Batch } from "./structs.ts";

export interface NativeRows {
  readonly rows: Rows;
  /** The struct that llama_decode takes by value; set `n_tokens` and pass it. */
  readonly batch: Batch;
}

// Typed arrays of a few bytes live in the JavaScript heap, which moves; an ArrayBuffer of its own does not.
const pinned = (nBytes: number): ArrayBuffer => new ArrayBuffer(Math.max(nBytes, 128));

/** @param nEmbd width of the hidden rows that go in, 0 for a target. */
export function createRows(capacity: number, nEmbd: number): NativeRows {
  const rows: Rows = {
    capacity,
    n: 0,
    tokens: new Int32Array(pinned(4 * capacity), 0, capacity),
    positions: new Int32Array(pinned(4 * capacity), 0, capacity),
    seqs: new Int32Array(pinned(4 * capacity), 0, capacity),
    outputs: new Int8Array(pinned(capacity), 0, capacity),
    hidden: new Float32Array(pinned(4 * capacity * nEmbd), 0, capacity * nEmbd),
  };
  const seqCounts = new Int32Array(pinned(4 * capacity), 0, capacity).fill(1);
  const seqPointers = new BigUint64Array(pinned(8 * capacity), 0, capacity);
  const firstSeq = koffi.address(rows.seqs);
  for (let i = 0; i < capacity; i++) seqPointers[i] = firstSeq + BigInt(4 * i);
  return {
    rows,
    batch: {
      n_tokens: 0,
      token: rows.tokens,
      embd: nEmbd > 0 ? rows.hidden : null,
      pos: rows.positions,
      n_seq_id: seqCounts,
      seq_id: seqPointers,
      logits: rows.outputs,
    },
  };
}
