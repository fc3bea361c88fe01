/**
 * Which modes reproduce plain decoding of each sequence alone: exact prompts, first fork, accepted share. One factor at
 * a time from the default. `npm run bench:exactness -- MODEL [PROMPTS] [TOKENS] [HEAD]`; one thread, so it takes its time.
 */
import * as fs from "node:fs";
import { engineOptions } from "../src/config/engine-options.ts";
import { OracleDrafter, type OracleRecord } from "../src/engine/drafters/oracle.ts";
import { greedySampling } from "../src/engine/request.ts";
import { openEngine } from "../src/llama/open-engine.ts";
import { wilsonInterval } from "../src/util/stats.ts";
import { renderMarkdown } from "../src/util/table.ts";
import { formatPercent } from "../src/util/format.ts";
import { needFiles } from "./usage.ts";

const [model = "", nPromptsText = "64", nTokensText = "300", headPath] = process.argv.slice(2);
needFiles("bench:exactness -- MODEL [PROMPTS] [TOKENS] [HEAD]", [model, ...(headPath === undefined ? [] : [headPath])]);
const nPrompts = Number(nPromptsText);
const nTokens = Number(nTokensText);
const texts = fs.readFileSync(new URL("../recipes/prompts/eval.jsonl", import.meta.url), "utf8").trim().split("\n").map((line) => JSON.parse(line) as { prompt?: string; messages?: { content: string }[] });

interface Outcome {
  readonly outputs: number[][];
  readonly nAccepted: number;
  readonly nDrafted: number;
}

function run(more: Record<string, unknown>, oracle?: { records: readonly OracleRecord[]; rate: number }): Outcome {
  const parallel = (more["parallel"] as number | undefined) ?? 1;
  const options = engineOptions.parse({ model, threads: 1, ctxSize: 512 * parallel, kvUnified: false, device: "cpu", specGate: "fixed", ...more, parallel });
  const outputs: number[][] = Array.from({ length: nPrompts }, () => []);
  const opened = openEngine(options, {
    sink: (events) => {
      for (const e of events) if (e.kind === "tokens") outputs[e.id]?.push(...e.tokens);
    },
    ...(oracle === undefined ? {} : { drafter: new OracleDrafter(oracle.records, oracle.rate, 4096, 3) }),
  });
  for (const [id, prompt] of promptsOf(opened).entries())
    opened.engine.submit({ id, prompt: Int32Array.from(prompt), maxTokens: nTokens, sampling: greedySampling, stop: [], ignoreEos: true, nLogprobs: undefined, grammar: undefined, nMax: undefined, cachePrompt: false });
  while (opened.engine.step()) continue;
  opened.engine.checkIntegrity();
  const { nAccepted, nDrafted } = opened.engine.snapshot().draft;
  opened.engine.close();
  return { outputs, nAccepted, nDrafted };
}

let tokenized: number[][] | undefined;

function promptsOf({ backend }: ReturnType<typeof openEngine>): number[][] {
  tokenized ??= texts.slice(0, nPrompts).map(({ prompt, messages }) => [...backend.vocab.tokenize(prompt ?? `<|im_start|>user\n${messages?.[0]?.content ?? ""}<|im_end|>\n<|im_start|>assistant\n`, { addSpecial: false, parseSpecial: true })]);
  return tokenized;
}

const reference = run({});
const records = reference.outputs.map((output, i) => ({ prompt: (tokenized as number[][])[i] as number[], output }));
const oracle = { records, rate: 0.8 };
const drafting = { specType: "draft-mtp", ...(headPath === undefined ? {} : { specDraftModel: [headPath] }) };
const modes: [name: string, options: Record<string, unknown>, withOracle: boolean][] = [
  ["plain again", {}, false],
  ...[1, 2, 3, 4].map((k): [string, Record<string, unknown>, boolean] => [`sequential, n_max ${k}, oracle 0.8`, { ...drafting, specDraftNMax: k, specVerify: "sequential" }, true]),
  ...[1, 2, 3, 4].map((k): [string, Record<string, unknown>, boolean] => [`batched, n_max ${k}, oracle 0.8`, { ...drafting, specDraftNMax: k }, true]),
  ["by depth, n_max 3, oracle 0.8", { ...drafting, specDraftNMax: 3, specVerify: "by-depth" }, true],
  ["batched, n_max 3, oracle 0.8, 4 at once", { ...drafting, specDraftNMax: 3, parallel: 4 }, true],
  ["sequential, n_max 3, oracle 0.8, 4 at once", { ...drafting, specDraftNMax: 3, specVerify: "sequential", parallel: 4 }, true],
  ["plain, 4 at once", { parallel: 4 }, false],
  ["plain, flash attention off", { flashAttn: "off" }, false],
  ["plain, KV unified, 4 at once", { parallel: 4, kvUnified: true }, false],
];
const rows = modes.map(([name, options, withOracle]) => {
  const { outputs, nAccepted, nDrafted } = run(options, withOracle ? oracle : undefined);
  const forks = outputs.map((tokens, i) => tokens.findIndex((t, at) => t !== reference.outputs[i]?.[at])).filter((at) => at >= 0);
  const nExact = outputs.length - forks.length;
  const { low, high } = wilsonInterval(nExact, outputs.length);
  process.stderr.write(`${name}: ${nExact} of ${outputs.length}\n`);
  return [name, `${nExact} of ${outputs.length}`, `${formatPercent(low, 0)} to ${formatPercent(high, 0)}`, forks.length === 0 ? "" : String(Math.min(...forks)), nDrafted === 0 ? "" : formatPercent(nAccepted / nDrafted, 1)];
});
console.log(renderMarkdown({ columns: [{ title: "mode" }, { title: "exact", align: "right" }, { title: "95% interval", align: "right" }, { title: "first fork at token", align: "right" }, { title: "accepted / drafted", align: "right" }], rows }));
