/**
 * What the engine itself costs a step, apart from native calls: the whole engine on a backend that does nothing.
 * `npm run bench:engine`. The draft is always right, so a step emits nMax + 1 tokens a sequence.
 */
import type { Backend, DecodeContext } from "../src/engine/backend.ts";
import { defaultEngineConfig } from "../src/engine/config.ts";
import { Engine } from "../src/engine/engine.ts";
import { greedySampling } from "../src/engine/request.ts";
import { median } from "../src/util/stats.ts";
import { renderText } from "../src/util/table.ts";

const nEmbd = 2048;

function emptyContext(nSeq: number, isDraft: boolean): DecodeContext {
  const capacity = 2048;
  const rows = { capacity, n: 0, tokens: new Int32Array(capacity), positions: new Int32Array(capacity), seqs: new Int32Array(capacity), outputs: new Int8Array(capacity), hidden: new Float32Array(isDraft ? capacity * nEmbd : 0) };
  const hidden = new Float32Array(capacity * nEmbd);
  const last = new Int32Array(nSeq).fill(-1);
  let nDecodes = 0;
  return {
    limits: { nSeq, nCtxSeq: 8192, nCells: 8192 * nSeq, nRows: capacity, nUbatch: capacity, nOutputsPerSeq: 16, nRollback: isDraft ? Infinity : 16 },
    rows,
    nVocab: 4096,
    nEmbd,
    samplingOf: () => "device-greedy",
    decode: () => {
      nDecodes++;
      for (let i = 0; i < rows.n; i++) last[rows.seqs[i] as number] = rows.positions[i] as number;
    },
    synchronize: () => {},
    greedyToken: (row) => ((rows.positions[row] as number) * 31 + 7) % 4000,
    logits: () => new Float32Array(0),
    candidates: () => ({ n: 0, tokens: new Int32Array(0), logits: new Float32Array(0) }),
    hidden: (row) => hidden.subarray(row * nEmbd, (row + 1) * nEmbd),
    hiddenAll: () => hidden.subarray(0, rows.n * nEmbd),
    setHiddenOutput: () => {},
    removeFrom: (seq, from) => {
      last[seq] = Math.min(last[seq] as number, from - 1);
      return true;
    },
    clear: (seq) => void (last[seq] = -1),
    lastPosition: (seq) => last[seq] as number,
    saveSequence: () => new Uint8Array(0),
    restoreSequence: () => false,
    counters: () => ({ nDecodes, nReusedGraphs: nDecodes }),
    close: () => {},
  };
}

function stepMicros(nSeqs: number, nMax: number): number {
  const target = emptyContext(nSeqs, false);
  const backend: Backend = {
    target,
    heads: nMax > 0 ? [emptyContext(nSeqs, true)] : [],
    description: { device: "none", library: "none", modelPath: "", headPaths: [], isAsynchronous: true },
    createGrammar: () => ({ allows: () => true, mask: () => {}, accept: () => {}, close: () => {} }),
    isEndOfGeneration: () => false,
    tokenBytes: () => new Uint8Array(0),
    close: () => {},
  };
  const engine = new Engine({ backend, config: { ...defaultEngineConfig, nMax }, sink: () => {} });
  for (let id = 0; id < nSeqs; id++)
    engine.submit({ id, prompt: Int32Array.from({ length: 64 }, (_, i) => i), maxTokens: 7000, sampling: greedySampling, stop: [], ignoreEos: true, nLogprobs: undefined, grammar: undefined, nMax: undefined, cachePrompt: false });
  while (engine.slots.inPhase("decode").length < nSeqs) engine.step();
  const times: number[] = [];
  for (let block = 0; block < 15; block++) {
    // Processor time, so that a busy machine does not count.
    const start = process.cpuUsage();
    for (let i = 0; i < 100; i++) engine.step();
    const { user, system } = process.cpuUsage(start);
    times.push((user + system) / 100);
  }
  return median(times.slice(3));
}

const rows = [1, 16].flatMap((n) =>
  [0, 1, 2, 3].map((nMax) => {
    const micros = stepMicros(n, nMax);
    const nTokens = n * (nMax + 1);
    return [`c${n}`, String(nMax), String(nTokens), micros.toFixed(1), (50 + 8 * nTokens).toString(), micros <= 50 + 8 * nTokens ? "within" : "above"];
  }),
);
console.log(renderText({ columns: ["", "n_max", "tokens a step", "engine us a step", "budget us", ""].map((title, i) => ({ title, align: i > 0 && i < 5 ? ("right" as const) : ("left" as const) })), rows }));
