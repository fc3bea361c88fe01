/**
 * Typed arrays over memory that libllama owns. koffi.view costs about 2 microseconds, so views are kept by address.
 * A view is only an address and a length: an old one is harmless, because callers touch no more than the address just
 * returned by libllama is good for. None may be read after its context is freed.
 */
import koffi from "koffi";
import type { Pointer } from "./structs.ts";

const MOST_VIEWS = 64;

export interface RowView {
  readonly all: Float32Array;
  /** The same bytes as integers. */
  readonly ints: Int32Array;
  /** Row i of width `width`, made when first asked for. */
  row(i: number, width: number): Float32Array;
}

class FloatView implements RowView {
  readonly all: Float32Array;
  readonly ints: Int32Array;
  readonly #rows: Float32Array[] = [];

  constructor(pointer: Pointer, length: number) {
    const memory = koffi.view(pointer, 4 * length);
    this.all = new Float32Array(memory);
    this.ints = new Int32Array(memory);
  }

  row(i: number, width: number): Float32Array {
    return (this.#rows[i] ??= this.all.subarray(i * width, (i + 1) * width));
  }
}

/** Views of matrices of one width, 4 bytes an element. */
export class ViewCache {
  readonly #views = new Map<Pointer, FloatView>();
  #lastPointer: Pointer | undefined;
  #last: FloatView | undefined;

  /** A view of at least `length` floats at the address. */
  get(pointer: Pointer, length: number): RowView {
    if (pointer === this.#lastPointer && this.#last !== undefined && this.#last.all.length >= length) return this.#last;
    let view = this.#views.get(pointer);
    if (view === undefined || view.all.length < length) {
      if (this.#views.size >= MOST_VIEWS) this.#views.clear();
      view = new FloatView(pointer, length);
      this.#views.set(pointer, view);
    }
    this.#lastPointer = pointer;
    this.#last = view;
    return view;
  }

  clear(): void {
    this.#views.clear();
    this.#last = undefined;
    this.#lastPointer = undefined;
  }
}
