/**
 * The three ways to put a draft before the target. Each decodes, verifies and rolls back one step; `Accept` takes the
 * tokens. Plain decoding is draft length 0 of any of them.
 *
 * - batched: every row of every sequence in one decode; rejected rows are rolled back. Fast; kernels differ by width. Where
 *   libllama would cut the decode into several forwards, each is a decode of its own, rolled back before the next.
 * - by-depth: one row of every sequence that still accepts, decode after decode. Nothing to roll back.
 * - sequential: one row in a decode. Equal to plain decoding of that sequence alone when that is decoded the same way
 *   (non-unified KV, one thread or width-stable kernels).
 */
import type { DecodeContext } from "./backend.ts";
import type { FreshHidden } from "./head-feed.ts";
import type { Sequence } from "./sequence.ts";
import { endOfForward } from "./split.ts";
import { drawAcceptance, verifyRows } from "./verify.ts";

export type VerifyMode = "batched" | "sequential" | "by-depth";

export interface VerifyHooks {
  /** The target's token of an output row, with the request's sampler. */
  readonly sample: (seq: Sequence, row: number) => number;
  /** Takes a token into the text; false ends the request. */
  readonly push: (seq: Sequence, token: number) => boolean;
  /** Called once, when the first decode of the step is launched: time to send what the last step produced. */
  readonly launched: () => void;
  /** A verified draft: `nDraft` proposed, `nAccepted` accepted and emitted. */
  readonly verified: (seq: Sequence, nDraft: number, nAccepted: number) => void;
  /** Unconditional acceptance rates to draw from instead of comparing; undefined for the real thing. */
  readonly synthetic: { readonly rates: readonly number[]; readonly uniform: () => number } | undefined;
  readonly clock: () => number;
}

export interface VerifyTimes {
  decodeMs: number;
  nDecodes: number;
  nRows: number;
  nOutputs: number;
}

export class Verifier {
  readonly times: VerifyTimes = { decodeMs: 0, nDecodes: 0, nRows: 0, nOutputs: 0 };
  readonly #target: DecodeContext;
  readonly #mode: VerifyMode;
  readonly #hooks: VerifyHooks;
  /** Whether the target's hidden rows are kept for a head. */
  keepsHidden: boolean;
  // State of the sequence under verification, so that no closure is made per token.
  #seq: Sequence | undefined;
  #firstRow = 0;
  readonly #sampleRow = (row: number): number => this.#hooks.sample(this.#seq as Sequence, this.#firstRow + row);
  readonly #pushToken = (token: number): boolean => this.#hooks.push(this.#seq as Sequence, token);

  constructor(target: DecodeContext, mode: VerifyMode, hooks: VerifyHooks, keepsHidden: boolean) {
    this.#target = target;
    this.#mode = mode;
    this.#hooks = hooks;
    this.keepsHidden = keepsHidden;
  }

  /** Decodes and verifies the pending token and `nDraft` drafts of every sequence. */
  run(seqs: readonly Sequence[], nDraft: number): void {
    if (this.#mode === "batched" || (nDraft === 0 && this.#mode === "by-depth")) this.#batched(seqs, nDraft);
    else if (this.#mode === "by-depth") this.#byDepth(seqs, nDraft);
    else for (const seq of seqs) this.#byDepth([seq], nDraft);
  }

  /**
   * Reads `length` prompt rows of each sequence in one decode; the row of a prompt's last token is an output. A prompt
   * that ends earlier is padded with its last token and rolled back. Returns where the hidden rows lie.
   */
  readPrompt(seqs: readonly Sequence[], length: number): ReadonlyMap<Sequence, FreshHidden> {
    const { rows } = this.#target;
    rows.n = 0;
    let nOutputs = 0;
    for (const seq of seqs) {
      for (let p = seq.nPast; p < seq.nPast + length; p++) {
        this.#addRow(seq, seq.tokens[Math.min(p, seq.nPrompt - 1)] as number, p);
        const isLast = p === seq.nPrompt - 1 && !seq.leavesLast;
        if (isLast) nOutputs++;
        else rows.outputs[rows.n - 1] = 0;
      }
    }
    this.#decode(nOutputs);
    const fresh = new Map<Sequence, FreshHidden>();
    const view = this.keepsHidden ? this.#target.hiddenAll() : undefined;
    for (const [i, seq] of seqs.entries()) {
      const nRead = Math.min(length, seq.nPrefillLeft);
      if (view !== undefined) {
        seq.ring?.write(seq.nPast, view, i * length, nRead);
      }
      fresh.set(seq, { view, row: i * length, position: seq.nPast });
      seq.nPast += nRead;
      if (nRead < length) this.#rollBack(seq, seq.nPast);
    }
    return fresh;
  }

  #batched(seqs: readonly Sequence[], nDraft: number): void {
    const { limits } = this.#target;
    const isCut = nDraft > 0 && Number.isFinite(limits.nRollback);
    for (let first = 0; first < seqs.length; ) {
      const end = isCut ? endOfForward(seqs, first, nDraft + 1, limits) : seqs.length;
      this.#together(first === 0 && end === seqs.length ? seqs : seqs.slice(first, end), nDraft);
      first = end;
    }
  }

  #together(seqs: readonly Sequence[], nDraft: number): void {
    const { rows } = this.#target;
    const width = nDraft + 1;
    rows.n = 0;
    for (const seq of seqs) {
      this.#addRow(seq, seq.tokens[seq.nPast] as number, seq.nPast);
      for (let i = 0; i < nDraft; i++) this.#addRow(seq, seq.draft[i] as number, seq.nPast + 1 + i);
    }
    this.#decode();
    const hidden = this.keepsHidden ? this.#target.hiddenAll() : undefined;
    for (let i = 0; i < seqs.length; i++) {
      const seq = seqs[i] as Sequence;
      if (seq.phase === "ghost") {
        if (hidden !== undefined) seq.ring?.write(seq.nPast, hidden, i * width, 1);
        seq.drift();
        if (nDraft > 0) this.#rollBack(seq, seq.nPast);
        continue;
      }
      const end = seq.nPast + nDraft;
      const nAccepted = this.#verifyRows(seq, i * width, Math.min(nDraft, seq.nMax));
      if (hidden !== undefined) seq.ring?.write(seq.nPast, hidden, i * width, nAccepted + 1);
      seq.nPast += nAccepted + 1;
      if (nDraft > 0) this.#hooks.verified(seq, Math.min(nDraft, seq.nMax), nAccepted);
      // A finished request's history may be kept, and later the snapshots are stale. An end-of-text token is decoded, not known.
      const nKnown = Math.min(seq.nPast, seq.nTokens);
      if (nKnown <= end) this.#rollBack(seq, nKnown);
    }
  }

