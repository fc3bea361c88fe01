/**
 * Matrices that one group of slots has made and the others take: groups are threads of a process on one set of weights, so a
 * model's tensors have the same addresses in all of them.
 *
 * Groups make their contexts one after the other (`Barrier.inTurn`), which orders what they write here. What is given away
 * is freed by who has loaded the weights, after all groups have ended: none of them knows when the last context is gone that
 * computes with it.
 */
import type { Pointer } from "./structs.ts";

/** Numbers of an entry before the addresses of its parts: kind, how many parts, then the matrix, its context and its buffer. */
const entryHead = 5;
/** Room for some thousands of matrices; what finds none is not shared. */
const mostNumbers = 1 << 16;

/** For all groups of a process. */
export const sharedMatrixMemory = (): SharedArrayBuffer => new SharedArrayBuffer(Float64Array.BYTES_PER_ELEMENT * mostNumbers);

/** A matrix and the native memory that it is in. */
export interface OwnedMatrix {
  readonly matrix: Pointer;
  readonly context: Pointer;
  readonly buffer: Pointer;
}

export class SharedMatrices {
  /** How many numbers of entries there are, then they. Addresses are below 2^48. */
  readonly #numbers: Float64Array;

  constructor(memory: SharedArrayBuffer) {
    this.#numbers = new Float64Array(memory);
  }

  /** The matrix of a kind that was made of these parts, in their order. */
  find(kind: number, parts: readonly number[]): Pointer | undefined {
    for (const at of this.#entries()) {
      const isSame = this.#at(at) === kind && this.#at(at + 1) === parts.length && parts.every((address, i) => this.#at(at + entryHead + i) === address);
      if (isSame) return BigInt(this.#at(at + 2));
    }
    return undefined;
  }

  /** @returns whether there was room for it: it is no longer its maker's then */
  give(kind: number, parts: readonly number[], { matrix, context, buffer }: OwnedMatrix): boolean {
    const used = this.#at(0);
    const entry = [kind, parts.length, Number(matrix), Number(context), Number(buffer), ...parts];
    if (1 + used + entry.length > this.#numbers.length) return false;
    this.#numbers.set(entry, 1 + used);
    this.#numbers[0] = used + entry.length;
    return true;
  }

  /** Takes all out again, to be freed. */
  takeAll(): OwnedMatrix[] {
    const all = [...this.#entries()].map((at) => {
      const [matrix, context, buffer] = [2, 3, 4].map((i) => BigInt(this.#at(at + i))) as [Pointer, Pointer, Pointer];
      return { matrix, context, buffer };
    });
    this.#numbers[0] = 0;
    return all;
  }

  *#entries(): Generator<number> {
    const end = 1 + this.#at(0);
    for (let at = 1; at < end; at += entryHead + this.#at(at + 1)) yield at;
  }

  #at(i: number): number {
    return this.#numbers[i] as number;
  }
}
