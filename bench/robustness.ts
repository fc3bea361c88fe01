/**
 * What a server must survive, on the real model: requests beyond its slots, clients that leave, an engine that dies or hangs.
 * Starts `foretoken serve` (built) with the flags given here and prints one JSON line a part; exits 1 when one fails.
 *
 *   npm run build && npm run bench:robustness -- -m model.gguf --parallel 16 [flags of serve]
 */
import assert from "node:assert/strict";
import { spawn, type ChildProcess } from "node:child_process";
import { createInterface } from "node:readline";
import { fileURLToPath } from "node:url";
import { Rng } from "../src/util/rng.ts";
import { call, type Json, type Target } from "../test/conformance/client.ts";
import { endWith } from "./usage.ts";

const CONCURRENCY = 16;
const N_BEYOND = 100;
const N_DISCONNECTS = 1008;
const HANG_S = 5;
const COMPLETIONS = "/v1/completions";

interface Server {
  readonly target: Target;
  readonly process: ChildProcess;
  /** Log lines so far, parsed. */
  readonly log: readonly Json[];
}

const sleep = async (ms: number): Promise<void> => new Promise((resolve) => setTimeout(resolve, ms));

async function startServer(flags: readonly string[]): Promise<Server> {
  const cli = fileURLToPath(new URL("../dist/src/cli.js", import.meta.url));
  const child = spawn(process.execPath, [cli, "serve", "--port", "0", "--json", "--hang-timeout", String(HANG_S), ...flags], { stdio: ["ignore", "pipe", "pipe"] });
  const log: Json[] = [];
  let said = "";
  createInterface({ input: child.stderr }).on("line", (line) => {
    said = line;
    if (line.startsWith("{")) log.push(JSON.parse(line));
  });
  for await (const line of createInterface({ input: child.stdout })) {
    const { url, model } = JSON.parse(line) as { url: string; model: string };
    return { target: { baseUrl: url, model, kind: "foretoken" }, process: child, log };
  }
  return endWith(`the server ended before it was ready: ${said}\nusage: npm run bench:robustness -- -m model.gguf --parallel 16 [flags of serve]`);
}

const post = async ({ baseUrl }: Target, body: object, signal?: AbortSignal): Promise<Response> => fetch(baseUrl + COMPLETIONS, { method: "POST", body: JSON.stringify(body), ...(signal === undefined ? {} : { signal }) });
const status = async (target: Target): Promise<Json> => (await call(target, "/status")).json;
const nBusy = ({ engine }: Json): number => engine.slots.filter((slot: Json) => slot.phase !== "idle").length;

/** Waits up to 20 s for idle slots, an empty queue and no open request; returns how long it took and what was left. */
async function settle(target: Target): Promise<object> {
  const startMs = performance.now();
  let now = await status(target);
  while (nBusy(now) + now.engine.nQueued + now.requests.active > 0 && performance.now() - startMs < 20_000) {
    await sleep(10);
    now = await status(target);
  }
  const left = { nBusy: nBusy(now), nQueued: now.engine.nQueued as number, nActive: now.requests.active as number };
  assert.deepEqual(left, { nBusy: 0, nQueued: 0, nActive: 0 });
  return { idleAfterMs: Math.round(performance.now() - startMs), ...left };
}

/** One request more every 5 ms until there are 100 more than slots; the order of ends is that of arrivals within a batch. */
async function beyondSlots({ target }: Server): Promise<object> {
  const nSlots = (await status(target)).engine.slots.length as number;
  const ends: number[] = [];
  const codes: Record<string, number> = {};
  await Promise.all(
    Array.from({ length: nSlots + N_BEYOND }, async (_, i) => {
      await sleep(5 * i);
      const response = await post(target, { prompt: "def f(x):", max_tokens: 24, ignore_eos: true, temperature: 0 });
      await response.arrayBuffer();
      codes[response.status] = (codes[response.status] ?? 0) + 1;
      ends.push(i);
    }),
  );
  assert.ok(Object.keys(codes).every((code) => ["200", "429", "503"].includes(code)), JSON.stringify(codes));
  return { nRequests: nSlots + N_BEYOND, nSlots, codes, largestDisplacement: Math.max(...ends.map((i, place) => Math.abs(i - place))), ...(await settle(target)) };
}

