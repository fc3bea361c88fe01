/**
 * DecodeContext on libllama. Everything that would abort the process is checked before the call (row-check.ts and the
 * guards below); what libllama accepts although it is wrong is refused too:
 * - a recurrent sequence can be rolled back only within the rows of its own last decode, once, and always keeping one
 *   of them, and only before the next forward of whatever sequences: older snapshots are stale, and a state that has to
 *   make room moves without them, though the call says true;
 * - a row without an output has no logits, and an index past the batch is not checked by every getter.
 */
import { DecodeError, type Candidates, type ContextLimits, type DecodeContext, type Rows, type SlotSampling } from "../engine/backend.ts";
import { argmax } from "./argmax.ts";
import type { LlamaApi } from "./api.ts";
import type { GraphEdits } from "./graph-edits.ts";
import type { Model } from "./model.ts";
import { checkRows, createSequenceState, recordRows, type SequenceState } from "./row-check.ts";
import { pinCell } from "./pin-cells.ts";
import { createRows, type NativeRows } from "./rows.ts";
import { DEVICE_TOP_K, type SamplerChains } from "./sampler.ts";
import type { Pointer } from "./structs.ts";
import { ViewCache } from "./views.ts";

/** What `createContext` found out; the constructor only stores it. */
export interface ContextParts {
  readonly model: Model;
  readonly pointer: Pointer;
  readonly chains: SamplerChains;
  readonly edits: GraphEdits | undefined;
  readonly samplings: readonly SlotSampling[];
  readonly limits: ContextLimits;
  readonly isDraft: boolean;
  /** Whether hidden rows come out, of every row of a decode. */
  readonly hasHidden: boolean;
  /** Occupy this cell with the sequence after the last one in `limits`; 0 does not. See pin-cells.ts. */
  readonly pinnedCell: number;
}

export class LlamaContext implements DecodeContext, Disposable {
  readonly limits: ContextLimits;
  readonly rows: Rows;
  readonly nVocab: number;
  readonly nEmbd: number;
  readonly #api: LlamaApi;
  readonly #parts: ContextParts;
  readonly #release: () => void;
  readonly #memory: Pointer;
  readonly #native: NativeRows;
  readonly #state: SequenceState;
  /** Of the last decode: place among the output rows, or -1; and the sequence. */
  #outputIndex: Int32Array;
  #spareOutputIndex: Int32Array;
  readonly #seqOfRow: Int32Array;
  readonly #logitViews = new ViewCache();
  readonly #hiddenViews = new ViewCache();
  readonly #candidateViews = new ViewCache();
  readonly #candidatePool: Candidates[] = [];
  /** Matrices [nOutputs, nVocab] that the top-k chains fill in part; fetched once a decode. */
  #candidateIds: Int32Array | undefined;
  #candidateLogits: Float32Array | undefined;
  #pointer: Pointer | undefined;
  #hasHidden: boolean;
  /** What `#hasHidden` was at the last decode: the getters read that decode. */
  #didDecodeHidden = false;
  #nRowsDecoded = 0;
  #nOutputs = 0;
  #nDecodes = 0;
  #counters = { nDecodes: 0, nReusedGraphs: 0 };

  /** Undefined where graphs are left as they are. */
  get graphEdits(): GraphEdits | undefined {
    return this.#parts.edits;
  }

