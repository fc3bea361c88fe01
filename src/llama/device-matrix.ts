/**
 * A matrix of our own on the device that has one of the model's, made of the rows in the model's file: a CPU may keep its
 * weights repacked, and a repacked buffer cannot be read.
 */
import * as fs from "node:fs";
import type { GgufTensor } from "../gguf/header.ts";
import { readGguf } from "../gguf/split.ts";
import { UserError } from "../util/errors.ts";
import { readFully } from "../util/files.ts";
import { bindGgml, type Ggml } from "./ggml-ops.ts";
import { sizesOf, tensorAt, typeOf, words } from "./graph-surgery.ts";
import type { Llama } from "./library.ts";
import type { OwnedMatrix, SharedMatrices } from "./shared-matrices.ts";
import type { Nullable, Pointer } from "./structs.ts";

/** GGML_BACKEND_BUFFER_USAGE_WEIGHTS: the scheduler computes where weights are. */
const usageWeights = 1;

/** Read and turned into another type at once. */
const chunkBytes = 1 << 24;

const functions = [
  "ggml_init",
  "ggml_free",
  "ggml_get_name",
  "ggml_new_tensor_2d",
  "ggml_backend_alloc_ctx_tensors_from_buft",
  "ggml_backend_buffer_free",
  "ggml_backend_buffer_get_type",
  "ggml_backend_buffer_set_usage",
  "ggml_backend_buft_get_device",
  "ggml_backend_buft_is_host",
  "ggml_backend_cpu_buffer_type",
  "ggml_backend_dev_buffer_type",
  "ggml_backend_tensor_set",
] as const;

/** Whether a tensor's data is in memory of the host. */
export function bindIsOnHost(llama: Llama): (tensor: Pointer) => boolean {
  const api = bindGgml(llama.base, ["ggml_backend_buffer_get_type", "ggml_backend_buft_is_host"]);
  return (tensor) => {
    const buffer = tensorAt(tensor)[words.buffer] as bigint;
    return buffer !== 0n && api.ggml_backend_buft_is_host(api.ggml_backend_buffer_get_type(buffer));
  };
}

/** Whether these are sizes of a matrix, and of no more elements. */
export function isMatrix([width = 1, nRows = 1, ...others]: readonly number[], mostElements: number): boolean {
  return nRows > 1 && others.every((n) => n === 1) && width * nRows <= mostElements;
}

/** Rows of one tensor of a file, as they are stored. */
export class StoredRows {
  readonly tensor: GgufTensor;
  readonly rowBytes: number;

  constructor(tensor: GgufTensor, rowBytes: number) {
    this.tensor = tensor;
    this.rowBytes = rowBytes;
  }

  read(ids: Int32Array): Uint8Array {
    const { tensor, rowBytes } = this;
    const rows = new Uint8Array(ids.length * rowBytes);
    const fd = fs.openSync(tensor.file, "r");
    try {
      for (const [i, id] of ids.entries()) readFully(fd, rows.subarray(i * rowBytes, (i + 1) * rowBytes), tensor.offset + id * rowBytes);
    } finally {
      fs.closeSync(fd);
    }
    return rows;
  }

  /** All of them in order, some whole rows at a time. The bytes are valid until the next ones. */
  *all(): Generator<Uint8Array> {
    const { tensor, rowBytes } = this;
    const rows = new Uint8Array(Math.min(tensor.sizeBytes, Math.max(1, Math.floor(chunkBytes / rowBytes)) * rowBytes));
    const fd = fs.openSync(tensor.file, "r");
    try {
      for (let at = 0; at < tensor.sizeBytes; at += rows.length) {
        const some = rows.subarray(0, Math.min(rows.length, tensor.sizeBytes - at));
        readFully(fd, some, tensor.offset + at);
        yield some;
      }
    } finally {
      fs.closeSync(fd);
    }
  }
}

/** A model's file and what is made beside its weights. */
export class DeviceMatrices {
  readonly #api: Pick<Ggml, (typeof functions)[number]>;
  readonly #modelPath: string;
  #tensors: ReadonlyMap<string, GgufTensor> | undefined;
  readonly #made: OwnedMatrix[] = [];

  constructor(llama: Llama, modelPath: string) {
    this.#api = bindGgml(llama.base, functions);
    this.#modelPath = modelPath;
  }

  /** @throws {UserError} for a matrix that is not in the file as it is in memory */
  stored(weights: Pointer): StoredRows {
    this.#tensors ??= new Map(readGguf(this.#modelPath).tensors.map((tensor) => [tensor.name, tensor]));
    const { [words.ne0]: width, [words.ne1]: nRows, [words.nb1]: nb1 } = tensorAt(weights);
    const name = this.#api.ggml_get_name(weights);
    const tensor = this.#tensors.get(name);
    const rowBytes = Number(nb1);
    const isSame = tensor !== undefined && tensor.typeId === typeOf(tensorAt(weights)) && tensor.shape[0] === Number(width) && tensor.sizeBytes === rowBytes * Number(nRows);
    if (!isSame) throw new UserError(`${this.#modelPath} holds no tensor ${name} as it was loaded`);
    return new StoredRows(tensor, rowBytes);
  }