async function disconnects({ target }: Server): Promise<object> {
  const rng = new Rng(3);
  const before = (await status(target)).requests;
  let nLeft = 0;
  let nWhole = 0;
  const one = async (): Promise<void> => {
    const controller = new AbortController();
    const nParts = rng.below(8);
    setTimeout(() => controller.abort(), 1 + rng.below(300));
    try {
      const response = await post(target, { prompt: "class Stack:\n", max_tokens: 1000, ignore_eos: true, stream: rng.uniform() < 0.7 }, controller.signal);
      let n = 0;
      for await (const _part of response.body as unknown as AsyncIterable<Uint8Array>) if (++n > nParts) controller.abort();
      nWhole++;
    } catch {
      nLeft++;
    }
  };
  const worker = async (): Promise<void> => {
    for (let i = 0; i < N_DISCONNECTS / CONCURRENCY; i++) await one();
  };
  await Promise.all(Array.from({ length: CONCURRENCY }, worker));
  const settled = await settle(target);
  const { requests } = await status(target);
  const counted = Object.fromEntries(["ok", "disconnected", "failed", "rejected", "slow_client"].map((name) => [name, requests[name] - before[name]])) as Record<string, number>;
  // A client may leave before its request was read: such a one is counted nowhere.
  assert.ok(counted["failed"] === 0 && (counted["ok"] as number) + (counted["disconnected"] as number) <= N_DISCONNECTS, JSON.stringify(counted));
  return { nRequests: N_DISCONNECTS, nLeft, nWhole, counted, ...settled };
}

/** Ends the engine under load (SIGKILL) or lets it hang (SIGSTOP), and waits until requests are served again. */
async function loseEngine({ target, log }: Server, signal: "SIGKILL" | "SIGSTOP"): Promise<object> {
  const pid = log.findLast((line: Json) => line.message === "engine ready").pid as number;
  const outcomes: Record<string, number> = {};
  const running = Array.from({ length: CONCURRENCY }, async (_, i) => {
    const response = await post(target, { prompt: "def g(y):", max_tokens: 1500, ignore_eos: true, stream: i % 2 === 0 });
    const outcome = `${response.status}${(await response.text()).includes('"error"') ? " with an error" : ""}`;
    outcomes[outcome] = (outcomes[outcome] ?? 0) + 1;
  });
  while (nBusy(await status(target)) < CONCURRENCY) await sleep(10);
  const startMs = performance.now();
  process.kill(pid, signal);
  const nRefused = await untilServed(target);
  const servedAgainMs = Math.round(performance.now() - startMs);
  await Promise.all(running);
  const { info, restarts } = await status(target);
  // A hang is noticed within a quarter of its limit.
  const allowedMs = info.loadMs + 2000 + (signal === "SIGSTOP" ? 1250 * HANG_S : 0);
  assert.ok(servedAgainMs < allowedMs, `served again after ${servedAgainMs} ms, ${allowedMs} ms are allowed`);
  return { signal, servedAgainMs, loadMs: Math.round(info.loadMs), n503: nRefused, outcomes, restarts, ...(await settle(target)) };
}

/** Asks for one token again and again; HTTP must answer all the time. Returns how many got 503 with Retry-After. */
async function untilServed(target: Target): Promise<number> {
  for (let nRefused = 0; ; nRefused++) {
    assert.ok([200, 503].includes((await call(target, "/health")).status), "HTTP is not alive");
    const answer = await call(target, COMPLETIONS, { prompt: "def h(z):", max_tokens: 1 });
    if (answer.status === 200) return nRefused;
    assert.ok(answer.status === 503 && Number(answer.headers.get("retry-after")) > 0, answer.text);
    await sleep(10);
  }
}

const server = await startServer(process.argv.slice(2));
try {
  for (const part of [beyondSlots, disconnects]) console.log(JSON.stringify({ part: part.name, ...(await part(server)) }));
  for (const signal of ["SIGKILL", "SIGSTOP"] as const) console.log(JSON.stringify({ part: loseEngine.name, ...(await loseEngine(server, signal)) }));
} finally {
  server.process.kill("SIGTERM");
}
await new Promise((resolve) => server.process.once("exit", resolve));
const [integrity] = server.log.filter((line) => String(line.message).startsWith("engine integrity"));
console.log(JSON.stringify({ part: "integrity", level: integrity?.level, message: integrity?.message, problem: integrity?.problem }));
process.exit(integrity?.level === "info" ? 0 : 1);
