/**
 * Numbers of BF16, F16 and F32 in little-endian bytes, converted in blocks. Rounding is to nearest even, as numpy and
 * ggml round (ggml-impl.h, gguf-py/gguf/quants.py).
 */
import { UserError } from "../util/errors.ts";

export type FloatType = "BF16" | "F16" | "F32";

export const floatBytes: Readonly<Record<FloatType, number>> = { BF16: 2, F16: 2, F32: 4 };

export function isFloatType(dtype: string): dtype is FloatType {
  return dtype === "BF16" || dtype === "F16" || dtype === "F32";
}

export function floatType(dtype: string, name: string): FloatType {
  if (!isFloatType(dtype)) throw new UserError(`tensor ${name} is ${dtype}; BF16, F16 and F32 are converted`);
  return dtype;
}

let halves: Float32Array | undefined;

/** The 65,536 values of F16. */
function halfTable(): Float32Array {
  if (halves !== undefined) return halves;
  halves = new Float32Array(65_536);
  for (let bits = 0; bits < 65_536; bits++) {
    const [exponent, fraction] = [(bits >> 10) & 31, bits & 1023];
    const magnitude = exponent === 0 ? fraction * 2 ** -24 : exponent === 31 ? (fraction === 0 ? Infinity : NaN) : (1 + fraction / 1024) * 2 ** (exponent - 15);
    halves[bits] = bits & 0x8000 ? -magnitude : magnitude;
  }
  return halves;
}

/** A view when the bytes are aligned, a copy otherwise. */
function words16(bytes: Uint8Array): Uint16Array {
  return bytes.byteOffset % 2 === 0 ? new Uint16Array(bytes.buffer, bytes.byteOffset, bytes.byteLength >> 1) : new Uint16Array(bytes.slice().buffer);
}

/** `out` must hold one float per element. */
export function decodeFloats(bytes: Uint8Array, type: FloatType, out: Float32Array): void {
  if (type === "F32") {
    new Uint8Array(out.buffer, out.byteOffset, bytes.byteLength).set(bytes);
    return;
  }
  const words = words16(bytes);
  if (type === "BF16") {
    const bits = new Uint32Array(out.buffer, out.byteOffset, words.length);
    for (let i = 0; i < words.length; i++) bits[i] = (words[i] as number) << 16;
    return;
  }
  const table = halfTable();
  for (let i = 0; i < words.length; i++) out[i] = table[words[i] as number] as number;
}

/** `out` must have room for one element per float. */
export function encodeFloats(floats: Float32Array, type: FloatType, out: Uint8Array): void {
  if (type === "F32") {
    out.set(new Uint8Array(floats.buffer, floats.byteOffset, floats.byteLength));
    return;
  }
  const bits = new Uint32Array(floats.buffer, floats.byteOffset, floats.length);
  const words = new Uint16Array(out.buffer, out.byteOffset, floats.length);
  const round = type === "BF16" ? bfloat16Bits : float16Bits;
  for (let i = 0; i < bits.length; i++) words[i] = round(bits[i] as number);
}

/** BF16 of the F32 with these bits; NaN stays a quiet NaN. */
export function bfloat16Bits(bits: number): number {
  if ((bits & 0x7fffffff) > 0x7f800000) return (bits >>> 16) | 64;
  return (bits + 0x7fff + ((bits >>> 16) & 1)) >>> 16;
}

/** F16 of the F32 with these bits; what is too large becomes infinity. */
export function float16Bits(bits: number): number {
  const sign = (bits >>> 16) & 0x8000;
  const magnitude = bits & 0x7fffffff;
  if (magnitude > 0x7f800000) return sign | 0x7e00;
  if (magnitude >= 0x47800000) return sign | 0x7c00;
  if (magnitude < 0x38800000) {
    if (magnitude < 0x33000000) return sign;
    const shift = 126 - (magnitude >>> 23);
    const fraction = (magnitude & 0x7fffff) | 0x800000;
    const half = fraction >>> shift;
    const rest = fraction & ((1 << shift) - 1);
    const middle = 1 << (shift - 1);
    return sign | (rest > middle || (rest === middle && (half & 1) === 1) ? half + 1 : half);
  }
  const rounded = magnitude + 0xfff + ((magnitude >>> 13) & 1);
  return sign | ((rounded - 0x38000000) >>> 13);
}
