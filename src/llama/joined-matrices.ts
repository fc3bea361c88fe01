/** Matrices of one width and type, one behind the other in one, on the device that has the first of them. */
import { DerivedMatrices } from "./device-matrix.ts";
import { tensorAt, typeOf, words } from "./graph-surgery.ts";
import type { Pointer } from "./structs.ts";

export class JoinedMatrices extends DerivedMatrices {
  protected derive(parts: readonly Pointer[]): Pointer | undefined {
    const [first] = parts;
    if (first === undefined) return undefined;
    const all = parts.map((weights) => tensorAt(weights));
    const nRows = all.reduce((sum, fields) => sum + Number(fields[words.ne1]), 0);
    const rows = Buffer.concat(parts.map((weights) => this.matrices.stored(weights).readAll()));
    const fields = all[0] as BigUint64Array;
    return this.matrices.make(first, typeOf(fields), [Number(fields[words.ne0]), nRows], rows);
  }
}
