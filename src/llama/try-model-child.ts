/** Child of `tryModel`: greedy decoding of one sequence, one row at a time. */
import { median } from "../util/stats.ts";
import { createBackend } from "./backend.ts";
import { serveChild } from "./child.ts";
import type { TryModelRequest, TryModelResult } from "./try-model.ts";

function run({ modelPath, prompt, nTokens, llamaDir }: TryModelRequest): TryModelResult {
  const startMs = performance.now();
  using backend = createBackend({ modelPath, nSlots: 1, ctxSize: 512, llamaDir });
  const loadMs = performance.now() - startMs;
  const { target, vocab } = backend;
  const output: number[] = [];
  const decodeMs: number[] = [];
  let pending = vocab.tokenize(prompt, { addSpecial: true, parseSpecial: true });
  let nPast = 0;
  while (output.length < nTokens) {
    const { rows } = target;
    rows.tokens.set(pending);
    for (let i = 0; i < pending.length; i++) {
      rows.positions[i] = nPast + i;
      rows.seqs[i] = 0;
      rows.outputs[i] = Number(i === pending.length - 1);
    }
    rows.n = pending.length;
    const decodeStartMs = performance.now();
    target.decode();
    const token = target.greedyToken(rows.n - 1);
    if (nPast > 0) decodeMs.push(performance.now() - decodeStartMs);
    nPast += pending.length;
    if (vocab.isEndOfGeneration(token)) break;
    output.push(token);
    pending = Int32Array.of(token);
  }
  return { text: Buffer.from(vocab.detokenize(output)).toString("utf8"), device: backend.description.device, loadMs, decodeMs: median(decodeMs) };
}

serveChild(run);
