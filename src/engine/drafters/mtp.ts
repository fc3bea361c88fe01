/**
 * The MTP head as drafter: one shared head unrolled, its own hidden row fed back for each further token
 * (DeepSeek-V3 section 2.2 trains such a head; llama.cpp calls the block NextN).
 *
 * Fused catch-up: the decode that produces the first draft token also brings the rows accepted since the last step, so a
 * step costs `nDraft` head decodes and none besides. The other catch-up modes exist to be measured against it.
 */
import type { DecodeContext } from "../backend.ts";
import { addHeadRow, feedHead, nHeadRowsMissing, skipLostRows, type FreshHidden } from "../head-feed.ts";
import { createSamplerState, HostSampler, type SamplerState } from "../sampler.ts";
import { greedySampling } from "../request.ts";
import type { Sequence } from "../sequence.ts";
import type { SavedHead } from "../prompt-cache.ts";
import { createDraftTimes, restoreHeadState, saveHeadState, type Drafter, type DraftTimes } from "./drafter.ts";

export type Catchup = "fused" | "immediate" | "deferred" | "deferred-batched";

export interface MtpDrafterOptions {
  readonly catchup: Catchup;
  readonly nMax: number;
  readonly nMin: number;
  /** Stop drafting when fewer than half of the sequences had a draft at least this probable; 0 never stops. */
  readonly pMin: number;
  readonly topK: number;
  readonly topP: number;
  readonly temperature: number;
  readonly seed: number;
  /** Bring every head decode to nDraft + 1 rows a sequence by feeding accepted rows again: one shape, one graph. */
  readonly pad: boolean;
  readonly clock: () => number;
}

/** More missing rows than this are fed without outputs first: a fused decode should keep its usual shape. */
const maxFusedRows = 16;

export class MtpDrafter implements Drafter {
  readonly times: DraftTimes = createDraftTimes();
  readonly #head: DecodeContext;
  readonly #options: MtpDrafterOptions;
  readonly #outputRow: Int32Array;
  readonly #chained: Float32Array;
  readonly #sampler: HostSampler | undefined;
  readonly #samplerState: SamplerState;
  /** Share of the time at draft length 0 that feeding may take. */
  readonly #idleShare = 0.01;
  #idleBudgetMs = 0;
  #msPerFeed = 0;

  constructor(head: DecodeContext, options: MtpDrafterOptions) {
    this.#head = head;
    this.#options = options;
    this.#outputRow = new Int32Array(head.limits.nSeq);
    this.#chained = new Float32Array(options.nMax * head.limits.nSeq * head.nEmbd);
    const { temperature, topK, topP, seed } = options;
    this.#samplerState = createSamplerState({ ...greedySampling, temperature, topK, topP, minP: 0, seed });
    this.#sampler = temperature > 0 && topK !== 1 ? new HostSampler(head.nVocab) : undefined;
  }

  draft(seqs: readonly Sequence[], nDraft: number, launched?: () => void): number {
    const { clock, pMin, nMin } = this.#options;
    this.#catchUp(seqs);
    const startMs = clock();
    this.#startBatch(seqs, nDraft);
    let n = 0;
    for (;;) {
      this.#head.decode();
      if (n === 0) launched?.();
      this.times.nGenerateCalls++;
      const nSure = this.#takeDrafts(seqs, n, n + 1 < nDraft);
      n++;
      if (n === nDraft || (pMin > 0 && nSure * 2 < seqs.length)) break;
      this.#continueBatch(seqs, n, nDraft);
    }
    this.times.generateMs += clock() - startMs;
    return n < nMin ? 0 : n;
  }

