/**
 * Several heads, one a draft position, each with a context of its own (the reports' h1/h2/h3 and per-head contexts).
 *
 * Head j drafts position j from the hidden row that head j - 1 made of the token before; head 0 takes the target's. So
 * head j catches up on the accepted tokens with head j - 1's hidden rows, which are kept per slot and head. A longer
 * draft than there are heads goes on with the last one.
 */
import type { DecodeContext } from "../backend.ts";
import type { FreshHidden } from "../head-feed.ts";
import { HiddenRing } from "../hidden-ring.ts";
import type { Sequence } from "../sequence.ts";
import type { SavedHead } from "../prompt-cache.ts";
import { createDraftTimes, restoreHeadState, saveHeadState, type Drafter, type DraftTimes } from "./drafter.ts";

export interface MtpHeadsOptions {
  readonly nMin: number;
  readonly nRingRows: number;
  readonly clock: () => number;
}

/** More missing rows than this are fed without outputs first. */
const maxFusedRows = 16;

/** What a head has of one slot. */
interface Place {
  /** Positions 0..past-1 are in the head's context, fed with accepted tokens. */
  past: number;
  /** This head's hidden rows by position. */
  readonly made: HiddenRing;
}

export class MtpHeadsDrafter implements Drafter {
  readonly times: DraftTimes = createDraftTimes();
  readonly #heads: readonly DecodeContext[];
  readonly #options: MtpHeadsOptions;
  readonly #places: readonly (readonly Place[])[];

  constructor(heads: readonly DecodeContext[], options: MtpHeadsOptions) {
    this.#heads = heads;
    this.#options = options;
    this.#places = heads.map((head) => Array.from({ length: head.limits.nSeq }, () => ({ past: 0, made: new HiddenRing(options.nRingRows, head.nEmbd) })));
  }

  draft(seqs: readonly Sequence[], nDraft: number, launched?: () => void): number {
    const { clock, nMin } = this.#options;
    const startMs = clock();
    for (let n = 0; n < nDraft; n++) {
      const j = Math.min(n, this.#heads.length - 1);
      const rows = this.#run(j, seqs, n, n === 0 ? launched : undefined);
      const head = this.#heads[j] as DecodeContext;
      for (const [i, seq] of seqs.entries()) seq.draft[n] = head.greedyToken(rows[i] as number);
      this.times.nGenerateCalls++;
    }
    this.times.generateMs += clock() - startMs;
    return nDraft < nMin ? 0 : nDraft;
  }

  /** Accepted rows join in the next draft's decodes, as with one head. */
  afterVerify(): void {}

  /** Head after head reads the prompt; without this a long prompt would make the first draft decode too large. */
  afterPrefill(seqs: readonly Sequence[], _fresh: ReadonlyMap<Sequence, FreshHidden>, isDrafting: boolean): void {
    if (!isDrafting) return;
    const startMs = this.#options.clock();
    for (const j of this.#heads.keys()) for (const seq of seqs) this.#catchUp(j, seq);
    this.times.processMs += this.#options.clock() - startMs;
    this.times.nProcessCalls += this.#heads.length;
  }

  afterPlain(): void {}

  release(seq: Sequence): void {
    for (const [j, head] of this.#heads.entries()) {
      head.clear(seq.slot);
      const place = this.#place(j, seq);
      place.past = 0;
      place.made.reset();
    }
  }

  save(seq: Sequence): SavedHead[] {
    return this.#heads.map((head, j) => {
      const { past, made } = this.#place(j, seq);
      const isFed = j + 1 < this.#heads.length;
      const from = isFed ? Math.max(0, this.#place(j + 1, seq).past - 1) : past;
      return { state: saveHeadState(head, seq.slot, past), past, made: made.save(from, past) };
    });
  }

  restore(seq: Sequence, saved: readonly SavedHead[]): boolean {
    for (const [j, head] of this.#heads.entries()) {
      const from = saved[j] as SavedHead;
      if (!restoreHeadState(head, seq.slot, from)) {
        this.release(seq);
        return false;
      }
      const place = this.#place(j, seq);
      place.past = from.past;
      if (from.made !== undefined) place.made.load(from.made);
    }
    return true;
  }

  #place(j: number, seq: Sequence): Place {
    return (this.#places[j] as readonly Place[])[seq.slot] as Place;
  }

  /** Where head j finds the hidden row of a position: the target's rows, or those of the head before. */
  #source(j: number, seq: Sequence): HiddenRing {
    return j === 0 ? (seq.ring as HiddenRing) : this.#place(j - 1, seq).made;
  }

