/**
 * Random tensor data at disk speed: a pool of valid blocks with a chosen spread is made once for each type, and large
 * tensors are cut from it at ever other places. Values are finite and about as large as trained weights, because only
 * the scale fields of a block are set, the codes are free (block layouts: ggml-common.h).
 */
import { Rng } from "../../util/rng.ts";
import { knownType, type GgmlType } from "../types.ts";

const maxPoolBytes = 8 << 20;

/** Root mean square of the code points of IQ4_NL and IQ4_XS (kvalues_iq4nl). */
const rmsOfIq4Codes = Math.sqrt([-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113].reduce((sum, k) => sum + k * k, 0) / 16);

interface Layout {
  /** Where the F16 scale lies. */
  readonly scaleAt: number;
  /** Spread of a value when the scale is 1. */
  readonly unitSpread: number;
  /** Where the F16 offset lies, and its size in scales, so that values centre on zero. */
  readonly offset?: { readonly at: number; readonly perScale: number };
}

/** Variances of uniform codes 0..n-1 are (n^2 - 1) / 12; 6-bit scales and minimums have mean square 1333 and variance 341. */
const layouts: ReadonlyMap<string, Layout> = new Map<string, Layout>([
  ["Q4_0", { scaleAt: 0, unitSpread: 4.64 }],
  ["Q5_0", { scaleAt: 0, unitSpread: 9.25 }],
  ["Q5_1", { scaleAt: 0, unitSpread: 9.23, offset: { at: 2, perScale: -15.5 } }],
  ["Q8_0", { scaleAt: 0, unitSpread: 73.9 }],
  ["Q4_K", { scaleAt: 0, unitSpread: Math.sqrt(1333 * 21.25 + 7.5 ** 2 * 682), offset: { at: 2, perScale: 7.5 } }],
  ["Q5_K", { scaleAt: 0, unitSpread: Math.sqrt(1333 * 85.25 + 15.5 ** 2 * 682), offset: { at: 2, perScale: 15.5 } }],
  ["Q6_K", { scaleAt: 208, unitSpread: 73.9 * 18.5 }],
  ["IQ4_NL", { scaleAt: 0, unitSpread: rmsOfIq4Codes }],
  ["IQ4_XS", { scaleAt: 0, unitSpread: rmsOfIq4Codes * 18.5 }],
]);

const floatTypes: readonly string[] = ["F32", "F16", "BF16"];

export const synthTensorTypes: readonly string[] = [...floatTypes, ...layouts.keys()];

export const isSynthesizable = (type: GgmlType): boolean => synthTensorTypes.includes(type.name);

export class RandomBlocks {
  readonly #rng: Rng;
  readonly #pools = new Map<string, Buffer>();
  #cursor = 0;

  readonly #poolBytes: number;

  /** @param largestBytes of the tensors to come; pools need not be larger. */
  constructor(seed: number, largestBytes = maxPoolBytes) {
    this.#rng = new Rng(seed);
    this.#poolBytes = Math.min(maxPoolBytes, largestBytes);
  }

  /** `sizeBytes` bytes of blocks whose values spread by `spread` around zero. */
  *pieces(type: GgmlType, sizeBytes: number, spread: number): Generator<Uint8Array> {
    const pool = this.#pool(type, spread);
    // An odd number of blocks on from where the last tensor ended, so that no two tensors are alike.
    let at = ((this.#cursor * type.blockBytes) % pool.length) | 0;
    for (let left = sizeBytes; left > 0; ) {
      const piece = pool.subarray(at, Math.min(pool.length, at + left));
      yield piece;
      left -= piece.length;
      at = (at + piece.length) % pool.length;
    }
    this.#cursor += 10_007;
  }

  #pool(type: GgmlType, spread: number): Buffer {
    const key = `${type.name} ${spread}`;
    const found = this.#pools.get(key);
    if (found !== undefined) return found;
    const nBlocks = Math.max(1, Math.floor(this.#poolBytes / type.blockBytes)) | 1;
    const pool = makePool(type, nBlocks, spread, this.#rng);
    this.#pools.set(key, pool);
    return pool;
  }
}

function makePool(type: GgmlType, nBlocks: number, spread: number, rng: Rng): Buffer {
  const pool = Buffer.allocUnsafe(nBlocks * type.blockBytes);
  if (type.name === "F32" || type.name === "F16" || type.name === "BF16") {
    const half = Math.sqrt(3) * spread;
    for (let i = 0; i < nBlocks; i++) writeFloat(pool, type.name, i, (2 * rng.uniform() - 1) * half);
    return pool;
  }
  const layout = layouts.get(type.name);
  if (layout === undefined) throw new Error(`no random blocks of type ${type.name}`);
  for (let at = 0; at + 4 <= pool.length; at += 4) pool.writeUInt32LE(rng.uint32(), at);
  for (let at = pool.length & ~3; at < pool.length; at++) pool[at] = rng.below(256);
  const scale = spread / layout.unitSpread;
  for (let at = 0; at < pool.length; at += type.blockBytes) {
    pool.writeUInt16LE(float16(scale), at + layout.scaleAt);
    if (layout.offset !== undefined) pool.writeUInt16LE(float16(scale * layout.offset.perScale), at + layout.offset.at);
  }
  return pool;
}

const scratch = new DataView(new ArrayBuffer(4));

function writeFloat(out: Buffer, type: "F32" | "F16" | "BF16", index: number, value: number): void {
  if (type === "F32") out.writeFloatLE(value, index * 4);
  else if (type === "F16") out.writeUInt16LE(float16(value), index * 2);
  else {
    scratch.setFloat32(0, value);
    out.writeUInt16LE(scratch.getUint16(0), index * 2);
  }
}

/** F16 bits, cut off, for values well inside its range; tiny ones become subnormal. */
function float16(value: number): number {
  const sign = value < 0 ? 0x8000 : 0;
  const magnitude = Math.abs(value);
  if (magnitude < 2 ** -14) return sign | Math.round(magnitude * 2 ** 24);
  const exponent = Math.floor(Math.log2(magnitude));
  return sign | ((exponent + 15) << 10) | Math.floor((magnitude / 2 ** exponent - 1) * 1024);
}

/** `n` floats around `centre`, as the bytes of an F32 tensor. */
export function randomFloats(n: number, centre: number, spread: number, rng: Rng): Buffer {
  const floats = Float32Array.from({ length: n }, () => centre + spread * rng.normal());
  return Buffer.from(floats.buffer);
}

export const float32 = knownType("F32");