  afterVerify(seqs: readonly Sequence[]): void {
    if (this.#options.catchup === "immediate") this.#feed(seqs);
  }

  afterPrefill(seqs: readonly Sequence[], fresh: ReadonlyMap<Sequence, FreshHidden>, isDrafting: boolean): void {
    if (isDrafting) this.#feed(seqs, fresh);
  }

  afterPlain(seqs: readonly Sequence[], stepMs: number): void {
    this.#idleBudgetMs += stepMs * this.#idleShare;
    let isNearlyLost = false;
    for (const seq of seqs) if (nHeadRowsMissing(seq, false) * 2 > (seq.ring?.capacity ?? Infinity)) isNearlyLost = true;
    if (!isNearlyLost || this.#idleBudgetMs < this.#msPerFeed) return;
    const startMs = this.#options.clock();
    this.#feed(seqs);
    this.#msPerFeed = this.#options.clock() - startMs;
    this.#idleBudgetMs = Math.max(0, this.#idleBudgetMs - this.#msPerFeed);
  }

  release(seq: Sequence): void {
    this.#head.clear(seq.slot);
    seq.headPast = 0;
  }

  save(seq: Sequence): SavedHead[] {
    return [{ state: saveHeadState(this.#head, seq.slot, seq.headPast), past: seq.headPast, made: undefined }];
  }

  restore(seq: Sequence, saved: readonly SavedHead[]): boolean {
    const [head] = saved as [SavedHead];
    if (!restoreHeadState(this.#head, seq.slot, head)) return false;
    seq.headPast = head.past;
    return true;
  }

  #feed(seqs: readonly Sequence[], fresh?: ReadonlyMap<Sequence, FreshHidden>): void {
    const startMs = this.#options.clock();
    const { nFed, nLost } = feedHead(this.#head, seqs, fresh);
    if (nFed > 0) this.times.nProcessCalls++;
    this.times.nRowsLost += nLost;
    this.times.processMs += this.#options.clock() - startMs;
  }

  /** Brings the head's missing rows down to what the first draft decode takes along. */
  #catchUp(seqs: readonly Sequence[]): void {
    const { catchup } = this.#options;
    if (catchup === "deferred") {
      for (const seq of seqs) this.#feed([seq]);
      return;
    }
    let isLong = catchup === "deferred-batched";
    let nRows = 0;
    for (const seq of seqs) {
      const n = nHeadRowsMissing(seq, true);
      nRows += n;
      if (n > maxFusedRows) isLong = true;
    }
    if (isLong || nRows > this.#head.rows.capacity) this.#feed(seqs);
  }

  /** Rows accepted since the last step and the pending token, whose output is the first draft. */
  #startBatch(seqs: readonly Sequence[], nDraft: number): void {
    this.#head.rows.n = 0;
    for (const seq of seqs) {
      this.times.nRowsLost += skipLostRows(this.#head, seq);
      this.#addRows(seq, seq.headPast, seq.nPast, nDraft);
      seq.headPast = seq.nPast + 1;
    }
  }

  /** One row a sequence: the draft just made, with the head's own hidden row. */
  #continueBatch(seqs: readonly Sequence[], n: number, nDraft: number): void {
    this.#head.rows.n = 0;
    for (const seq of seqs) this.#addRows(seq, seq.nPast + n, seq.nPast + n, nDraft);
  }

  /** Positions first..last, the last with output; with padding, as many earlier ones again as make nDraft + 1 rows. */
  #addRows(seq: Sequence, first: number, last: number, nDraft: number): void {
    const head = this.#head;
    let from = first;
    if (this.#options.pad) {
      const wanted = Math.max(0, last - nDraft);
      const oldest = seq.ring === undefined || seq.ring.begin === 0 ? 0 : seq.ring.begin + 1;
      from = Math.min(first, Math.max(wanted, oldest));
    }
    head.removeFrom(seq.slot, from);
    for (let p = from; p <= last; p++) {
      const i = p <= seq.nPast ? addHeadRow(head, seq, p, p === last) : this.#addChainedRow(seq, p, p === last);
      this.#outputRow[seq.slot] = i;
    }
  }

  /** The row of a draft token: position nPast + 1 + j takes draft j and the hidden row that produced it. */
  #addChainedRow(seq: Sequence, position: number, wantOutput: boolean): number {
    const { rows, nEmbd } = this.#head;
    const depth = position - seq.nPast - 1;
    const i = rows.n++;
    rows.tokens[i] = seq.draft[depth] as number;
    rows.positions[i] = position;
    rows.seqs[i] = seq.slot;
    rows.outputs[i] = wantOutput ? 1 : 0;
    const from = this.#chainedAt(seq.slot, depth);
    rows.hidden.set(this.#chained.subarray(from, from + nEmbd), i * nEmbd);
    return i;
  }

  #chainedAt(slot: number, depth: number): number {
    return (depth * this.#head.limits.nSeq + slot) * this.#head.nEmbd;
  }

  /** Reads the drafts of the last decode; keeps the hidden rows when another decode follows. Returns how many passed pMin. */
  #takeDrafts(seqs: readonly Sequence[], n: number, keepHidden: boolean): number {
    const head = this.#head;
    const { pMin } = this.#options;
    let nSure = 0;
    for (const seq of seqs) {
      const row = this.#outputRow[seq.slot] as number;
      const token = this.#sampler === undefined ? head.greedyToken(row) : this.#draw(seq, row, this.#sampler);
      seq.draft[n] = token;
      if (keepHidden) this.#chained.set(head.hidden(row), this.#chainedAt(seq.slot, n));
      if (pMin > 0 && this.#probability(seq, row, token) >= pMin) nSure++;
    }
    return nSure;
  }

  #draw(seq: Sequence, row: number, sampler: HostSampler): number {
    const head = this.#head;
    return head.samplingOf(seq.slot) === "host" ? sampler.fromLogits(head.logits(row), this.#samplerState) : sampler.fromCandidates(head.candidates(row), this.#samplerState);
  }

  /** Probability of the draft token: exact from all logits, among the candidates from a device chain. */
  #probability(seq: Sequence, row: number, token: number): number {
    const head = this.#head;
    if (head.samplingOf(seq.slot) === "host") {
      const logits = head.logits(row);
      const own = logits[token] as number;
      let total = 0;
      for (let i = 0; i < logits.length; i++) total += Math.exp((logits[i] as number) - own);
      return 1 / total;
    }
    const { n, tokens, logits } = head.candidates(row);
    let own = -Infinity;
    for (let i = 0; i < n; i++) if (tokens[i] === token) own = logits[i] as number;
    let total = 0;
    for (let i = 0; i < n; i++) total += Math.exp((logits[i] as number) - own);
    return 1 / total;
  }
}