  /** Feeds decoded positions without outputs, in pieces of the batch. */
  #catchUp(j: number, seq: Sequence): void {
    const head = this.#heads[j] as DecodeContext;
    const place = this.#place(j, seq);
    while (place.past < seq.nPast) {
      this.#skipLost(j, seq);
      head.rows.n = 0;
      head.removeFrom(seq.slot, place.past);
      const first = place.past;
      while (place.past < seq.nPast && head.rows.n < head.rows.capacity) this.#addRow(j, seq, place.past++, seq.tokens[place.past - 1] as number, false, j);
      if (head.rows.n === 0) return;
      head.decode();
      place.made.write(first, head.hiddenAll(), 0, place.past - first);
    }
  }

  /** One decode of head j for draft position n: rows it lacks, the pending token, the drafts so far. Returns the output rows. */
  #run(j: number, seqs: readonly Sequence[], n: number, launched: (() => void) | undefined): number[] {
    const head = this.#heads[j] as DecodeContext;
    let nRows = 0;
    for (const seq of seqs) nRows += n > j ? 1 : seq.nPast + n - this.#place(j, seq).past + 1;
    const isTooMany = nRows > head.rows.capacity;
    for (const seq of seqs) if (isTooMany || seq.nPast - this.#place(j, seq).past > maxFusedRows) this.#catchUp(j, seq);
    head.rows.n = 0;
    const outputs: number[] = [];
    const firsts: [row: number, position: number, count: number][] = [];
    for (const seq of seqs) {
      this.#skipLost(j, seq);
      const place = this.#place(j, seq);
      // The last head drafting further positions has the accepted rows and its own drafts already.
      const chained = n > j;
      const first = chained ? seq.nPast + n : place.past;
      head.removeFrom(seq.slot, first);
      firsts.push([head.rows.n, first, seq.nPast + n - first + 1]);
      for (let p = first; p <= seq.nPast + n; p++) {
        const token = p <= seq.nPast ? (seq.tokens[p] as number) : (seq.draft[p - seq.nPast - 1] as number);
        this.#addRow(j, seq, p, token, p === seq.nPast + n, chained ? j + 1 : j);
      }
      outputs.push(head.rows.n - 1);
      if (!chained) place.past = seq.nPast + 1;
    }
    head.decode();
    launched?.();
    const hidden = head.hiddenAll();
    for (const [i, seq] of seqs.entries()) {
      const [row, position, count] = firsts[i] as [number, number, number];
      this.#place(j, seq).made.write(position, hidden, row, count);
    }
    return outputs;
  }

  /** @param from the head whose source ring has the hidden row: its own for chained rows is `j + 1` */
  #addRow(j: number, seq: Sequence, position: number, token: number, wantOutput: boolean, from: number): void {
    const { rows, nEmbd } = this.#heads[j] as DecodeContext;
    const i = rows.n++;
    rows.tokens[i] = token;
    rows.positions[i] = position;
    rows.seqs[i] = seq.slot;
    rows.outputs[i] = wantOutput ? 1 : 0;
    if (position === 0) rows.hidden.fill(0, i * nEmbd, (i + 1) * nEmbd);
    else this.#source(from, seq).read(position - 1, rows.hidden, i);
  }

  /** Rows whose hidden state fell out of a ring leave a gap in this head. */
  #skipLost(j: number, seq: Sequence): void {
    const place = this.#place(j, seq);
    const { begin } = this.#source(j, seq);
    if (Math.max(0, place.past - 1) < begin) {
      this.times.nRowsLost += begin + 1 - place.past;
      // Drafts that were not accepted must not stay behind in the gap.
      this.#heads[j]?.removeFrom(seq.slot, place.past);
      place.past = Math.min(begin + 1, seq.nPast);
    }
  }
}