  /**
   * A matrix [width, nRows] of ggml's type `typeId` on the device that has `weights`, valid until `close`.
   * @param data all its bytes in order, in any pieces
   * @throws {UserError} for a device without room, or weights spread over several devices
   */
  make(weights: Pointer, typeId: number, [width, nRows]: readonly [number, number], data: Iterable<Uint8Array>): Pointer {
    const api = this.#api;
    const bufferType = this.#typeBeside(tensorAt(weights)[words.buffer] as bigint);
    const context = api.ggml_init({ mem_size: 4096, mem_buffer: null, no_alloc: true });
    if (context === null) throw new Error("ggml_init: no memory for a tensor's description");
    const tensor = api.ggml_new_tensor_2d(context, typeId, width, nRows);
    const buffer: Nullable = api.ggml_backend_alloc_ctx_tensors_from_buft(context, bufferType);
    if (buffer === null) {
      api.ggml_free(context);
      throw new UserError(`the device has no memory for a matrix of ${nRows} rows of ${width}, beside ${api.ggml_get_name(weights)}`);
    }
    this.#made.push({ matrix: tensor, context, buffer });
    api.ggml_backend_buffer_set_usage(buffer, usageWeights);
    let at = 0;
    for (const piece of data) {
      api.ggml_backend_tensor_set(tensor, piece, at, piece.length);
      at += piece.length;
    }
    return tensor;
  }

  /** The plain buffer type of the device that a buffer is on; host memory has no device where it is a mapped file. */
  #typeBeside(buffer: Pointer): Pointer {
    const api = this.#api;
    const type = api.ggml_backend_buffer_get_type(buffer);
    const device = api.ggml_backend_buft_get_device(type);
    if (device !== null) return api.ggml_backend_dev_buffer_type(device);
    if (!api.ggml_backend_buft_is_host(type)) throw new UserError("its weights are spread over several devices");
    return api.ggml_backend_cpu_buffer_type();
  }

  get n(): number {
    return this.#made.length;
  }

  /** Gives the one made last to somebody else, where he takes it. */
  offerLast(take: (owned: OwnedMatrix) => boolean): void {
    const last = this.#made.at(-1);
    if (last !== undefined && take(last)) this.#made.pop();
  }

  /** Contexts whose graphs hold the matrices must be freed before. @param from frees the matrices made after so many */
  close(from = 0): void {
    freeMatrices(this.#api, this.#made.splice(from));
  }
}

function freeMatrices(api: Pick<Ggml, "ggml_backend_buffer_free" | "ggml_free">, owned: readonly OwnedMatrix[]): void {
  for (const { context, buffer } of owned) {
    api.ggml_backend_buffer_free(buffer);
    api.ggml_free(context);
  }
}

/** Frees what groups have given away, after all of their contexts. */
export const freeShared = (llama: Llama, shared: SharedMatrices): void => freeMatrices(bindGgml(llama.base, ["ggml_backend_buffer_free", "ggml_free"]), shared.takeAll());

/** Where matrices of a kind are found that other groups have made, and given to them. */
export interface Sharing {
  readonly kind: number;
  readonly matrices: SharedMatrices;
}

/** Matrices made of one or several of the model's each, found by the addresses of those. */
export abstract class DerivedMatrices implements Disposable {
  protected readonly matrices: DeviceMatrices;
  readonly #derived = new Map<string, Pointer>();
  readonly #sharing: Sharing | undefined;

  constructor(llama: Llama, modelPath: string, sharing?: Sharing) {
    this.matrices = new DeviceMatrices(llama, modelPath);
    this.#sharing = sharing;
  }

  /** @param parts of one matrix, all of one width; undefined: of these none is made */
  protected abstract derive(parts: readonly Pointer[]): Pointer | undefined;

  /** Their rows one behind the other in ggml's type `typeId`, beside the first. @param bytesOf the rows of one in that type */
  protected joined(parts: readonly Pointer[], typeId: number, bytesOf: (stored: StoredRows) => Iterable<Uint8Array>): Pointer | undefined {
    const [first] = parts;
    if (first === undefined) return undefined;
    const stored = parts.map((weights) => this.matrices.stored(weights));
    const sizes = parts.map((weights) => sizesOf(tensorAt(weights)) as [number, number, number, number]);
    const all = function* (): Generator<Uint8Array> {
      for (const part of stored) yield* bytesOf(part);
    };
    return this.matrices.make(first, typeId, [sizes[0]?.[0] as number, sizes.reduce((sum, [, nRows]) => sum + nRows, 0)], all());
  }

  /**
   * Makes those that are not there yet.
   * @param sets addresses of ggml_tensors
   * @throws {UserError} when the device has no room, or the file does not hold what is in memory; none of these are left then, but those given to other groups, which stay until the process closes
   */
  make(sets: Iterable<readonly number[]>): void {
    const nBefore = this.matrices.n;
    const made: string[] = [];
    try {
      for (const parts of sets) {
        const key = parts.join();
        if (this.#derived.has(key)) continue;
        const { kind, matrices } = this.#sharing ?? {};
        const shared = kind === undefined ? undefined : matrices?.find(kind, parts);
        const matrix = shared ?? this.derive(parts.map((address) => BigInt(address)));
        if (matrix === undefined) continue;
        this.#derived.set(key, matrix);
        made.push(key);
        if (kind !== undefined && shared === undefined) this.matrices.offerLast((owned) => matrices?.give(kind, parts, owned) === true);
      }
    } catch (error) {
      for (const key of made) this.#derived.delete(key);
      this.matrices.close(nBefore);
      throw error;
    }
  }

  /** The one that was made of these. */
  of(parts: readonly number[]): Pointer | undefined {
    return this.#derived.get(parts.join());
  }

  /** Contexts whose graphs hold them must be freed before. */
  close(): void {
    this.matrices.close();
    this.#derived.clear();
  }

  [Symbol.dispose](): void {
    this.close();
  }
}
