/**
 * What an untrained head under the adaptive gate costs over a server that has none: two servers of this machine, the same
 * requests in turn, processor time of all their processes for each output token (wall time beside it). Processor time,
 * because a busy machine changes it little; where one thread computes and nothing waits, their ratio is that of the speeds.
 *
 *   npm run bench:gate -- MODEL HEAD [ROUNDS]
 */
import { spawn, type ChildProcess } from "node:child_process";
import * as fs from "node:fs";
import { fileURLToPath } from "node:url";
import { renderMarkdown } from "../src/util/table.ts";

const [model = "", head = "", rounds = "20"] = process.argv.slice(2);
const nSlots = 16;
const settings = [
  { concurrency: 1, nTokens: 600 },
  { concurrency: 4, nTokens: 250 },
  { concurrency: 8, nTokens: 150 },
  { concurrency: 16, nTokens: 120 },
];

interface Server {
  readonly name: string;
  readonly url: string;
  readonly process: ChildProcess;
}

async function start(name: string, port: number, flags: readonly string[]): Promise<Server> {
  const cli = fileURLToPath(new URL("../dist/src/cli.js", import.meta.url));
  const child = spawn(process.execPath, [cli, "serve", "-m", model, "--port", String(port), "--parallel", String(nSlots), "-c", String(nSlots * 1024), "--threads", "1", ...flags], { stdio: "ignore" });
  const url = `http://127.0.0.1:${port}`;
  for (let i = 0; i < 600; i++) {
    if (child.exitCode !== null) throw new Error(`${name} ended with ${child.exitCode}`);
    if (await fetch(`${url}/health`).then((r) => r.ok, () => false)) return { name, url, process: child };
    await new Promise((resolve) => setTimeout(resolve, 200));
  }
  throw new Error(`${name} is not ready after two minutes`);
}

function childrenOf(pid: number): number[] {
  const own = fs.readdirSync(`/proc/${pid}/task`).flatMap((task) => fs.readFileSync(`/proc/${pid}/task/${task}/children`, "utf8").trim().split(" "));
  return own.filter((text) => text !== "").map(Number).flatMap((child) => [child, ...childrenOf(child)]);
}

/** Nanoseconds that the threads of a process and its children have run (Linux: schedstat). */
function cpuNs(pid: number): number {
  let total = 0;
  for (const p of [pid, ...childrenOf(pid)]) for (const task of fs.readdirSync(`/proc/${p}/task`)) total += Number(fs.readFileSync(`/proc/${p}/task/${task}/schedstat`, "utf8").split(" ")[0]);
  return total;
}

async function load({ url, process: { pid } }: Server, concurrency: number, nTokens: number, seed: number): Promise<{ cpuMs: number; wallMs: number }> {
  const [startNs, startMs] = [cpuNs(pid as number), performance.now()];
  await Promise.all(
    Array.from({ length: concurrency }, async (_, i) => {
      const body = { prompt: `def f${seed}_${i}(a, b):\n    `, max_tokens: nTokens, ignore_eos: true, temperature: 0, stream: false };
      const answer = await fetch(`${url}/v1/completions`, { method: "POST", body: JSON.stringify(body) });
      const { usage } = (await answer.json()) as { usage: { completion_tokens: number } };
      if (usage.completion_tokens !== nTokens) throw new Error(`${usage.completion_tokens} of ${nTokens} tokens`);
    }),
  );
  const n = concurrency * nTokens;
  return { cpuMs: (cpuNs(pid as number) - startNs) / 1e6 / n, wallMs: (performance.now() - startMs) / n };
}

/** Mean of the paired ratios (of logarithms) and its 95% interval. */
function meanRatio(pairs: readonly (readonly [a: number, b: number])[]): { mean: number; low: number; high: number } {
  const logs = pairs.map(([a, b]) => Math.log(a / b));
  const mean = logs.reduce((x, y) => x + y, 0) / logs.length;
  const error = Math.sqrt(logs.reduce((sum, x) => sum + (x - mean) ** 2, 0) / (logs.length - 1) / logs.length);
  // Student's t at 20 rounds; a little wide for more.
  return { mean: Math.exp(mean), low: Math.exp(mean - 2.09 * error), high: Math.exp(mean + 2.09 * error) };
}

const servers = [await start("no head", 18_431, ["--spec-type", "none"]), await start("gate", 18_432, ["--spec-type", "draft-mtp", "--spec-draft-model", head, "--spec-draft-n-max", "3", "--spec-gate", "adaptive"])] as const;
try {
  const rows: string[][] = [];
  for (const { concurrency, nTokens } of settings) {
    const results: [{ cpuMs: number; wallMs: number }, { cpuMs: number; wallMs: number }][] = [];
    for (let round = 0; round <= Number(rounds); round++) {
      const order = round % 2 === 0 ? [0, 1] : [1, 0];
      const pair = [];
      for (const i of order) pair[i] = await load(servers[i] as Server, concurrency, nTokens, round);
      // The first round warms up and lets the gate find out.
      if (round > 0) results.push(pair as (typeof results)[number]);
      process.stderr.write(`c${concurrency} round ${round}: processor time a token ${pair.map((p) => p?.cpuMs.toFixed(3)).join(" and ")} ms\n`);
    }
    const cpu = meanRatio(results.map(([none, gate]) => [none.cpuMs, gate.cpuMs]));
    const wall = meanRatio(results.map(([none, gate]) => [none.wallMs, gate.wallMs]));
    const show = (r: typeof cpu): string => `${r.mean.toFixed(3)} [${r.low.toFixed(3)}, ${r.high.toFixed(3)}]`;
    rows.push([`c${concurrency}`, show(cpu), show(wall)]);
  }
  const columns = [{ title: "streams" }, { title: "by processor time", align: "right" as const }, { title: "by wall time", align: "right" as const }];
  console.log(renderMarkdown({ columns, rows }));
  for (const { name, url } of servers) {
    const status = (await (await fetch(`${url}/status`)).json()) as { engine: { stepsAtK: number[]; gateReason: string } };
    console.log(`\n${name}: steps by draft length ${status.engine.stepsAtK.join("/")}, ${status.engine.gateReason}`);
  }
} finally {
  for (const { process: child } of servers) child.kill("SIGTERM");
}
