/**
 * A scripted backend: a "language" instead of a model, with libllama's rules and traps. It throws where the engine
 * breaks a rule that libllama would punish silently: a hidden row of the wrong token, a rollback beyond the last forward,
 * a gap in the positions. With it acceptance counts, order and rollbacks are asserted exactly, without weights.
 */
import { DecodeError, type Backend, type Candidates, type ContextLimits, type DecodeContext, type Rows, type SlotSampling } from "../src/engine/backend.ts";
import { predictForwards, splitOptionsOf } from "../src/engine/split.ts";

export interface FakeOptions {
  readonly nSeq?: number;
  readonly nCtxSeq?: number;
  readonly nRows?: number;
  readonly nUbatch?: number;
  readonly nRollback?: number;
  /** One pool of cells (the default), or cells of each sequence apart: then a forward takes consecutive ids only. */
  readonly isUnified?: boolean;
  readonly nVocab?: number;
  readonly nHeads?: number;
  /** A second target context that cannot roll back. */
  readonly hasPlain?: boolean;
  readonly sampling?: SlotSampling;
  readonly isAsynchronous?: boolean;
  /** The text: the token that follows a history. */
  readonly next?: (history: readonly number[], seq: number) => number;
  /** Whether the head's draft of the token at `position` is right. */
  readonly isDraftRight?: (position: number, seq: number) => boolean;
  /** Logits of a row instead of a single certain token. */
  readonly logits?: (history: readonly number[], seq: number) => Float32Array;
  readonly endOfGeneration?: number;
}

const nEmbd = 4;
const targetTag = 1;
const chainTag = 2;

/** A hidden row is a function of all the text before it, here a hash that a float holds exactly. */
function prefixHash(history: readonly number[]): number {
  let hash = 7;
  for (const token of history) hash = Math.imul(hash ^ (token + 1), 2654435761) >>> 8;
  return history.includes(-1) ? NaN : hash;
}

/** A text that never repeats soon and depends on the last two tokens and the length. */
export function hashNext(history: readonly number[], nVocab: number): number {
  const a = history.at(-1) ?? 0;
  const b = history.at(-2) ?? 0;
  return (Math.imul(a, 2654435761) ^ Math.imul(b, 40503) ^ Math.imul(history.length, 69069)) >>> 0 ? (((Math.imul(a + 1, 2654435761) ^ Math.imul(b + 7, 40503) ^ Math.imul(history.length, 69069)) >>> 8) % (nVocab - 1)) : 0;
}

export interface DecodeLog {
  readonly role: "target" | "head";
  readonly rows: readonly { readonly seq: number; readonly position: number; readonly token: number; readonly wantsOutput: boolean }[];
  readonly nForwards: number;
}

export class FakeContext implements DecodeContext {
  readonly limits: ContextLimits;
  readonly rows: Rows;
  readonly nVocab: number;
  readonly nEmbd = nEmbd;
  readonly history: number[][];
  readonly #log: DecodeLog[];
  readonly #role: "target" | "head";
  readonly #options: Required<Pick<FakeOptions, "next" | "isDraftRight" | "sampling">> & FakeOptions;
  #lastRows: number[];
  #rolledBack: boolean[];
  #nForwards = 0;
  /** The forward that wrote each sequence's snapshots: a later one may have moved the state and left them behind. */
  readonly #forwardOf: number[];
  #output: { history: number[]; seq: number; isOutput: boolean }[] = [];
  #hidden: Float32Array = new Float32Array(0);
  #nDecodes = 0;
  isOpen = true;

  constructor(role: "target" | "head", options: FakeOptions, log: DecodeLog[]) {
    const { nSeq = 4, nCtxSeq = 256, nRows = 512, nUbatch = 512, nVocab = 97, nRollback = 4, isUnified = true } = options;
    this.#role = role;
    this.#log = log;
    this.#options = { next: (h) => hashNext(h, nVocab), isDraftRight: () => true, sampling: "host", ...options };
    this.nVocab = nVocab;
    this.limits = { nSeq, nCtxSeq: isUnified ? nSeq * nCtxSeq : nCtxSeq, nCells: nSeq * nCtxSeq, nRows, nUbatch, nOutputsPerSeq: Infinity, nRollback: role === "target" ? nRollback : Infinity };
    this.rows = {
      capacity: nRows,
      n: 0,
      tokens: new Int32Array(nRows),
      positions: new Int32Array(nRows),
      seqs: new Int32Array(nRows),
      outputs: new Int8Array(nRows),
      hidden: new Float32Array(role === "head" ? nRows * nEmbd : 0),
    };
    this.history = Array.from({ length: nSeq }, () => []);
    this.#lastRows = Array.from({ length: nSeq }, () => 0);
    this.#rolledBack = Array.from({ length: nSeq }, () => false);
    this.#forwardOf = Array.from({ length: nSeq }, () => 0);
  }

