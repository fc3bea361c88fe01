/** What edits of a model's graphs compute with and the file does not hold; made when first wanted. */
import { Bf16Copies } from "./bf16-copies.ts";
import type { Sharing } from "./device-matrix.ts";
import { F16Copies } from "./f16-copies.ts";
import { JoinedMatrices } from "./joined-matrices.ts";
import { ConstantRows } from "./joined-norms.ts";
import type { Llama } from "./library.ts";
import type { SharedMatrices } from "./shared-matrices.ts";

const kinds = { bf16: 1, head: 2, f16: 3, joined: 4 } as const;

export class EditMatrices implements Disposable {
  readonly bf16: Bf16Copies;
  readonly head: Bf16Copies;
  readonly f16: F16Copies;
  readonly joined: JoinedMatrices;
  readonly constants: ConstantRows;

  /** @param shared what other groups of the process have made */
  constructor(llama: Llama, modelPath: string, shared?: SharedMatrices) {
    const sharing = (kind: keyof typeof kinds): Sharing | undefined => (shared === undefined ? undefined : { kind: kinds[kind], matrices: shared });
    this.bf16 = new Bf16Copies(llama, modelPath, sharing("bf16"));
    this.head = new Bf16Copies(llama, modelPath, sharing("head"), Infinity);
    this.f16 = new F16Copies(llama, modelPath, sharing("f16"));
    this.joined = new JoinedMatrices(llama, modelPath, sharing("joined"));
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
