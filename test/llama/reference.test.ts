import * as fs from "node:fs";
import { afterAll, beforeAll, describe, expect, test } from "vitest";
import { createBackend, type LlamaBackend } from "../../src/llama/backend.ts";
import { tinyHead, tinyTrunk } from "./tiny-model.ts";

/** Computed with PyTorch in FP32 on the BF16 weights; tokenizer cases with Hugging Face tokenizers. */
interface Reference {
  readonly prompt: string;
  readonly ids: readonly number[];
  readonly top5: readonly (readonly (readonly [token: number, logit: number])[])[];
  readonly hidden_last_first8: readonly (readonly number[])[];
  readonly tokenizer_cases: Readonly<Record<string, readonly number[]>>;
}
const reference = JSON.parse(fs.readFileSync(new URL("../fixtures/reference.json", import.meta.url), "utf8")) as Reference;

describe("libllama on the converted embedded model", () => {
  let backend: LlamaBackend;
  const n = reference.ids.length;
  beforeAll(async () => {
    backend = createBackend({ modelPath: await tinyTrunk(), headPaths: [await tinyHead()], nSlots: 1, ctxSize: 256, nOutputsPerSeq: n, threads: 1, device: "cpu" });
    const { target } = backend;
    for (let i = 0; i < n; i++) {
      target.rows.tokens[i] = reference.ids[i] as number;
      target.rows.positions[i] = i;
      target.rows.seqs[i] = 0;
      target.rows.outputs[i] = 1;
    }
    target.rows.n = n;
    target.decode();
  });
  afterAll(() => backend.close());

  test("tokenizes as the reference does", () => {
    for (const [text, ids] of Object.entries(reference.tokenizer_cases)) {
      expect([...backend.vocab.tokenize(text, { parseSpecial: true })], JSON.stringify(text)).toEqual(ids);
      expect(Buffer.from(backend.vocab.detokenize(ids, true)).toString("utf8")).toBe(text);
    }
    expect([...backend.vocab.tokenize(reference.prompt, { parseSpecial: true })]).toEqual(reference.ids);
  });

  test("gives the reference's top-5 logits at every position, within what BF16 arithmetic changes", () => {
    let worst = 0;
    reference.top5.forEach((top, i) => {
      const logits = backend.target.logits(i);
      expect(backend.target.greedyToken(i)).toBe(top[0]?.[0]);
      for (const [token, logit] of top) worst = Math.max(worst, Math.abs((logits[token] as number) - logit));
    });
    expect(worst).toBeLessThan(0.1);
  });

  test("gives the reference's hidden rows: after the final norm, in the order of the tokens", () => {
    reference.hidden_last_first8.forEach((expected, i) => {
      const row = backend.target.hidden(i);
      expected.forEach((value, j) => expect(Math.abs((row[j] as number) - value)).toBeLessThan(0.06));
    });
  });
});