  samplingOf(): SlotSampling {
    return this.#options.sampling;
  }

  decode(): void {
    const { n, tokens, positions, seqs, outputs, hidden } = this.rows;
    if (n === 0 || n > this.rows.capacity) throw new DecodeError(-1, `${n} rows`);
    const perSeq = new Map<number, number>();
    this.#output = [];
    const rowHidden: [number, number, number, number][] = [];
    for (let i = 0; i < n; i++) {
      const seq = seqs[i] as number;
      const position = positions[i] as number;
      const token = tokens[i] as number;
      const history = this.history[seq];
      if (history === undefined || token < 0 || token >= this.nVocab) throw new DecodeError(-1, `token ${token} of sequence ${seq}`);
      if (perSeq.has(seq) && seqs[i - 1] !== seq) throw new Error(`rows of sequence ${seq} are not adjacent`);
      if (this.#role === "target" && position !== history.length) throw new Error(`target: sequence ${seq} holds ${history.length}, row at ${position}`);
      if (this.#role === "head" && position < history.length) throw new Error(`head: sequence ${seq} holds ${history.length}, row at ${position}`);
      if (position >= this.limits.nCtxSeq) throw new DecodeError(1, "no room in the KV cache");
      if (this.#role === "head") this.#checkHidden(seq, position, hidden.subarray(i * nEmbd, (i + 1) * nEmbd));
      while (history.length < position) history.push(-1);
      history.push(token);
      perSeq.set(seq, (perSeq.get(seq) ?? 0) + 1);
      this.#output.push({ history: [...history], seq, isOutput: outputs[i] === 1 });
      rowHidden.push([position, token, this.#role === "target" ? targetTag : chainTag, prefixHash(history)]);
    }
    for (const [seq, count] of perSeq) {
      this.#lastRows[seq] = count;
      this.#rolledBack[seq] = false;
    }
    const forwards = this.#role === "head" ? [] : predictForwards([...perSeq], splitOptionsOf(this.limits));
    for (const forward of forwards) {
      this.#nForwards++;
      for (const seq of forward.seqs) this.#forwardOf[seq] = this.#nForwards;
    }
    this.#hidden = this.#orderHidden(rowHidden, [...seqs.subarray(0, n)], forwards, [...perSeq.keys()]);
    this.#nDecodes++;
    this.#log.push({
      role: this.#role,
      rows: Array.from({ length: n }, (_, i) => ({ seq: seqs[i] as number, position: positions[i] as number, token: tokens[i] as number, wantsOutput: outputs[i] === 1 })),
      nForwards: this.#role === "head" ? 1 : forwards.length,
    });
  }

  /** libllama writes hidden rows in forward order when not every row is an output (trap B). */
  #orderHidden(rows: [number, number, number, number][], rowSeqs: readonly number[], forwards: readonly { seqs: readonly number[]; nRowsEach: number }[], seqOrder: number[]): Float32Array {
    let ordered = rows;
    if (forwards.length > 1 && this.#output.some((o) => !o.isOutput)) {
      const left = new Map(seqOrder.map((seq) => [seq, rows.filter((_, i) => rowSeqs[i] === seq)]));
      ordered = forwards.flatMap((f) => f.seqs.flatMap((seq) => (left.get(seq) as typeof rows).splice(0, f.nRowsEach)));
    }
    return Float32Array.from(ordered.flat());
  }

  #checkHidden(seq: number, position: number, hidden: Float32Array): void {
    const [at, token, tag, textHash] = hidden as unknown as [number, number, number, number];
    if (position === 0) {
      if (hidden.some((x) => x !== 0)) throw new Error("the head's first row takes zeros");
      return;
    }
    const history = (this.history[seq] as number[]).slice(0, position);
    const before = history[position - 1];
    // A head with a gap has not seen all of the text.
    const ownHash = history.length < position ? NaN : prefixHash(history);
    const isOtherText = !Number.isNaN(ownHash) && !Number.isNaN(textHash) && ownHash !== textHash;
    if ((tag !== targetTag && tag !== chainTag) || at !== position - 1 || isOtherText || (before !== undefined && before >= 0 && before !== token))
      throw new Error(`head: row of sequence ${seq} at ${position} got the hidden row of ${isOtherText ? "another text" : "this text"} at ${at} (token ${token}, tag ${tag}); before it is token ${before}`);
  }

  synchronize(): void {}

  #truth(row: number): number {
    const output = this.#output[row];
    if (output === undefined || !output.isOutput) throw new Error(`row ${row} is not an output`);
    return this.#options.next(output.history, output.seq);
  }

