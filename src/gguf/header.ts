/** What the header of a GGUF file says, as plain data. */
import type { GgmlType, ScalarTypeName } from "./types.ts";

export type GgufScalar = string | number | bigint | boolean;

/** Where a value lies in its file; copying the bytes copies the value exactly. */
export interface ByteRange {
  readonly file: string;
  readonly offset: number;
  readonly sizeBytes: number;
}

export interface GgufScalarEntry {
  readonly kind: "scalar";
  readonly key: string;
  readonly type: ScalarTypeName;
  readonly value: GgufScalar;
  /** The whole entry: key, type, value. */
  readonly range: ByteRange;
}

export interface GgufArrayEntry {
  readonly kind: "array";
  readonly key: string;
  readonly elementType: ScalarTypeName | "array";
  readonly length: number;
  /** Undefined when the array is long; `readArray` reads it. */
  readonly values: readonly GgufScalar[] | undefined;
  readonly range: ByteRange;
  /** The elements alone. */
  readonly elements: ByteRange;
}

export type GgufEntry = GgufScalarEntry | GgufArrayEntry;

export interface GgufTensor {
  readonly name: string;
  /** ggml order: `shape[0]` is the row length. */
  readonly shape: readonly number[];
  readonly typeId: number;
  /** Undefined for a type that this release does not know. */
  readonly type: GgmlType | undefined;
  readonly nElements: number;
  readonly file: string;
  /** Absolute position in `file`. */
  readonly offset: number;
  /** Of an unknown type: the bytes up to the next tensor. */
  readonly sizeBytes: number;
}

export interface GgufHeader {
  readonly file: string;
  readonly fileBytes: number;
  readonly version: number;
  readonly littleEndian: boolean;
  /** In file order. */
  readonly entries: ReadonlyMap<string, GgufEntry>;
  /** In file order. */
  readonly tensors: readonly GgufTensor[];
  readonly alignment: number;
  /** Where tensor data begins. */
  readonly dataOffset: number;
  /** What can be read but llama.cpp refuses or ignores, one sentence each. */
  readonly remarks: readonly string[];
}