  constructor(parts: ContextParts) {
    const { model, limits } = parts;
    this.#api = model.llama.api;
    this.#parts = parts;
    this.#pointer = parts.pointer;
    this.#release = model.retain();
    this.#memory = this.#api.llama_get_memory(parts.pointer) as Pointer;
    this.limits = limits;
    this.nVocab = model.nVocab;
    this.nEmbd = model.nEmbd;
    this.#native = createRows(limits.nRows, parts.isDraft ? this.nEmbd : 0);
    this.rows = this.#native.rows;
    this.#state = createSequenceState(limits.nSeq);
    this.#outputIndex = new Int32Array(limits.nRows).fill(-1);
    this.#spareOutputIndex = new Int32Array(limits.nRows);
    this.#seqOfRow = new Int32Array(limits.nRows);
    this.#hasHidden = parts.hasHidden;
    // Never masked (rows of outputs only): an MTP graph computes the hidden rows of all its rows, and the masked read
    // takes the first of them, not those of the outputs.
    if (parts.hasHidden) this.#api.llama_set_embeddings_nextn(parts.pointer, true, false);
    if (parts.isDraft) this.#api.llama_set_nextn_layer_offset(parts.pointer, 0);
    if (parts.pinnedCell > 0) pinCell(this.#api, parts.pointer, this.#native, limits.nSeq, parts.pinnedCell);
  }

  /** @throws after close. */
  get pointer(): Pointer {
    if (this.#pointer === undefined) throw new Error("the context is closed");
    return this.#pointer;
  }

  samplingOf(seq: number): SlotSampling {
    const sampling = this.#parts.samplings[seq];
    if (sampling === undefined) throw new Error(`samplingOf(${seq}): sequences are 0..${this.limits.nSeq - 1}`);
    return sampling;
  }

  decode(): void {
    const { pointer } = this;
    const outputIndex = this.#spareOutputIndex;
    const nOutputs = checkRows(this.rows, this.limits, this.nVocab, this.#state, outputIndex, this.#parts.isDraft);
    this.#native.batch.n_tokens = this.rows.n;
    const code = this.#api.llama_decode(pointer, this.#native.batch);
    if (code !== 0) this.#fail(code);
    recordRows(this.rows, this.limits, this.#state, this.#seqOfRow);
    this.#spareOutputIndex = this.#outputIndex;
    this.#outputIndex = outputIndex;
    this.#candidateIds = undefined;
    this.#candidateLogits = undefined;
    this.#nRowsDecoded = this.rows.n;
    this.#nOutputs = nOutputs;
    this.#didDecodeHidden = this.#hasHidden;
    this.#nDecodes++;
  }

  #fail(code: number): never {
    this.#nRowsDecoded = 0;
    this.#nOutputs = 0;
    // Below -1 and at 2 earlier forwards of the same decode may have stayed in memory: ask what each sequence holds.
    if (code === 2 || code < -1) for (let seq = 0; seq < this.limits.nSeq; seq++) this.#refresh(seq);
    if (code === 1) throw new DecodeError(1, `no room in the KV cache for ${this.rows.n} more tokens (${this.limits.nCells} cells); lower --parallel or raise --ctx-size`);
    if (code === 2) throw new DecodeError(2, "decode was aborted");
    if (code === -1) throw new DecodeError(-1, `libllama refused a batch of ${this.rows.n} rows`);
    throw new DecodeError(code, `decode of ${this.rows.n} rows failed in the backend (llama_decode ${code}); the device may be out of memory`);
  }

  #refresh(seq: number): void {
    this.#state.last[seq] = this.#api.llama_memory_seq_pos_max(this.#memory, seq);
    this.#state.nLastRows[seq] = 0;
  }

  synchronize(): void {
    this.#api.llama_synchronize(this.pointer);
  }

  greedyToken(row: number): number {
    const output = this.#outputOf(row);
    const sampling = this.#samplingOfRow(row);
    if (sampling === "device-greedy") {
      const token = this.#api.llama_get_sampled_token_ith(this.pointer, row);
      if (token < 0) throw new Error(`greedyToken(${row}): the device chain gave no token`);
      const { chains } = this.#parts;
      return chains.tokens === undefined ? token : this.#limitedToken(chains, token);
    }
    if (sampling === "device-top-k") return bestCandidate(this.candidates(row));
    return argmax(this.#logitRows().all, output * this.nVocab, this.nVocab);
  }

  /** A graph that was built later and could not be limited would answer with places of the whole vocabulary. */
  #limitedToken(chains: SamplerChains, place: number): number {
    const why = chains.problem();
    const token = chains.tokens?.[place];
    if (why !== undefined || token === undefined) throw new Error(`--spec-draft-vocab: the LM head is limited no longer (${why ?? `place ${place}`}); start without the option`);
    return token;
  }

  logits(row: number): Float32Array {
    const output = this.#outputOf(row);
    if (this.#samplingOfRow(row) !== "host") throw new Error(`logits(${row}): sequence ${this.#seqOfRow[row]} is sampled on the device; only "host" sequences have logits`);
    return this.#logitRows().row(output, this.nVocab);
  }

  #logitRows(): ReturnType<ViewCache["get"]> {
    const base = this.#api.llama_get_logits(this.pointer);
    if (base === null) throw new Error("the last decode gave no logits");
    return this.#logitViews.get(base, this.#nOutputs * this.nVocab);
  }

  candidates(row: number): Candidates {
    const output = this.#outputOf(row);
    if (this.#samplingOfRow(row) !== "device-top-k") throw new Error(`candidates(${row}): sequence ${this.#seqOfRow[row]} has no top-k chain`);
    const n = Math.min(DEVICE_TOP_K, this.nVocab);
    if (this.#candidateIds === undefined) this.#fetchCandidates(row, output);
    const ids = this.#candidateIds as unknown as Int32Array;
    const logits = this.#candidateLogits as unknown as Float32Array;
    const into = (this.#candidatePool[output] ??= { n, tokens: new Int32Array(n), logits: new Float32Array(n) });
    const start = output * this.nVocab;
    for (let i = 0; i < n; i++) {
      into.tokens[i] = ids[start + i] as number;
      into.logits[i] = logits[start + i] as number;
    }
    return into;
  }

  #fetchCandidates(row: number, output: number): void {
    const ids = this.#api.llama_get_sampled_candidates_ith(this.pointer, row);
    const logits = this.#api.llama_get_sampled_logits_ith(this.pointer, row);
    const count = this.#api.llama_get_sampled_candidates_count_ith(this.pointer, row);
    if (ids === null || logits === null || count !== Math.min(DEVICE_TOP_K, this.nVocab)) throw new Error(`candidates(${row}): the device chain gave ${count} candidates`);
    const before = BigInt(4 * output * this.nVocab);
    this.#candidateIds = this.#candidateViews.get(ids - before, this.#nOutputs * this.nVocab).ints;
    this.#candidateLogits = this.#candidateViews.get(logits - before, this.#nOutputs * this.nVocab).all;
  }

  hidden(row: number): Float32Array {
    if (!Number.isInteger(row) || row < 0 || row >= this.#nRowsDecoded) throw new Error(`hidden(${row}): the last decode had ${this.#nRowsDecoded} rows`);
    return this.#hiddenMatrix().row(row, this.nEmbd);
  }

  hiddenAll(): Float32Array {
    return this.#hiddenMatrix().all.subarray(0, this.#nRowsDecoded * this.nEmbd);
  }

  #hiddenMatrix(): ReturnType<ViewCache["get"]> {
    if (!this.#didDecodeHidden) throw new Error("hidden: hidden output was off in the last decode; call setHiddenOutput(true) before it");
    const base = this.#api.llama_get_embeddings_nextn(this.pointer);
    if (base === null) throw new Error("hidden: libllama gave no hidden rows");
    return this.#hiddenViews.get(base, this.#nRowsDecoded * this.nEmbd);
  }

  setHiddenOutput(on: boolean): void {
    if (this.#parts.isDraft) throw new Error("setHiddenOutput: the hidden output of a draft context is fixed");
    if (on === this.#hasHidden) return;
    this.#api.llama_set_embeddings_nextn(this.pointer, on, false);
    this.#hasHidden = on;
  }

  removeFrom(seq: number, from: number): boolean {
    const last = this.lastPosition(seq);
    if (from > last) return true;
    if (from <= 0) {
      this.clear(seq);
      return true;
    }
    const nRemoved = last + 1 - from;
    const { nRollback } = this.limits;
    if (nRollback !== Infinity && (nRemoved > nRollback || nRemoved >= (this.#state.nLastRows[seq] as number) || this.#state.forwardOf[seq] !== this.#state.nForwards)) return false;
    if (!this.#api.llama_memory_seq_rm(this.#memory, seq, from, -1)) return false;
    this.#state.last[seq] = from - 1;
    this.#state.nLastRows[seq] = 0;
    return true;
  }

  clear(seq: number): void {
    this.lastPosition(seq);
    this.#api.llama_memory_seq_rm(this.#memory, seq, -1, -1);
    this.#state.last[seq] = -1;
    this.#state.nLastRows[seq] = 0;
  }

  lastPosition(seq: number): number {
    if (this.#pointer === undefined) throw new Error("the context is closed");
    const last = this.#state.last[seq];
    if (last === undefined) throw new Error(`sequence ${seq} is not in 0..${this.limits.nSeq - 1}`);
    return last;
  }

  saveSequence(seq: number, memory: (nBytes: number) => Uint8Array = (nBytes) => new Uint8Array(nBytes)): Uint8Array {
    this.lastPosition(seq);
    const size = this.#api.llama_state_seq_get_size_ext(this.pointer, seq, 0);
    const bytes = memory(size).subarray(0, size);
    const written = size === 0 ? 0 : this.#api.llama_state_seq_get_data_ext(this.pointer, bytes, size, seq, 0);
    if (written !== size || size === 0) throw new Error(`saveSequence(${seq}): libllama wrote ${written} of ${size} bytes`);
    return bytes;
  }

  restoreSequence(seq: number, state: Uint8Array): boolean {
    this.lastPosition(seq);
    const read = state.length === 0 ? 0 : this.#api.llama_state_seq_set_data_ext(this.pointer, state, state.length, seq, 0);
    // A state that does not fit leaves part of itself behind.
    if (read !== state.length || read === 0) this.clear(seq);
    this.#refresh(seq);
    return read === state.length && read > 0;
  }

  counters(): { readonly nDecodes: number; readonly nReusedGraphs: number } {
    // The call makes an object of seven fields: several microseconds, so it is asked after a decode only.
    if (this.#counters.nDecodes !== this.#nDecodes) this.#counters = { nDecodes: this.#nDecodes, nReusedGraphs: this.#api.llama_perf_context(this.pointer).n_reused };
    return this.#counters;
  }

  close(): void {
    if (this.#pointer === undefined) return;
    for (const cache of [this.#logitViews, this.#hiddenViews, this.#candidateViews]) cache.clear();
    this.#candidateIds = undefined;
    this.#candidateLogits = undefined;
    this.#api.llama_free(this.#pointer);
    this.#pointer = undefined;
    this.#parts.chains.free();
    this.#release();
  }

  [Symbol.dispose](): void {
    this.close();
  }

  #samplingOfRow(row: number): SlotSampling {
    return this.#parts.samplings[this.#seqOfRow[row] as number] as SlotSampling;
  }

  #outputOf(row: number): number {
    if (!Number.isInteger(row) || row < 0 || row >= this.#nRowsDecoded) throw new Error(`row ${row}: the last decode had ${this.#nRowsDecoded} rows`);
    const output = this.#outputIndex[row] as number;
    if (output < 0) throw new Error(`row ${row} was not an output of the last decode`);
    return output;
  }
}

/** Greedy over candidates; the lowest id wins a tie. */
function bestCandidate({ n, tokens, logits }: Candidates): number {
  let best = 0;
  for (let i = 1; i < n; i++) {
    const difference = (logits[i] as number) - (logits[best] as number);
    if (difference > 0 || (difference === 0 && (tokens[i] as number) < (tokens[best] as number))) best = i;
  }
  return tokens[best] as number;
}
