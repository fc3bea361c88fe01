/**
 * `--spec-verify sequential` is plain decoding of each sequence alone, token by token: Q8_0, one thread, KV not unified.
 * The oracle gives the verifier drafts that are right at a set rate, so whole runs are accepted and rejected.
 */
import * as fs from "node:fs";
import * as os from "node:os";
import * as path from "node:path";
import { beforeAll, describe, expect, test } from "vitest";
import { engineOptions } from "../../src/config/engine-options.ts";
import { OracleDrafter, type OracleRecord } from "../../src/engine/drafters/oracle.ts";
import { greedySampling } from "../../src/engine/request.ts";
import type { VerifyMode } from "../../src/engine/verifier.ts";
import { openEngine } from "../../src/llama/open-engine.ts";
import { quantizeFile } from "../../src/llama/quantize.ts";
import { parseFileType } from "../../src/llama/quantize-types.ts";
import { tinyTrunk } from "./tiny-model.ts";

const nPrompts = 8;
const nTokens = 64;
const prompts = Array.from({ length: nPrompts }, (_, id) => Array.from({ length: 5 + id * 3 }, (_u, i) => 300 + ((id * 977 + i * 131) % 3000)));

let model: string;
let reference: OracleRecord[];

/** Outputs of all prompts, `concurrency` at once. */
function outputs(parallel: number, verify: VerifyMode, oracle?: { records: readonly OracleRecord[]; rate: number }): { texts: number[][]; nAccepted: number; nDrafted: number } {
  const texts: number[][] = prompts.map(() => []);
  const options = engineOptions.parse({ model, parallel, threads: 1, ctxSize: 512 * parallel, kvUnified: false, device: "cpu", specVerify: verify, specGate: "fixed", specDraftNMax: 3, ...(oracle === undefined ? {} : { specType: "draft-mtp" }) });
  const drafter = oracle === undefined ? undefined : new OracleDrafter(oracle.records, oracle.rate, 4096, 9);
  const { engine } = openEngine(options, {
    sink: (events) => {
      for (const e of events) if (e.kind === "tokens") texts[e.id]?.push(...e.tokens);
    },
    ...(drafter === undefined ? {} : { drafter }),
  });
  for (const [id, prompt] of prompts.entries())
    engine.submit({ id, prompt: Int32Array.from(prompt), maxTokens: nTokens, sampling: greedySampling, stop: [], ignoreEos: true, nLogprobs: undefined, grammar: undefined, nMax: undefined, cachePrompt: false });
  while (engine.step()) continue;
  engine.checkIntegrity();
  const { nAccepted, nDrafted } = engine.snapshot().draft;
  engine.close();
  return { texts, nAccepted, nDrafted };
}

beforeAll(async () => {
  model = path.join(os.tmpdir(), `foretoken-exactness-${process.pid}.gguf`);
  await quantizeFile({ input: await tinyTrunk(), output: model, type: parseFileType("Q8_0"), threads: 1 });
  const { texts } = outputs(1, "batched");
  reference = texts.map((output, i) => ({ prompt: prompts[i] as number[], output }));
  return () => fs.rmSync(model, { force: true });
});

describe("sequential verification", () => {
  test.each([1, 4])("%i at once equals plain decoding alone, all prompts, all tokens", (parallel) => {
    const { texts, nAccepted, nDrafted } = outputs(parallel, "sequential", { records: reference, rate: 0.8 });
    expect(texts).toEqual(reference.map((r) => r.output));
    expect(nAccepted).toBeGreaterThan(nDrafted * 0.4);
    expect(nAccepted).toBeLessThan(nDrafted);
  });
});

describe("batched verification", () => {
  // F32 differs by 1e-5 whatever is decoded together: far less than a wrong state, which writes nonsense.
  const nRequests = 24;
  const textOf = (id: number): number[] => Array.from({ length: 4 + ((id * 7) % 19) }, (_, i) => 300 + ((id * 977 + i * 131) % 3000));
  const lengthOf = (id: number): number => 3 + ((id * 29) % 47);

  /** All texts, `parallel` at once, submitted a few steps apart; of drafted ones every sixth is cancelled. */
  async function texts(parallel: number, more: Record<string, unknown>, records?: readonly OracleRecord[]): Promise<number[][]> {
    const written: number[][] = Array.from({ length: nRequests }, () => []);
    const options = engineOptions.parse({ model: await tinyTrunk("F32"), parallel, threads: 1, ctxSize: 128 * parallel, device: "cpu", specGate: "fixed", specDraftNMax: 3, ...more });
    const { engine } = openEngine(options, {
      sink: (events) => {
        for (const e of events) if (e.kind === "tokens") written[e.id]?.push(...e.tokens);
      },
      ...(records === undefined ? {} : { drafter: new OracleDrafter(records, 0.6, 4096, 5) }),
    });
    for (let id = 0; id < nRequests; id++) {
      engine.submit({ id, prompt: Int32Array.from(textOf(id)), maxTokens: lengthOf(id), sampling: greedySampling, stop: [], ignoreEos: true, nLogprobs: undefined, grammar: undefined, nMax: undefined, cachePrompt: id % 2 === 0 });
      for (let i = 0; i < (id * 5) % 4; i++) engine.step();
      if (records !== undefined && id % 6 === 5) engine.cancel(id - 3);
    }
    while (engine.step()) continue;
    engine.checkIntegrity();
    engine.close();
    return written;
  }

  test("texts are those of plain decoding while requests come, go and are cancelled, whatever cells and forwards they share", async () => {
    const plain = await texts(1, { kvUnified: false });
    const records = plain.map((output, id) => ({ prompt: textOf(id), output }));
    for (const layout of [{ kvUnified: false }, { kvUnified: true, ubatchSize: 16 }]) {
      const drafted = await texts(6, { specType: "draft-mtp", ...layout }, records);
      for (const [id, tokens] of drafted.entries()) {
        expect(tokens).toEqual((plain[id] as number[]).slice(0, tokens.length));
        if (id % 6 !== 2) expect(tokens).toHaveLength(lengthOf(id));
      }
    }
  });
});
