/** What edits of a model's graphs compute with and the file does not hold; made when first wanted. */
import { Bf16Copies } from "./bf16-copies.ts";
import { F16Copies } from "./f16-copies.ts";
import { JoinedMatrices } from "./joined-matrices.ts";
import { ConstantRows } from "./joined-norms.ts";
import type { Llama } from "./library.ts";

export class EditMatrices implements Disposable {
  readonly bf16: Bf16Copies;
  readonly head: Bf16Copies;
  readonly f16: F16Copies;
  readonly joined: JoinedMatrices;
  readonly constants: ConstantRows;

  constructor(llama: Llama, modelPath: string) {
    this.bf16 = new Bf16Copies(llama, modelPath);
    this.head = new Bf16Copies(llama, modelPath, Infinity);
    this.f16 = new F16Copies(llama, modelPath);
    this.joined = new JoinedMatrices(llama, modelPath);
    this.constants = new ConstantRows(llama, modelPath);
  }

  /** Contexts whose graphs hold them must be freed before. */
  close(): void {
    for (const matrices of [this.bf16, this.head, this.f16, this.joined, this.constants]) matrices.close();
  }

  [Symbol.dispose](): void {
    this.close();
  }
}
