/**
 * Two contexts of one target as one: the rolling one keeps snapshots of the recurrent state, which drafting needs and
 * every step pays for (measured: 4 to 7% of a step, drafted or not); the plain one keeps none.
 *
 * A sequence is in one of them. Its state moves (`llama_state_seq_*_ext`, through the host) when it is decoded in the
 * other one; the engine decides which one decodes (`tier.ts`).
 */
import type { Candidates, ContextLimits, DecodeContext, Rows, SlotSampling } from "./backend.ts";

export class TargetPair implements DecodeContext {
  readonly rolling: DecodeContext;
  readonly plain: DecodeContext;
  readonly #home: DecodeContext[];
  #active: DecodeContext;
  /** The context of the last decode: what is read comes from there. */
  #decoded: DecodeContext;
  /** Memory of at least so many bytes that moves go through: made new each time, its pages alone would take milliseconds. */
  readonly #staging: (nBytes: number) => Uint8Array;
  /** States moved since creation. */
  nMoved = 0;

  constructor(rolling: DecodeContext, plain: DecodeContext, staging: (nBytes: number) => Uint8Array = (nBytes) => new Uint8Array(nBytes)) {
    this.#staging = staging;
    this.rolling = rolling;
    this.plain = plain;
    this.#active = rolling;
    this.#decoded = rolling;
    this.#home = Array.from({ length: rolling.limits.nSeq }, () => rolling);
  }

  /** Which context the next decodes run in. A sequence follows when it is decoded, or by `moveToActive`. */
  use(isPlain: boolean): void {
    this.#active = isPlain ? this.plain : this.rolling;
  }

  get isPlain(): boolean {
    return this.#active === this.plain;
  }

  get limits(): ContextLimits {
    return this.#active.limits;
  }

  get rows(): Rows {
    return this.#active.rows;
  }

  get nVocab(): number {
    return this.rolling.nVocab;
  }

  get nEmbd(): number {
    return this.rolling.nEmbd;
  }

  samplingOf(seq: number): SlotSampling {
    return this.rolling.samplingOf(seq);
  }

  decode(): void {
    const { n, seqs } = this.#active.rows;
    for (let i = 0; i < n; i++) if (this.#home[seqs[i] as number] !== this.#active) this.#move(seqs[i] as number);
    this.#decoded = this.#active;
    this.#active.decode();
  }

  moveToActive(seqs: readonly number[]): void {
    for (const seq of seqs) if (this.#home[seq] !== this.#active) this.#move(seq);
  }

  #move(seq: number): void {
    const from = this.#home[seq];
    // A wrong id is the decode's own to refuse.
    if (from === undefined) return;
    if (from.lastPosition(seq) >= 0) {
      const state = from.saveSequence(seq, this.#staging);
      if (!this.#active.restoreSequence(seq, state)) throw new Error(`sequence ${seq}: its state does not fit the other context of the target`);
      from.clear(seq);
      this.nMoved++;
    }
    this.#home[seq] = this.#active;
  }

  synchronize(): void {
    this.#decoded.synchronize();
  }

  greedyToken(row: number): number {
    return this.#decoded.greedyToken(row);
  }

  logits(row: number): Float32Array {
    return this.#decoded.logits(row);
  }

  candidates(row: number): Candidates {
    return this.#decoded.candidates(row);
  }

  hidden(row: number): Float32Array {
    return this.#decoded.hidden(row);
  }

  hiddenAll(): Float32Array {
    return this.#decoded.hiddenAll();
  }

  setHiddenOutput(on: boolean): void {
    this.rolling.setHiddenOutput(on);
    this.plain.setHiddenOutput(on);
  }

  removeFrom(seq: number, from: number): boolean {
    return this.#homeOf(seq).removeFrom(seq, from);
  }

  clear(seq: number): void {
    this.#homeOf(seq).clear(seq);
  }

  lastPosition(seq: number): number {
    return this.#homeOf(seq).lastPosition(seq);
  }

  saveSequence(seq: number, memory?: (nBytes: number) => Uint8Array): Uint8Array {
    return this.#homeOf(seq).saveSequence(seq, memory);
  }

  restoreSequence(seq: number, state: Uint8Array): boolean {
    this.#homeOf(seq).clear(seq);
    this.#home[seq] = this.#active;
    return this.#active.restoreSequence(seq, state);
  }

  counters(): { readonly nDecodes: number; readonly nReusedGraphs: number } {
    const [a, b] = [this.rolling.counters(), this.plain.counters()];
    return { nDecodes: a.nDecodes + b.nDecodes, nReusedGraphs: a.nReusedGraphs + b.nReusedGraphs };
  }

  close(): void {
    this.plain.close();
    this.rolling.close();
  }

  #homeOf(seq: number): DecodeContext {
    return this.#home[seq] ?? this.#active;
  }
}
