/**
 * What the engine needs from a model: contexts that decode rows. `llama/` implements it on libllama,
 * `test/fake-backend.ts` on a script. `test/backend.contract.ts` is the suite that every implementation passes.
 *
 * Ownership: a context owns its native memory and every array it hands out. Views returned by `logits`, `hidden`
 * and `candidates` are valid until the next `decode` of the same context; copy what must live longer.
 * Order: `decode` may return before the device has finished; the first read after it waits.
 */

/** Rows of one decode, in preallocated arrays. Row i is token `tokens[i]` at position `positions[i]` of sequence `seqs[i]`. */
export interface Rows {
  readonly capacity: number;
  n: number;
  readonly tokens: Int32Array;
  readonly positions: Int32Array;
  readonly seqs: Int32Array;
  /** 1 where the row's result (token, logits) is wanted. */
  readonly outputs: Int8Array;
  /** Draft contexts only: the hidden row [capacity, nEmbd] that goes in with each token; empty for a target. */
  readonly hidden: Float32Array;
}

export interface ContextLimits {
  /** Sequence ids run from 0 to nSeq - 1. */
  readonly nSeq: number;
  /** Positions of one sequence run from 0 to nCtxSeq - 1. */
  readonly nCtxSeq: number;
  /** Cells of the whole context: unified KV shares them between sequences; else nSeq * nCtxSeq. */
  readonly nCells: number;
  /** Most rows of one decode (n_batch). */
  readonly nRows: number;
  /** Most rows of one forward (n_ubatch); a larger decode is split. */
  readonly nUbatch: number;
  /** Most output rows of one sequence in a decode. */
  readonly nOutputsPerSeq: number;
  /** Most rows of one sequence that can be rolled back after a decode (n_rs_seq); Infinity for plain KV. */
  readonly nRollback: number;
}

/** How the token of an output row is found: argmax or top-k chain on the device, or all logits on the host. */
export type SlotSampling = "device-greedy" | "device-top-k" | "host";

/** Top candidates of an output row, unsorted. Only the first `n` entries count. */
export interface Candidates {
  n: number;
  readonly tokens: Int32Array;
  readonly logits: Float32Array;
}

export interface DecodeContext {
  readonly limits: ContextLimits;
  readonly rows: Rows;
  readonly nVocab: number;
  readonly nEmbd: number;
  /** Fixed when the context is made: attaching a chain later rebuilds the scheduler and drops graphs. */
  samplingOf(seq: number): SlotSampling;

  /**
   * Decodes rows 0..rows.n-1. Rows of a sequence must be adjacent, with rising positions that continue the sequence.
   * @throws {DecodeError} when the context has no room or libllama refuses; the context is unchanged then.
   */
  decode(): void;
  /** Waits for the device. Reads do it by themselves; call it to measure. */
  synchronize(): void;

  /** Greedy token of output row i: from the device chain, else argmax of the logits (lowest id wins a tie). */
  greedyToken(row: number): number;
  /** Logits [nVocab] of output row i. Only for rows of "host" sequences. */
  logits(row: number): Float32Array;
  /** The device chain's candidates of output row i. Only for rows of "device-top-k" sequences. */
  candidates(row: number): Candidates;
  /**
   * Hidden state [nEmbd] of row i: post-final-norm (`h_nextn`). A target gives it for every row, a draft context for output rows.
   * Rows of several sequences are in batch order only when the decode was one forward, or every row an output (trap B of the spike notes).
   */
  hidden(row: number): Float32Array;
  /** Hidden states [rows.n, nEmbd] of all rows of the last decode, one view. Target only, same caution. */
  hiddenAll(): Float32Array;
  /** Turns the hidden output of a target on or off; costs a graph rebuild when it changes. */
  setHiddenOutput(on: boolean): void;

  /** Removes positions >= from. False: not possible, nothing changed. */
  removeFrom(seq: number, from: number): boolean;
  /** Empties a sequence. */
  clear(seq: number): void;
  /** Highest position held, -1 when empty. */
  lastPosition(seq: number): number;
  /** State of one sequence as bytes, and back (`llama_state_seq_*_ext`). It lies in what `memory` gives for that many bytes, or more. */
  saveSequence(seq: number, memory?: (nBytes: number) => Uint8Array): Uint8Array;
  restoreSequence(seq: number, state: Uint8Array): boolean;

  /** Since creation. `nReusedGraphs` is libllama's own count. */
  counters(): { readonly nDecodes: number; readonly nReusedGraphs: number };
  close(): void;
}

/** llama_decode's answer in words. `code` 1: no room in the KV cache; 2: aborted; -1: bad batch; below -1: failed in the backend. */
export class DecodeError extends Error {
  override readonly name: string = "DecodeError";
  readonly code: number;

  constructor(code: number, message: string) {
    super(message);
    this.code = code;
  }
}

/** One target and its draft heads. One head drafts every position; several draft one position each. */
export interface Backend {
  readonly target: DecodeContext;
  /** A context of the same model without rollback, where that makes plain steps cheaper. */
  readonly plainTarget?: DecodeContext | undefined;
  /** Memory of at least so many bytes that states move through from one context to the other; good until the next call. */
  readonly staging?: ((nBytes: number) => Uint8Array) | undefined;
  readonly heads: readonly DecodeContext[];
  readonly description: BackendDescription;
  /** A GBNF grammar as a state that follows one request's tokens. @throws {UserError} when the grammar does not parse. */
  createGrammar(gbnf: string): Grammar;
  isEndOfGeneration(token: number): boolean;
  /** Bytes of a token as text; special tokens give none unless `special`. */
  tokenBytes(token: number, special?: boolean): Uint8Array;
  close(): void;
}

/**
 * Which tokens may come next. Only emitted tokens are accepted into it, in order, so a rejected draft needs no rollback
 * and no copy: row i of a verify is sampled after the tokens of rows 0..i-1 were accepted.
 */
export interface Grammar {
  allows(token: number): boolean;
  /** Sets the logits of tokens that may not come next to -Infinity. */
  mask(logits: Float32Array): void;
  accept(token: number): void;
  close(): void;
}

export interface BackendDescription {
  readonly device: string;
  readonly library: string;
  readonly modelPath: string;
  readonly headPaths: readonly string[];
  /** True when decode returns before the device is done. */
  readonly isAsynchronous: boolean;
}
