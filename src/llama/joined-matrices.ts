/** Matrices of one width and type, one behind the other in one, on the device that has the first of them. */
import type { GgufTensor } from "../gguf/header.ts";
import { DerivedMatrices } from "./device-matrix.ts";
import { tensorAt, typeOf } from "./graph-surgery.ts";
import type { Pointer } from "./structs.ts";

export class JoinedMatrices extends DerivedMatrices {
  /** @param parts of one type */
  protected derive(parts: readonly Pointer[]): Pointer | undefined {
    const [first] = parts;
    return first === undefined ? undefined : this.joined(parts, typeOf(tensorAt(first)), (stored) => stored.all());
  }
}

/** Matrices of the first products of a layer, which share their rows. */
const joinable = /\.(?:attn_qkv|attn_gate|ssm_alpha|ssm_beta|attn_q|attn_k|attn_v)\.weight$/;

/** Bytes of the joined matrices of these tensors; those of a type that no other one beside it has are not joined, so it may be less. */
export const bytesOfJoined = (tensors: readonly GgufTensor[]): number => tensors.reduce((sum, { name, type, sizeBytes }) => ((type?.blockSize ?? 1) > 1 && joinable.test(name) ? sum + sizeBytes : sum), 0);
