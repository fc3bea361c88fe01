/**
 * Drafts from a recorded output: the real verifier with acceptance under control and text that must come out exact.
 * Each drafted token is right with probability `rate`; a wrong one is another token, so the verifier must reject it.
 */
import { Rng } from "../../util/rng.ts";
import type { Sequence } from "../sequence.ts";
import { createDraftTimes, type Drafter, type DraftTimes } from "./drafter.ts";

export interface OracleRecord {
  readonly prompt: readonly number[];
  readonly output: readonly number[];
}

export class OracleDrafter implements Drafter {
  readonly times: DraftTimes = createDraftTimes();
  readonly #outputs: ReadonlyMap<string, readonly number[]>;
  readonly #rate: number;
  readonly #nVocab: number;
  readonly #rng: Rng;

  constructor(records: readonly OracleRecord[], rate: number, nVocab: number, seed: number) {
    this.#outputs = new Map(records.map((r) => [r.prompt.join(), r.output]));
    this.#rate = rate;
    this.#nVocab = nVocab;
    this.#rng = new Rng(seed);
  }

  draft(seqs: readonly Sequence[], nDraft: number): number {
    for (const seq of seqs) {
      const output = this.#outputs.get(seq.tokens.subarray(0, seq.nPrompt).join());
      for (let i = 0; i < nDraft; i++) {
        // The pending token is output nOutput - 1; past the record's end there is nothing to know.
        const right = output?.[seq.nOutput + i] ?? 0;
        seq.draft[i] = this.#rng.uniform() < this.#rate ? right : (right + 1 + this.#rng.below(this.#nVocab - 1)) % this.#nVocab;
      }
    }
    return nDraft;
  }

  afterVerify(): void {}
  afterPrefill(): void {}
  afterPlain(): void {}
  release(): void {}

  /** It knows the text by the prompt and holds no state. */
  save(): [] {
    return [];
  }

  restore(): true {
    return true;
  }
}
