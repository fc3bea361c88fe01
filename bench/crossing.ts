/**
 * What HTTP and the process border cost, without a model: the scripted engine behind the real server, read by a client
 * in a third process. CPU time, not wall time, so that a busy machine changes little. Prints one JSON line a setting.
 *
 *   npm run bench:crossing
 */
import { fork } from "node:child_process";
import * as fs from "node:fs";
import { fileURLToPath } from "node:url";
import { startScriptedServer } from "../test/server/scripted-server.ts";

const N_TOKENS = 4000;

async function client(url: string, concurrency: number): Promise<void> {
  const body = JSON.stringify({ prompt: "@@forever abcdefgh ", max_tokens: N_TOKENS, stream: true });
  await Promise.all(Array.from({ length: concurrency }, async () => (await fetch(`${url}/v1/completions`, { method: "POST", body })).arrayBuffer()));
}

/** User and system time of a process in seconds (Linux: /proc, ticks of 10 ms). */
function cpuSeconds(pid: number): number {
  const fields = fs.readFileSync(`/proc/${pid}/stat`, "utf8").replace(/^.*\) /s, "").split(" ");
  return (Number(fields[11]) + Number(fields[12])) / 100;
}

async function measure(nMax: number, concurrency: number): Promise<void> {
  const server = await startScriptedServer({ engine: { nSlots: concurrency, nMax, nCtxSeq: 1e6, accepts: [nMax] } });
  const run = async (n: number): Promise<void> => {
    const child = fork(fileURLToPath(import.meta.url), ["client", server.url, String(n)], { stdio: "inherit" });
    const code = await new Promise<number | null>((resolve) => child.once("exit", resolve));
    if (code !== 0) throw new Error(`the client ended with ${code}`);
  };
  await run(1);
  const pid = server.engine.pid as number;
  const before = { steps: server.engine.snapshot().nSteps, engine: cpuSeconds(pid), http: process.cpuUsage() };
  await run(concurrency);
  const http = process.cpuUsage(before.http);
  const nSteps = server.engine.snapshot().nSteps - before.steps;
  const nTokens = N_TOKENS * concurrency;
  const httpUs = http.user + http.system;
  const engineUs = (cpuSeconds(pid) - before.engine) * 1e6;
  const perUnit = (us: number): object => ({ usPerStep: Math.round(us / nSteps), usPerToken: Math.round((10 * us) / nTokens) / 10 });
  console.log(JSON.stringify({ nMax, concurrency, nTokens, nSteps, httpProcess: perUnit(httpUs), engineProcess: perUnit(engineUs) }));
  await server.close();
}

const [mode, url = "", concurrency = "1"] = process.argv.slice(2);
if (mode === "client") await client(url, Number(concurrency));
else for (const nMax of [0, 3]) for (const n of [1, 16]) await measure(nMax, n);
process.exit(0);
