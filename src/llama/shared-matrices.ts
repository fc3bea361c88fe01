/**
 * Matrices that one group of slots has made and the others take: groups are threads of a process on one set of weights, so a
 * model's tensors have the same addresses in all of them.
 *
 * Groups make their contexts one after the other (`Barrier.inTurn`), which orders what they write here. What is given away
 * belongs to the process: no group knows when the last context is gone that computes with it, and the process ends with them.
 */
import type { Pointer } from "./structs.ts";

/** Numbers of an entry: kind, address of the first part, sum of all addresses, address of the matrix. */
const entrySize = 4;
/** More than matrices of a model; what finds no place is not shared. */
const mostEntries = 8192;

/** For all groups of a process. */
export const sharedMatrixMemory = (): SharedArrayBuffer => new SharedArrayBuffer(Float64Array.BYTES_PER_ELEMENT * (1 + mostEntries * entrySize));

export class SharedMatrices {
  /** How many entries there are, then they. Addresses are below 2^48. */
  readonly #numbers: Float64Array;

  constructor(memory: SharedArrayBuffer) {
    this.#numbers = new Float64Array(memory);
  }

  /** The matrix of a kind that was made of these parts. */
  find(kind: number, parts: readonly number[]): Pointer | undefined {
    const wanted = keyOf(kind, parts);
    const end = 1 + this.#n * entrySize;
    for (let at = 1; at < end; at += entrySize) if (wanted.every((number, i) => number === this.#numbers[at + i])) return BigInt(this.#numbers[at + wanted.length] as number);
    return undefined;
  }

  /** @returns whether there was a place for it: it is the process's from now on */
  give(kind: number, parts: readonly number[], matrix: Pointer): boolean {
    if (this.#n === mostEntries) return false;
    this.#numbers.set([...keyOf(kind, parts), Number(matrix)], 1 + this.#n * entrySize);
    this.#numbers[0] = this.#n + 1;
    return true;
  }

  get #n(): number {
    return this.#numbers[0] as number;
  }
}

const keyOf = (kind: number, parts: readonly number[]): [number, number, number] => [kind, parts[0] ?? 0, parts.reduce((sum, address) => sum + address, 0)];
