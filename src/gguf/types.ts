/**
 * The numbers of the GGUF format: tensor types with their block sizes, value types of the metadata, file types.
 * From ggml.h, ggml-common.h and llama.h of llama.cpp v0.5.0; ids that were removed there are not listed, so they
 * read as unknown.
 */

export interface GgmlType {
  readonly id: number;
  /** As llama.cpp prints it, in upper case: `IQ4_XS`. */
  readonly name: string;
  /** Elements in a block; a row is a whole number of blocks. */
  readonly blockSize: number;
  /** Bytes of a block. */
  readonly blockBytes: number;
}

const type = (id: number, name: string, blockSize: number, blockBytes: number): GgmlType => ({ id, name, blockSize, blockBytes });

export const ggmlTypes: readonly GgmlType[] = [
  type(0, "F32", 1, 4),
  type(1, "F16", 1, 2),
  type(2, "Q4_0", 32, 18),
  type(3, "Q4_1", 32, 20),
  type(6, "Q5_0", 32, 22),
  type(7, "Q5_1", 32, 24),
  type(8, "Q8_0", 32, 34),
  type(9, "Q8_1", 32, 36),
  type(10, "Q2_K", 256, 84),
  type(11, "Q3_K", 256, 110),
  type(12, "Q4_K", 256, 144),
  type(13, "Q5_K", 256, 176),
  type(14, "Q6_K", 256, 210),
  type(15, "Q8_K", 256, 292),
  type(16, "IQ2_XXS", 256, 66),
  type(17, "IQ2_XS", 256, 74),
  type(18, "IQ3_XXS", 256, 98),
  type(19, "IQ1_S", 256, 50),
  type(20, "IQ4_NL", 32, 18),
  type(21, "IQ3_S", 256, 110),
  type(22, "IQ2_S", 256, 82),
  type(23, "IQ4_XS", 256, 136),
  type(24, "I8", 1, 1),
  type(25, "I16", 1, 2),
  type(26, "I32", 1, 4),
  type(27, "I64", 1, 8),
  type(28, "F64", 1, 8),
  type(29, "IQ1_M", 256, 56),
  type(30, "BF16", 1, 2),
  type(34, "TQ1_0", 256, 54),
  type(35, "TQ2_0", 256, 66),
  type(39, "MXFP4", 32, 17),
  type(40, "NVFP4", 64, 36),
  type(41, "Q1_0", 128, 18),
  type(42, "Q2_0", 64, 18),
];

const byId = new Map(ggmlTypes.map((t) => [t.id, t]));
const byName = new Map(ggmlTypes.map((t) => [t.name, t]));

/** The type with this id, or undefined when this release does not know it. */
export function ggmlType(id: number): GgmlType | undefined {
  return byId.get(id);
}

/** The type with this name in any case, or undefined. */
export function ggmlTypeByName(name: string): GgmlType | undefined {
  return byName.get(name.toUpperCase());
}

/** The type with this name; for names written in this program. */
export function knownType(name: string): GgmlType {
  const found = byName.get(name);
  if (found === undefined) throw new Error(`no ggml type is named ${name}`);
  return found;
}

/** `F32`, or `type 137 (unknown)`. */
export function typeName(id: number): string {
  return byId.get(id)?.name ?? `type ${id} (unknown)`;
}

/** Bytes of a tensor of this type; `shape[0]` is the row length and must be a whole number of blocks. */
export function tensorBytes(t: GgmlType, shape: readonly number[]): number {
  return (shape.reduce((n, d) => n * d, 1) / t.blockSize) * t.blockBytes;
}

export function elementCount(shape: readonly number[]): number {
  return shape.reduce((n, d) => n * d, 1);
}

/** Value types of the metadata (gguf.h). */
export const valueTypes = {
  u8: 0,
  i8: 1,
  u16: 2,
  i16: 3,
  u32: 4,
  i32: 5,
  f32: 6,
  bool: 7,
  string: 8,
  array: 9,
  u64: 10,
  i64: 11,
  f64: 12,
} as const;

export type ValueTypeName = keyof typeof valueTypes;
export type ScalarTypeName = Exclude<ValueTypeName, "array">;

const valueTypeNames = new Map(Object.entries(valueTypes).map(([name, id]) => [id as number, name as ValueTypeName]));

export function valueTypeName(id: number): ValueTypeName | undefined {
  return valueTypeNames.get(id);
}

const bytesOf: Readonly<Record<ValueTypeName, number | undefined>> = {
  u8: 1,
  i8: 1,
  bool: 1,
  u16: 2,
  i16: 2,
  u32: 4,
  i32: 4,
  f32: 4,
  u64: 8,
  i64: 8,
  f64: 8,
  string: undefined,
  array: undefined,
};

/** Bytes of a value of fixed size; undefined for strings and arrays. */
export function scalarBytes(name: ValueTypeName): number | undefined {
  return bytesOf[name];
}

/** The fewest bytes that one element of an array takes: an empty string is a length, an empty array a type and a length. */
export function leastElementBytes(name: ValueTypeName): number {
  return bytesOf[name] ?? (name === "string" ? 8 : 12);
}

/** `general.file_type` (llama_ftype in llama.h): what llama-quantize calls the whole file. */
const fileTypes: Readonly<Record<number, string>> = {
  0: "F32",
  1: "F16",
  2: "Q4_0",
  3: "Q4_1",
  7: "Q8_0",
  8: "Q5_0",
  9: "Q5_1",
  10: "Q2_K",
  11: "Q3_K_S",
  12: "Q3_K_M",
  13: "Q3_K_L",
  14: "Q4_K_S",
  15: "Q4_K_M",
  16: "Q5_K_S",
  17: "Q5_K_M",
  18: "Q6_K",
  19: "IQ2_XXS",
  20: "IQ2_XS",
  21: "Q2_K_S",
  22: "IQ3_XS",
  23: "IQ3_XXS",
  24: "IQ1_S",
  25: "IQ4_NL",
  26: "IQ3_S",
  27: "IQ3_M",
  28: "IQ2_S",
  29: "IQ2_M",
  30: "IQ4_XS",
  31: "IQ1_M",
  32: "BF16",
  36: "TQ1_0",
  37: "TQ2_0",
  38: "MXFP4_MOE",
  39: "NVFP4",
  40: "Q1_0",
  41: "Q2_0",
};

export function fileTypeName(id: number): string {
  return fileTypes[id] ?? `file type ${id} (unknown)`;
}

export function fileTypeId(name: string): number | undefined {
  const found = Object.entries(fileTypes).find(([, n]) => n === name.toUpperCase());
  return found === undefined ? undefined : Number(found[0]);
}

export const ggufVersion = 3;
export const defaultAlignment = 32;
/** GGML_MAX_NAME: a tensor name with its terminating zero. */
export const maxTensorNameBytes = 63;
export const maxDimensions = 4;
/** GGML_QNT_VERSION, the value of `general.quantization_version`. */
export const quantizationVersion = 2;