  greedyToken(row: number): number {
    const right = this.#truth(row);
    if (this.#role === "target") return right;
    const { history, seq } = this.#output[row] as { history: number[]; seq: number };
    return this.#options.isDraftRight(history.length, seq) ? right : (right + 1) % (this.nVocab - 1);
  }

  logits(row: number): Float32Array {
    const { history, seq } = this.#output[row] as { history: number[]; seq: number };
    if (this.#options.logits !== undefined) return this.#options.logits(history, seq);
    const logits = new Float32Array(this.nVocab).fill(-20);
    logits[this.greedyToken(row)] = 20;
    return logits;
  }

  candidates(row: number): Candidates {
    const all = this.logits(row);
    const tokens = Int32Array.from(all.keys());
    return { n: all.length, tokens, logits: all };
  }

  hidden(row: number): Float32Array {
    return this.#hidden.slice(row * nEmbd, (row + 1) * nEmbd);
  }

  hiddenAll(): Float32Array {
    return this.#hidden;
  }

  setHiddenOutput(_isOn?: boolean): void {}

  removeFrom(seq: number, from: number): boolean {
    const history = this.history[seq] as number[];
    const nRemoved = history.length - from;
    if (nRemoved <= 0) return true;
    if (Number.isFinite(this.limits.nRollback) && from > 0) {
      if (nRemoved > this.limits.nRollback || this.#rolledBack[seq] === true) return false;
      if (nRemoved >= (this.#lastRows[seq] as number)) throw new Error(`rollback of ${nRemoved} rows, the last decode of sequence ${seq} wrote ${this.#lastRows[seq]}`);
      if (this.#forwardOf[seq] !== this.#nForwards) throw new Error(`rollback of sequence ${seq}: its snapshots are of forward ${this.#forwardOf[seq]}, the last one is ${this.#nForwards}`);
      this.#rolledBack[seq] = true;
    }
    history.length = from;
    return true;
  }

  clear(seq: number): void {
    (this.history[seq] as number[]).length = 0;
    this.#rolledBack[seq] = false;
  }

  lastPosition(seq: number): number {
    return (this.history[seq] as number[]).length - 1;
  }

  saveSequence(seq: number, memory: (nBytes: number) => Uint8Array = (nBytes) => new Uint8Array(nBytes)): Uint8Array {
    const state = new Uint8Array(Int32Array.from(this.history[seq] as number[]).buffer);
    const bytes = memory(state.length).subarray(0, state.length);
    bytes.set(state);
    return bytes;
  }

  restoreSequence(seq: number, state: Uint8Array): boolean {
    this.history[seq] = [...new Int32Array(state.slice().buffer)];
    this.#lastRows[seq] = 0;
    this.#rolledBack[seq] = false;
    return true;
  }

  counters(): { nDecodes: number; nReusedGraphs: number } {
    return { nDecodes: this.#nDecodes, nReusedGraphs: 0 };
  }

  close(): void {
    this.isOpen = false;
  }
}

export interface FakeBackend extends Backend {
  readonly log: DecodeLog[];
  readonly target: FakeContext;
  readonly plainTarget: FakeContext | undefined;
}

export function createFakeBackend(options: FakeOptions = {}): FakeBackend {
  const log: DecodeLog[] = [];
  const target = new FakeContext("target", options, log);
  const plainTarget = options.hasPlain === true ? new FakeContext("target", { ...options, nRollback: 0 }, log) : undefined;
  const heads = Array.from({ length: options.nHeads ?? 1 }, () => new FakeContext("head", options, log));
  const eog = options.endOfGeneration ?? target.nVocab - 1;
  return {
    log,
    target,
    plainTarget,
    heads,
    description: { device: "script", library: "fake", modelPath: "fake.gguf", headPaths: [], isAsynchronous: options.isAsynchronous ?? false },
    createGrammar: () => ({ allows: () => true, mask: () => {}, accept: () => {}, close: () => {} }),
    isEndOfGeneration: (token) => token === eog,
    tokenBytes: (token) => new TextEncoder().encode(String.fromCharCode(97 + (token % 26))),
    close: () => {
      target.close();
      plainTarget?.close();
      for (const head of heads) head.close();
    },
  };
}
