/**
 * The ridge initialisation: `eh_proj` by regression in closed form. A head that copies trunk layer L should see that
 * layer's input; so fit W on [rms(embedding of token t); rms(hidden row of t - 1)] to the rows that went into layer L at t.
 * Seconds of arithmetic, no gradient step, and far better a start than passing the hidden row on.
 */
import { decodeFloats } from "../hf/elements.ts";
import { ggmlType, type GgmlDevice, type Tensor } from "../llama/ggml.ts";
import { UserError } from "../util/errors.ts";
import { allocateGraph } from "./allocate.ts";
import type { DatasetDocument } from "./dataset.ts";

export interface RidgeResult {
  /** eh_proj [2d, d]. */
  readonly weights: Float32Array;
  readonly nRows: number;
  /** Share of the targets' square sum that the fit explains. */
  readonly r2: number;
}

export interface RidgeOptions {
  readonly nEmbd: number;
  readonly normEps: number;
  readonly maxRows: number;
  /** Added to the diagonal of the mean Gram matrix. */
  readonly lambda: number;
}

const chunkRows = 2048;

/** @throws {UserError} when the capture kept no layer inputs. */
export function fitRidge(device: GgmlDevice, documents: readonly DatasetDocument[], embedding: Float32Array, options: RidgeOptions): RidgeResult {
  const { nEmbd: d, maxRows, lambda } = options;
  const m = 2 * d;
  const gram = new Float64Array(m * m);
  const cross = new Float64Array(m * d);
  const x = new Float32Array(chunkRows * m);
  const y = new Float32Array(chunkRows * d);
  let [nRows, inChunk, squares] = [0, 0, 0];
  const products = new Products(device, m, d);
  const flush = (): void => {
    if (inChunk === 0) return;
    x.fill(0, inChunk * m);
    y.fill(0, inChunk * d);
    products.accumulate(x, y, gram, cross);
    inChunk = 0;
  };
  for (const document of documents) {
    if (!document.hasLayerInput || nRows >= maxRows) continue;
    const n = Math.min(document.tokens.length - 2, maxRows - nRows);
    const hidden = decodeRows(document.rows(0, n));
    const inputs = decodeRows(document.layerInput(1, n));
    for (let i = 0; i < n; i++) {
      const token = document.tokens[i + 1] as number;
      rmsInto(embedding, token * d, d, options.normEps, x, inChunk * m);
      rmsInto(hidden, i * d, d, options.normEps, x, inChunk * m + d);
      y.set(inputs.subarray(i * d, (i + 1) * d), inChunk * d);
      for (let j = 0; j < d; j++) squares += (inputs[i * d + j] as number) ** 2;
      nRows++;
      if (++inChunk === chunkRows) flush();
    }
  }
  flush();
  products.close();
  if (nRows < m) throw new UserError(`the capture kept layer inputs of ${nRows} rows, a ridge fit of ${m} inputs needs more; capture with --ridge-rows ${4 * m} or start with --init bootstrap`);
  for (let i = 0; i < m; i++) gram[i * m + i] = (gram[i * m + i] as number) + lambda * nRows;
  const solution = solveSymmetric(gram, cross, m, d);
  let explained = 0;
  for (let i = 0; i < solution.length; i++) explained += (solution[i] as number) * (cross[i] as number);
  const weights = new Float32Array(m * d);
  for (let i = 0; i < m; i++) for (let o = 0; o < d; o++) weights[o * m + i] = solution[i * d + o] as number;
  return { weights, nRows, r2: explained / squares };
}

function decodeRows(rows: Uint16Array): Float32Array {
  const out = new Float32Array(rows.length);
  decodeFloats(new Uint8Array(rows.buffer, rows.byteOffset, rows.byteLength), "F16", out);
  return out;
}

function rmsInto(from: Float32Array, at: number, d: number, eps: number, into: Float32Array, to: number): void {
  let sum = 0;
  for (let i = 0; i < d; i++) sum += (from[at + i] as number) ** 2;
  const scale = 1 / Math.sqrt(sum / d + eps);
  for (let i = 0; i < d; i++) into[to + i] = (from[at + i] as number) * scale;
}

