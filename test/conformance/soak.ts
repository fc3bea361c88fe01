/**
 * Mixed traffic against a running server until a number of tokens came back: tsx test/conformance/soak.ts --base-url U
 * [--tokens 1000000] [--concurrency 16] [--seed 1]. Checks every answer, watches memory through /status, prints one JSON
 * line at the end and exits 1 when something was wrong.
 */
import assert from "node:assert/strict";
import { parseArgs } from "node:util";
import { Rng } from "../../src/util/rng.ts";
import { abandon, call, finishReasonOf, stream, type Json, type Target } from "./client.ts";

const { values } = parseArgs({
  options: { "base-url": { type: "string", default: "http://127.0.0.1:8080" }, tokens: { type: "string", default: "1000000" }, concurrency: { type: "string", default: "16" }, seed: { type: "string", default: "1" } },
});
const baseUrl = values["base-url"].replace(/\/(v1\/?)?$/, "");
const models = (await (await fetch(`${baseUrl}/v1/models`)).json()) as { data: { id: string }[] };
const target: Target = { baseUrl, model: models.data[0]?.id ?? "", kind: "foretoken" };
const nWanted = Number(values.tokens);
const rng = new Rng(Number(values.seed));
const counts: Record<string, number> = {};
const problems: string[] = [];
const memory: { readonly atTokens: number; readonly engineMiB: number; readonly httpMiB: number }[] = [];
let nTokens = 0;

const questions = ["Write a Python function that adds two numbers.", "Reverse a string in Python.", "Sum a list.", "Write a class for a stack with push and pop.", "Check whether a number is prime."];
const prompts = ["def fibonacci(n):\n", "class Stack:\n    def __init__(self):\n", "import os\n\ndef list_files(path):\n", "# Sort a list of numbers\n"];
const pick = <T>(items: readonly T[]): T => items[rng.below(items.length)] as T;
const lengths = (): number => 8 + rng.below(200);

function count(kind: string, body: Json): void {
  counts[kind] = (counts[kind] ?? 0) + 1;
  nTokens += body.usage?.completion_tokens ?? 0;
}

async function completion(more: object): Promise<Json> {
  const body = { model: target.model, prompt: pick(prompts), max_tokens: lengths(), temperature: rng.below(2) * 0.8, ...more };
  const { status, json, text } = await call(target, "/v1/completions", body);
  assert.equal(status, 200, text);
  assert.ok(json.usage.completion_tokens <= body.max_tokens * (json.choices.length as number));
  return json;
}

const kinds: Readonly<Record<string, () => Promise<Json>>> = {
  whole: async () => completion({}),
  long: async () => completion({ max_tokens: 600, ignore_eos: true }),
  penalties: async () => completion({ repeat_penalty: 1.1, frequency_penalty: 0.2, top_k: 0 }),
  logprobs: async () => completion({ logprobs: 2 }),
  choices: async () => completion({ n: 3, temperature: 0.8 }),
  "long prompt": async () => completion({ prompt: pick(prompts).repeat(20 + rng.below(40)) }),
  "no drafts": async () => completion({ speculative: { n_max: 0 } }),
  stop: async () => {
    const json = await completion({ stop: ["\n\n", "return", "é"] });
    assert.doesNotMatch(json.choices[0].text, /\n\n|return|é/);
    return json;
  },
  json: async () => {
    const schema = { type: "object", properties: { kind: { enum: ["a", "b"] }, n: { type: "integer", minimum: 0, maximum: 9 } }, required: ["kind", "n"] };
    const { status, json, text } = await call(target, "/v1/chat/completions", { model: target.model, messages: [{ role: "user", content: pick(questions) }], max_tokens: 80, response_format: { type: "json_schema", json_schema: { name: "s", schema } } });
    assert.equal(status, 200, text);
    if (json.choices[0].finish_reason === "stop") assert.ok(["a", "b"].includes(JSON.parse(json.choices[0].message.content).kind));
    return json;
  },
  stream: async () => {
    const { chunks, isDone } = await stream(target, "/v1/chat/completions", { model: target.model, messages: [{ role: "user", content: pick(questions) }], max_tokens: lengths(), temperature: 0.8, stream_options: { include_usage: true } });
    assert.ok(isDone);
    assert.ok(["stop", "length"].includes(finishReasonOf(chunks)));
    return chunks.at(-1);
  },
  leave: async () => {
    const nChunks = rng.below(20);
    await abandon(target, "/v1/completions", { model: target.model, prompt: pick(prompts), max_tokens: 1000, ignore_eos: true }, (text) => text.split("\n\n").length > nChunks);
    return {};
  },
  wrong: async () => {
    assert.equal((await call(target, "/v1/completions", { prompt: "a", temperature: -1 })).status, 400);
    return {};
  },
};

async function worker(): Promise<void> {
  while (nTokens < nWanted) {
    const kind = pick(Object.keys(kinds));
    try {
      count(kind, await (kinds[kind] as () => Promise<Json>)());
    } catch (error) {
      problems.push(`${kind}: ${error instanceof Error ? error.message : String(error)}`);
      if (problems.length > 20) throw error;
    }
  }
}

async function watch(): Promise<void> {
  const { json } = await call(target, "/status");
  memory.push({ atTokens: nTokens, engineMiB: Math.round(json.engine.rssBytes / 2 ** 20), httpMiB: Math.round(json.httpRssBytes / 2 ** 20) });
  console.error(`${nTokens} tokens  engine ${memory.at(-1)?.engineMiB} MiB  HTTP ${memory.at(-1)?.httpMiB} MiB  ${problems.length} problems`);
}

const startMs = performance.now();
await watch();
const timer = setInterval(() => void watch(), 15_000);
await Promise.all(Array.from({ length: Number(values.concurrency) }, worker));
clearInterval(timer);
await new Promise((resolve) => setTimeout(resolve, 1000));
await watch();
const { json } = await call(target, "/status");
const nBusy = json.engine.slots.filter((slot: Json) => slot.phase !== "idle").length;
if (nBusy > 0 || json.engine.nQueued > 0 || json.requests.active > 0) problems.push(`${nBusy} slots busy, ${json.engine.nQueued} waiting, ${json.requests.active} open at the end`);
console.log(JSON.stringify({ nTokens, seconds: Math.round((performance.now() - startMs) / 1000), counts, requests: json.requests, draft: json.engine.draft, stepsAtK: json.engine.stepsAtK, memory, problems }));
process.exit(problems.length === 0 ? 0 : 1);
