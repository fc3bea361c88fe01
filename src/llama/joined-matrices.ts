/** Matrices of one width and type, one behind the other in one, on the device that has the first of them. */
import type { GgufTensor } from "../gguf/header.ts";
import { DerivedMatrices } from "./device-matrix.ts";
import { tensorAt, typeOf, words } from "./graph-surgery.ts";
import type { Pointer } from "./structs.ts";

export class JoinedMatrices extends DerivedMatrices {
  protected derive(parts: readonly Pointer[]): Pointer | undefined {
    const [first] = parts;
    if (first === undefined) return undefined;
    const all = parts.map((weights) => tensorAt(weights));
    const nRows = all.reduce((sum, fields) => sum + Number(fields[words.ne1]), 0);
    const stored = parts.map((weights) => this.matrices.stored(weights));
    const fields = all[0] as BigUint64Array;
    const rows = function* (): Generator<Uint8Array> {
      for (const part of stored) yield* part.all();
    };
    return this.matrices.make(first, typeOf(fields), [Number(fields[words.ne0]), nRows], rows());
  }
}

/** Matrices of the first products of a layer, which share their rows. */
const joinable = /\.(?:attn_qkv|attn_gate|ssm_alpha|ssm_beta|attn_q|attn_k|attn_v)\.weight$/;

/** Bytes of the joined matrices of these tensors; those of a type that no other one beside it has are not joined, so it may be less. */
export const bytesOfJoined = (tensors: readonly GgufTensor[]): number => tensors.reduce((sum, { name, type, sizeBytes }) => ((type?.blockSize ?? 1) > 1 && joinable.test(name) ? sum + sizeBytes : sum), 0);
