/** Half-width floats: BF16 (the upper half of an F32) and F16 (IEEE binary16), rounded to nearest even. */

export function toBf16(values: Float32Array): Uint16Array {
  const bits = new Uint32Array(values.buffer, values.byteOffset, values.length);
  return Uint16Array.from(bits, (x) => ((x & 0x7fffffff) > 0x7f800000 ? (x >>> 16) | 0x40 : (x + 0x7fff + ((x >>> 16) & 1)) >>> 16));
}

export function fromBf16(values: Uint16Array): Float32Array {
  const out = new Float32Array(values.length);
  const bits = new Uint32Array(out.buffer);
  for (let i = 0; i < values.length; i++) bits[i] = (values[i] as number) << 16;
  return out;
}

const scratch = new Float32Array(1);
const scratchBits = new Uint32Array(scratch.buffer);

function f16Bits(x: number): number {
  scratch[0] = x;
  const bits = scratchBits[0] as number;
  const sign = (bits >>> 16) & 0x8000;
  const rest = bits & 0x7fffffff;
  if (rest >= 0x7f800000) return sign | (rest > 0x7f800000 ? 0x7e00 : 0x7c00);
  if (rest >= 0x477ff000) return sign | 0x7c00;
  if (rest >= 0x38800000) return sign | ((rest - 0x38000000 + 0xfff + ((rest >>> 13) & 1)) >>> 13);
  if (rest < 0x33000000) return sign;
  const shift = 126 - (rest >>> 23);
  const mantissa = (rest & 0x7fffff) | 0x800000;
  const half = mantissa >>> shift;
  const remainder = mantissa & ((1 << shift) - 1);
  const middle = 1 << (shift - 1);
  return sign | (half + (remainder > middle || (remainder === middle && (half & 1) === 1) ? 1 : 0));
}

/** Writes F16 bits of `values` into `out`. Hot: called for every captured row. */
export function toF16Into(values: Float32Array, out: Uint16Array): void {
  for (let i = 0; i < values.length; i++) out[i] = f16Bits(values[i] as number);
}

let table: Float32Array | undefined;

function f16Table(): Float32Array {
  if (table !== undefined) return table;
  table = new Float32Array(0x10000);
  for (let i = 0; i < 0x10000; i++) {
    const exponent = (i >>> 10) & 0x1f;
    const fraction = i & 0x3ff;
    const magnitude = exponent === 0 ? fraction * 2 ** -24 : exponent === 31 ? (fraction === 0 ? Infinity : NaN) : (1 + fraction / 1024) * 2 ** (exponent - 15);
    table[i] = i & 0x8000 ? -magnitude : magnitude;
  }
  return table;
}

export function fromF16(values: Uint16Array): Float32Array {
  const f16 = f16Table();
  const out = new Float32Array(values.length);
  for (let i = 0; i < values.length; i++) out[i] = f16[values[i] as number] as number;
  return out;
}
