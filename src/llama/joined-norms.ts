/**
 * Query and key of a layer of linear attention, normed and scaled alike, as one. libllama writes a norm and a scale for each:
 * four kernels of one to three microseconds on an H200. They lie beside each other, so one norm takes both, and ggml-cuda makes
 * one kernel of a norm and a product by constants: the same numbers, multiplied in the same order.
 */
import { knownType } from "../gguf/types.ts";
import { DeviceMatrices } from "./device-matrix.ts";
import type { Addition, GraphNodes } from "./graph-nodes.ts";
import { isStored, tensorAt, words, type GraphOps } from "./graph-surgery.ts";
import type { Llama } from "./library.ts";
import type { Pointer } from "./structs.ts";

const f32 = knownType("F32").id;
/** Nodes from one norm to the other, at most. */
const mostBetween = 6;
/** A view, a norm and a product. */
const nAdded = 3;
/** From a norm up to weights or a cache, whose device is its own. */
const mostSteps = 8;

/** Rows of one number, by its bits and their length, on each device. */
export class ConstantRows implements Disposable {
  readonly #matrices: DeviceMatrices;
  readonly #rows = new Map<string, Pointer>();

  constructor(llama: Llama, modelPath: string) {
    this.#matrices = new DeviceMatrices(llama, modelPath);
  }

  /** @throws {UserError} when the device of `weights` has no room */
  of(weights: Pointer, bits: number, width: number): Pointer {
    const key = `${tensorAt(weights)[words.buffer]}:${bits}:${width}`;
    const known = this.#rows.get(key);
    if (known !== undefined) return known;
    const made = this.#matrices.make(weights, f32, [width, 1], [new Uint8Array(new Uint32Array(width).fill(bits).buffer)]);
    this.#rows.set(key, made);
    return made;
  }

  /** Contexts whose graphs hold them must be freed before. */
  close(): void {
    this.#matrices.close();
    this.#rows.clear();
  }

  [Symbol.dispose](): void {
    this.close();
  }
}

/** For the norm at `index`, where another one like it follows, of what lies right behind. */
export function joinNorms(ops: GraphOps, context: Pointer, nodes: GraphNodes, index: number, nFree: number, constants: ConstantRows): Addition | undefined {
  const { ggml } = ops;
  if (nFree < nAdded) return undefined;
  const first = scaledNorm(ops, nodes, index);
  if (first === undefined) return undefined;
  const [width, nHeads, nRows, nSeqs] = [0, 1, 2, 3].map((i) => nodes.ne(first.rows, i)) as [number, number, number, number];
  const [nb1, nb2, nb3] = [1, 2, 3].map((i) => nodes.nb(first.rows, i)) as [number, number, number];
  const from = nodes.viewOffset(first.rows);
  let second: ScaledNorm | undefined;
  for (let i = index + 1; second === undefined && i <= index + mostBetween && i < nodes.n; i++) {
    const other = scaledNorm(ops, nodes, i);
    if (other !== undefined && isBeside(nodes, first, other, nHeads * nb1)) second = other;
  }
  if (second === undefined || nb1 !== 4 * width) return undefined;
  const weights = weightsBefore(nodes, first.rows);
  if (weights === undefined) return undefined;
  const both = ggml.ggml_view_4d(context, BigInt(nodes.viewSource(first.rows)), width, 2 * nHeads, nRows, nSeqs, nb1, nb2, nb3, from);
  const norm = ggml.ggml_rms_norm(context, both, floatOf(nodes.parameter(first.norm, 0)));
  const scaled = ggml.ggml_mul(context, norm, constants.of(weights, nodes.parameter(first.scale, 0), width));
  const steps = [4, 4 * width, 8 * width * nHeads, 8 * width * nHeads * nRows];
  return {
    before: index,
    roots: [scaled],
    nNew: nAdded,
    use: () => {
      [first, second].forEach((one, i) => {
        nodes.setOp(one.norm, 0);
        nodes.setView(one.scale, ops.viewOp, scaled, i * 4 * width * nHeads, steps);
        // ggml frees the memory of what is last read.
        nodes.setSource(one.scale, 1, BigInt(nodes.address(one.norm)));
      });
    },
  };
}

interface ScaledNorm {
  readonly rows: number;
  readonly norm: number;
  readonly scale: number;
}

/** A norm of a view whose only reader multiplies it by a number. */
function scaledNorm(ops: GraphOps, nodes: GraphNodes, index: number): ScaledNorm | undefined {
  const norm = nodes.at(index);
  if (nodes.op(norm) !== ops.normOp) return undefined;
  const rows = nodes.find(nodes.source(norm, 0));
  const scale = nodes.onlyReader(norm)?.at;
  if (rows === undefined || nodes.viewSource(rows) === 0 || nodes.op(rows) !== ops.viewOp) return undefined;
  // A product may become a view itself (joined-products.ts).
  const whole = nodes.find(nodes.viewSource(rows));
  if (whole === undefined || nodes.op(whole) === ops.mulMatOp) return undefined;
  // The second parameter is added.
  return scale !== undefined && nodes.op(scale) === ops.scaleOp && nodes.viewSource(scale) === 0 && nodes.parameter(scale, 1) === 0 ? { rows, norm, scale } : undefined;
}

function isBeside(nodes: GraphNodes, a: ScaledNorm, b: ScaledNorm, bytes: number): boolean {
  const isAlike = nodes.parameter(a.norm, 0) === nodes.parameter(b.norm, 0) && nodes.parameter(a.scale, 0) === nodes.parameter(b.scale, 0);
  const isSameShape = [0, 1, 2, 3].every((i) => nodes.ne(a.rows, i) === nodes.ne(b.rows, i) && nodes.nb(a.rows, i) === nodes.nb(b.rows, i));
  return isAlike && isSameShape && nodes.viewSource(a.rows) === nodes.viewSource(b.rows) && nodes.viewOffset(b.rows) === nodes.viewOffset(a.rows) + bytes;
}

/** The nearest tensor with memory of its own that it is computed from. */
function weightsBefore(nodes: GraphNodes, from: number): Pointer | undefined {
  let level = [nodes.address(from)];
  for (let i = 0; i < mostSteps && level.length > 0; i++) {
    const next: number[] = [];
    for (const address of level) {
      const fields = tensorAt(BigInt(address));
      if (isStored(fields)) return BigInt(address);
      for (let k = 0; k < 2; k++) {
        const source = Number(fields[words.src0 + k]);
        if (source !== 0) next.push(source);
      }
    }
    level = next;
  }
  return undefined;
}

const floatOf = (bits: number): number => new Float32Array(Uint32Array.of(bits).buffer)[0] as number;
