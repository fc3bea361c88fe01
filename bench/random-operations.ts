/**
 * Random use of an engine: requests of all kinds, steps, cancellations in any phase, integrity whenever it is idle.
 * On the real model: `npm run bench:integrity -- MODEL HEAD [OPERATIONS] [SEED]`.
 */
import { pathToFileURL } from "node:url";
import { engineOptions } from "../src/config/engine-options.ts";
import type { Engine } from "../src/engine/engine.ts";
import { greedySampling, type EngineEvent, type GenerateRequest } from "../src/engine/request.ts";
import { openEngine } from "../src/llama/open-engine.ts";
import { Rng } from "../src/util/rng.ts";
import { needFiles } from "./usage.ts";

export interface OperationCounts {
  nSubmitted: number;
  nCancelled: number;
  nSteps: number;
  nIdleChecks: number;
  readonly finished: Record<string, number>;
}

/** Runs `n` operations, then until idle. `open` gives the engine its sink. Throws when contexts and slots disagree, or a request has not exactly one end. */
export function randomOperations(open: (sink: (events: readonly EngineEvent[]) => void) => Engine, n: number, seed: number, nDraftMax: number): OperationCounts {
  const rng = new Rng(seed);
  const running = new Set<number>();
  const counts: OperationCounts = { nSubmitted: 0, nCancelled: 0, nSteps: 0, nIdleChecks: 0, finished: {} };
  const texts: number[][] = [];
  const engine = open((events) => {
    for (const event of events) {
      if (event.kind !== "finish") continue;
      if (!running.delete(event.id)) throw new Error(`request ${event.id} ended twice`);
      counts.finished[event.reason] = (counts.finished[event.reason] ?? 0) + 1;
    }
  });
  const step = (): void => {
    counts.nSteps++;
    if (engine.step()) return;
    engine.checkIntegrity();
    counts.nIdleChecks++;
  };
  const { nCtxSeq, nVocab } = engine.info;
  for (let i = 0; i < n; i++) {
    const choice = rng.uniform();
    if (choice < 0.12) {
      const request = randomRequest(rng, counts.nSubmitted++, texts, { nCtxSeq, nVocab, nDraftMax });
      running.add(request.id);
      if (!engine.submit(request)) throw new Error(`request ${request.id} was refused`);
    } else if (choice < 0.16 && running.size > 0) {
      engine.cancel([...running][rng.below(running.size)] as number);
      counts.nCancelled++;
    } else if (choice < 0.17) for (const id of running) engine.cancel(id);
    else step();
  }
  while (running.size > 0) step();
  step();
  return counts;
}

/** New prompts, prompts that share a beginning with earlier ones, and ones that fill the context. */
function randomRequest(rng: Rng, id: number, texts: number[][], { nCtxSeq, nVocab, nDraftMax }: { nCtxSeq: number; nVocab: number; nDraftMax: number }): GenerateRequest {
  const earlier = texts[rng.below(Math.max(1, texts.length))];
  const shared = earlier !== undefined && rng.uniform() < 0.4 ? earlier.slice(0, 1 + rng.below(earlier.length)) : [];
  const length = rng.uniform() < 0.05 ? nCtxSeq - rng.below(4) : Math.min(nCtxSeq - 1, shared.length + 1 + rng.below(120));
  const prompt = [...shared, ...Array.from({ length: Math.max(0, length - shared.length) }, () => rng.below(Math.floor(nVocab / 2)))].slice(0, nCtxSeq);
  if (texts.length < 40) texts.push(prompt);
  else texts[rng.below(40)] = prompt;
  return {
    id,
    prompt: Int32Array.from(prompt),
    maxTokens: rng.uniform() < 0.1 ? 10_000 : 1 + rng.below(60),
    sampling: rng.uniform() < 0.5 ? greedySampling : { ...greedySampling, temperature: 0.8, topK: 20, seed: id },
    stop: rng.uniform() < 0.2 ? ["e", "\n"] : [],
    ignoreEos: rng.uniform() < 0.5,
    nLogprobs: rng.uniform() < 0.1 ? 3 : undefined,
    grammar: undefined,
    nMax: rng.uniform() < 0.3 ? rng.below(nDraftMax + 1) : undefined,
    cachePrompt: rng.uniform() < 0.5,
  };
}

if (import.meta.url === pathToFileURL(process.argv[1] ?? "").href) {
  const [model = "", head = "", n = "10000", seed = "1"] = process.argv.slice(2);
  needFiles("bench:integrity -- MODEL HEAD [OPERATIONS] [SEED]", [model, head]);
  const nMax = 3;
  const options = engineOptions.parse({ model, parallel: 6, ctxSize: 6 * 384, threads: 1, device: "cpu", specType: "draft-mtp", specDraftModel: [head], specDraftNMax: nMax, specGate: "fixed", cacheRam: 64 });
  let opened: ReturnType<typeof openEngine> | undefined;
  const counts = randomOperations(
    (sink) => {
      opened = openEngine(options, { sink, maxQueue: 1e6 });
      return opened.engine;
    },
    Number(n),
    Number(seed),
    nMax,
  );
  const { draft, nOutputTokens, nCachedTokens } = (opened as ReturnType<typeof openEngine>).engine.snapshot();
  console.log(JSON.stringify({ operations: Number(n), seed: Number(seed), ...counts, nOutputTokens, nCachedTokens, nDrafted: draft.nDrafted, nAccepted: draft.nAccepted }));
}
