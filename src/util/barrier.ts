/** Threads of one process that take turns and wait for each other. Blocks the thread, so never for the main one. */
export interface BarrierMemory {
  readonly size: number;
  readonly words: SharedArrayBuffer;
  readonly board: SharedArrayBuffer;
  readonly values: SharedArrayBuffer;
}

/** Words: whose turn it is, threads that have arrived at the meeting, meetings so far, bytes on the board; then what each thread works at. */
const words = { turn: 0, arrived: 1, meetings: 2, written: 3, work: 4 } as const;
const boardBytes = 1 << 16;
/** Two cost tables of the largest size take 918. */
const nValues = 1 << 12;

/** Added to a thread's number while its work has just changed, or is about to. */
export const inFlux = 1 << 10;

export function barrierMemory(size: number): BarrierMemory {
  return { size, words: new SharedArrayBuffer((words.work + size) * Int32Array.BYTES_PER_ELEMENT), board: new SharedArrayBuffer(boardBytes), values: new SharedArrayBuffer(nValues * Float64Array.BYTES_PER_ELEMENT) };
}

export class Barrier {
  readonly #size: number;
  readonly #index: number;
  readonly #words: Int32Array;
  readonly #board: Uint8Array;
  /** Numbers that all threads read and write. */
  readonly values: Float64Array;

  constructor({ size, words: memory, board, values }: BarrierMemory, index: number) {
    this.#size = size;
    this.#index = index;
    this.#words = new Int32Array(memory);
    this.#board = new Uint8Array(board);
    this.values = new Float64Array(values);
  }

  /** What this thread works at, for the others: a number of the callers' choice below `inFlux`, which may be added; 0 for nothing. */
  set work(kind: number) {
    Atomics.store(this.#words, words.work + this.#index, kind);
  }

  get work(): number {
    return Atomics.load(this.#words, words.work + this.#index);
  }

  /** The highest of the others' numbers, in flux or not; 0 where none of them works. */
  get most(): number {
    let most = 0;
    for (let i = 0; i < this.#size; i++) if (i !== this.#index) most = Math.max(most, Atomics.load(this.#words, words.work + i) % inFlux);
    return most;
  }

  /** Whether all threads that work, work at the same as this one, and none of the others' work is in flux. */
  get isAlike(): boolean {
    const own = this.work % inFlux;
    for (let i = 0; i < this.#size; i++) {
      const other = Atomics.load(this.#words, words.work + i);
      if (i !== this.#index && other !== 0 && other !== own) return false;
    }
    return true;
  }

  /** Runs `work` when all threads of lower index have run theirs. One call a thread. When it throws, the others wait for ever: the process has to end. */
  inTurn<T>(work: () => T): T {
    for (let turn = Atomics.load(this.#words, words.turn); turn !== this.#index; turn = Atomics.load(this.#words, words.turn)) Atomics.wait(this.#words, words.turn, turn);
    const result = work();
    Atomics.add(this.#words, words.turn, 1);
    Atomics.notify(this.#words, words.turn);
    return result;
  }

  /** `make` runs in the first thread while the others wait; all get its result, as JSON keeps it. One call a thread. */
  fromFirst<T>(make: () => T): T {
    this.meet();
    if (this.#index === 0) {
      const text = JSON.stringify(make()) ?? "null";
      const { written, read } = new TextEncoder().encodeInto(text, this.#board);
      if (read < text.length) throw new Error(`fromFirst: ${text.length} characters of JSON, the board holds ${boardBytes} bytes`);
      Atomics.store(this.#words, words.written, written);
    }
    this.meet();
    const text = new TextDecoder().decode(this.#board.slice(0, Atomics.load(this.#words, words.written)));
    // The board must not change while somebody reads it.
    this.meet();
    return JSON.parse(text) as T;
  }

  /** Returns when all threads have called it as often as this one. */
  meet(): void {
    const meeting = Atomics.load(this.#words, words.meetings);
    if (Atomics.add(this.#words, words.arrived, 1) + 1 === this.#size) {
      Atomics.store(this.#words, words.arrived, 0);
      Atomics.add(this.#words, words.meetings, 1);
      Atomics.notify(this.#words, words.meetings);
      return;
    }
    while (Atomics.load(this.#words, words.meetings) === meeting) Atomics.wait(this.#words, words.meetings, meeting);
  }
}
