/**
 * Mixed traffic against a running server of this project, until a number of tokens came back or a time is over:
 *
 *   npm run bench:soak -- --base-url http://127.0.0.1:8080 [--tokens 1000000] [--seconds 600] [--concurrency 16] [--seed 1] [--n-max K]
 *
 * Tools are a part of it when the chat template has a place for them (`bench/tools.jinja` for one that has not). Checks every answer and watches the memory of both processes. Several runs against one server make one long soak:
 * `atTokens` counts since the server's start. Prints one JSON line and exits 1 when something was wrong.
 */
import { parseArgs } from "node:util";
import { Rng } from "../src/util/rng.ts";
import { call, type Json, type Target } from "../test/conformance/client.ts";
import { createTraffic } from "./soak-traffic.ts";
import { endWith } from "./usage.ts";

const SAMPLE_MS = 10_000;
/** More wrong answers than this end the run. */
const MOST_PROBLEMS = 20;

const { values } = parseArgs({
  options: {
    "base-url": { type: "string", default: "http://127.0.0.1:8080" },
    tokens: { type: "string", default: "1000000" },
    seconds: { type: "string", default: "600" },
    concurrency: { type: "string", default: "16" },
    seed: { type: "string", default: "1" },
    "n-max": { type: "string" },
  },
});
const baseUrl = values["base-url"].replace(/\/(v1\/?)?$/, "");
const models = (await (await fetch(`${baseUrl}/v1/models`).catch(() => endWith(`no server answers at ${baseUrl}; start foretoken serve, or give --base-url`))).json()) as { data: { id: string }[] };
const target: Target = { baseUrl, model: models.data[0]?.id ?? "", kind: "foretoken" };
const props = (await (await fetch(`${baseUrl}/props`)).json()) as { chat_template_caps: { tools: boolean } };
const nMax = values["n-max"] === undefined ? undefined : Number(values["n-max"]);
const traffic = createTraffic(target, new Rng(Number(values.seed)), { nMax, hasTools: props.chat_template_caps.tools });
const order = new Rng(Number(values.seed) + 1);
const kinds = Object.keys(traffic);

const startMs = performance.now();
const seconds = (): number => (performance.now() - startMs) / 1000;
const nRequests: Record<string, number> = {};
const problems: string[] = [];
const memory: { readonly atTokens: number; readonly engineMiB: number; readonly httpMiB: number }[] = [];
let nTokens = 0;

async function worker(): Promise<void> {
  while (nTokens < Number(values.tokens) && seconds() < Number(values.seconds) && problems.length <= MOST_PROBLEMS) {
    const kind = kinds[order.below(kinds.length)] as string;
    try {
      const body = await (traffic[kind] as () => Promise<Json>)();
      nRequests[kind] = (nRequests[kind] ?? 0) + 1;
      nTokens += body.usage?.completion_tokens ?? 0;
    } catch (error) {
      const cause = error instanceof Error && error.cause instanceof Error ? ` (${error.cause.message})` : "";
      problems.push(`${kind}: ${error instanceof Error ? error.message : String(error)}${cause}`);
    }
  }
}

const status = async (): Promise<Json> => (await call(target, "/status")).json;
const isIdle = ({ engine, requests }: Json): boolean => engine.nQueued === 0 && requests.active === 0 && engine.slots.every((slot: Json) => slot.phase === "idle");

async function sample(): Promise<void> {
  const { engine, httpRssBytes, nTokensDelivered } = await status();
  const mib = (bytes: number): number => Math.round(bytes / 2 ** 20);
  memory.push({ atTokens: nTokensDelivered, engineMiB: mib(engine.rssBytes), httpMiB: mib(httpRssBytes) });
  const { engineMiB, httpMiB } = memory.at(-1) as (typeof memory)[number];
  console.error(`${Math.round(seconds())} s  ${nTokensDelivered} tokens  engine ${engineMiB} MiB  HTTP ${httpMiB} MiB  ${problems.length} problems`);
}

/** The last status: idle, unless slots stay busy for 5 s after the last answer. */
async function settled(): Promise<Json> {
  for (let n = 0; n < 50 && !isIdle(await status()); n++) await new Promise((resolve) => setTimeout(resolve, 100));
  return status();
}

await sample();
const timer = setInterval(() => void sample(), SAMPLE_MS);
await Promise.all(Array.from({ length: Number(values.concurrency) }, worker));
clearInterval(timer);
const last = await settled();
await sample();
if (!isIdle(last)) problems.push(`not idle at the end: ${last.engine.nQueued} waiting, ${last.requests.active} open, slots ${last.engine.slots.map((slot: Json) => slot.phase).join(" ")}`);
const { draft, stepsAtK } = last.engine;
console.log(JSON.stringify({ nTokens, seconds: Math.round(seconds()), nRequests, requests: last.requests, restarts: last.restarts, draft, stepsAtK, memory, problems }));
process.exit(problems.length === 0 ? 0 : 1);