  #verifyRows(seq: Sequence, firstRow: number, nDraft: number): number {
    this.#seq = seq;
    this.#firstRow = firstRow;
    const { synthetic } = this.#hooks;
    if (synthetic === undefined) return verifyRows(seq.draft, nDraft, this.#sampleRow, this.#pushToken);
    const wanted = drawAcceptance(synthetic.rates, nDraft, synthetic.uniform());
    for (let row = 0; row < wanted; row++) if (!this.#pushToken(seq.draft[row] as number)) return row + 1;
    this.#pushToken(this.#sampleRow(wanted));
    return wanted;
  }

  /** Only what the last forward of the context wrote can be rolled back (recurrent snapshots; trap A of the notes). */
  #rollBack(seq: Sequence, from: number): void {
    if (!this.#target.removeFrom(seq.slot, from))
      throw new Error(`llama_memory_seq_rm(seq ${seq.slot}, from ${from}) refused; the target holds positions up to ${this.#target.lastPosition(seq.slot)}`);
  }

  #byDepth(seqs: readonly Sequence[], nDraft: number): void {
    const { rows } = this.#target;
    let open = seqs;
    for (let depth = 0; depth <= nDraft && open.length > 0; depth++) {
      rows.n = 0;
      for (const seq of open) this.#addRow(seq, seq.tokens[seq.nPast] as number, seq.nPast);
      this.#decode();
      const hidden = this.keepsHidden ? this.#target.hiddenAll() : undefined;
      const next: Sequence[] = [];
      for (let i = 0; i < open.length; i++) {
        const seq = open[i] as Sequence;
        if (hidden !== undefined) seq.ring?.write(seq.nPast, hidden, i, 1);
        seq.nPast++;
        if (this.#acceptAt(seq, i, depth, nDraft)) next.push(seq);
      }
      open = next;
    }
  }

  /** Takes the token of one row; true when it equals the draft of this depth and the request goes on. */
  #acceptAt(seq: Sequence, row: number, depth: number, nDraft: number): boolean {
    const limit = Math.min(nDraft, seq.nMax);
    const { synthetic, verified } = this.#hooks;
    let token = this.#hooks.sample(seq, row);
    let isAccepted = depth < limit && token === seq.draft[depth];
    if (synthetic !== undefined && depth < limit) {
      const reached = depth === 0 ? 1 : (synthetic.rates[depth - 1] ?? 0);
      isAccepted = synthetic.uniform() * reached < (synthetic.rates[depth] ?? 0);
      if (isAccepted) token = seq.draft[depth] as number;
    }
    const goesOn = this.#hooks.push(seq, token);
    if (isAccepted && goesOn && depth < nDraft) return true;
    if (nDraft > 0) verified(seq, limit, depth + (isAccepted ? 1 : 0));
    return false;
  }

  #addRow(seq: Sequence, token: number, position: number): void {
    const { rows } = this.#target;
    const i = rows.n++;
    rows.tokens[i] = token;
    rows.positions[i] = position;
    rows.seqs[i] = seq.slot;
    rows.outputs[i] = 1;
  }

  #decode(nOutputs = this.#target.rows.n): void {
    const { clock, launched } = this.#hooks;
    const startMs = clock();
    this.#target.decode();
    launched();
    this.#target.synchronize();
    this.times.decodeMs += clock() - startMs;
    this.times.nDecodes++;
    this.times.nRows += this.#target.rows.n;
    this.times.nOutputs += nOutputs;
  }
}