/** X^T X and X^T Y of a chunk on the device, summed up in double precision here. */
class Products {
  readonly #device: GgmlDevice;
  readonly #contexts: Tensor[];
  readonly #buffer: Tensor;
  readonly #allocator: Tensor;
  readonly #graph: Tensor;
  readonly #tensors: { readonly x: Tensor; readonly y: Tensor; readonly gram: Tensor; readonly cross: Tensor };
  readonly #gram: Float32Array;
  readonly #cross: Float32Array;

  constructor(device: GgmlDevice, m: number, d: number) {
    const { ggml } = device;
    this.#device = device;
    const inputs = device.newContext(4096);
    const x = ggml.ggml_new_tensor_2d(inputs, ggmlType.F32, m, chunkRows);
    const y = ggml.ggml_new_tensor_2d(inputs, ggmlType.F32, d, chunkRows);
    this.#buffer = device.allocate(inputs);
    const context = device.newContext(ggml.ggml_graph_overhead_custom(16, false) + 16 * 512);
    const transposed = (t: Tensor): Tensor => ggml.ggml_cont(context, ggml.ggml_transpose(context, t));
    const [xT, yT] = [transposed(x), transposed(y)];
    const gram = ggml.ggml_mul_mat(context, xT, xT);
    // [d, m]: one row of d targets for each of the m inputs.
    const cross = ggml.ggml_mul_mat(context, yT, xT);
    this.#graph = ggml.ggml_new_graph_custom(context, 16, false);
    for (const t of [gram, cross]) {
      ggml.ggml_set_output(t);
      ggml.ggml_build_forward_expand(this.#graph, t);
    }
    this.#allocator = allocateGraph(device, this.#graph, "the ridge fit");
    this.#contexts = [inputs, context];
    this.#tensors = { x, y, gram, cross };
    this.#gram = new Float32Array(m * m);
    this.#cross = new Float32Array(m * d);
  }

  accumulate(x: Float32Array, y: Float32Array, gram: Float64Array, cross: Float64Array): void {
    this.#device.set(this.#tensors.x, x);
    this.#device.set(this.#tensors.y, y);
    this.#device.compute(this.#graph);
    addTo(gram, this.#device.get(this.#tensors.gram, this.#gram));
    addTo(cross, this.#device.get(this.#tensors.cross, this.#cross));
  }

  close(): void {
    const { ggml } = this.#device;
    ggml.ggml_gallocr_free(this.#allocator);
    ggml.ggml_backend_buffer_free(this.#buffer);
    for (const context of this.#contexts) ggml.ggml_free(context);
  }
}

function addTo(sum: Float64Array, values: Float32Array): void {
  for (let i = 0; i < sum.length; i++) sum[i] = (sum[i] as number) + (values[i] as number);
}

/** Solves A X = B for a positive definite A [n, n] (row-major) and B [n, k] by Cholesky decomposition. A is overwritten by its factor. */
export function solveSymmetric(a: Float64Array, b: Float64Array, n: number, k: number): Float64Array {
  for (let j = 0; j < n; j++) {
    for (let i = j; i < n; i++) {
      let sum = a[i * n + j] as number;
      const [ri, rj] = [i * n, j * n];
      for (let q = 0; q < j; q++) sum -= (a[ri + q] as number) * (a[rj + q] as number);
      if (i > j) a[ri + j] = sum / (a[rj + j] as number);
      else if (sum > 0) a[ri + j] = Math.sqrt(sum);
      else throw new UserError("the ridge fit is singular; capture more rows or raise --ridge-lambda");
    }
  }
  const x = b.slice();
  for (let i = 0; i < n; i++) {
    for (let q = 0; q < i; q++) subtractRow(x, i, q, k, a[i * n + q] as number);
    scaleRow(x, i, k, 1 / (a[i * n + i] as number));
  }
  for (let i = n - 1; i >= 0; i--) {
    for (let q = i + 1; q < n; q++) subtractRow(x, i, q, k, a[q * n + i] as number);
    scaleRow(x, i, k, 1 / (a[i * n + i] as number));
  }
  return x;
}

function subtractRow(x: Float64Array, to: number, from: number, k: number, factor: number): void {
  for (let c = 0; c < k; c++) x[to * k + c] = (x[to * k + c] as number) - factor * (x[from * k + c] as number);
}

function scaleRow(x: Float64Array, row: number, k: number, factor: number): void {
  for (let c = 0; c < k; c++) x[row * k + c] = (x[row * k + c] as number) * factor;
}
