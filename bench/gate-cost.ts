/**
 * What an untrained head under the adaptive gate costs over a server that has none: two servers of this machine, the same
 * requests in turn, processor time of all their processes for each output token (wall time beside it). Processor time,
 * because a busy machine changes it little; where one thread computes and nothing waits, their ratio is that of the speeds.
 *
 * Both servers run on one CPU, in turn: two CPUs of a shared machine may differ by half for minutes, and a process stays
 * where it is. Two servers with the same flags differ by up to 2% for as long as they live (where their memory lies), so the
 * unit is a start: both servers anew, ROUNDS rounds in turn, the ratio of what a token takes in their quiet rounds (the 20th
 * percentile of each: neighbours only ever make a round longer); the interval is over the starts. Where neighbours are busy
 * for a whole start, all takes half as long again and a gate costs more, since caches are shared with them: so there is a
 * second table of the starts in which the server without a head was within 20% of its fastest start.
 *
 *   npm run bench:gate -- MODEL HEAD [STARTS] [ROUNDS] [STREAMS] [WARM_UP_S] [same]
 *
 * STREAMS: 1,4,8,16 or some of them. WARM_UP_S: most seconds of a server's warm-up for each of them. same: two servers without a head, for the noise.
 */
import { spawn, spawnSync, type ChildProcess } from "node:child_process";
import * as fs from "node:fs";
import * as os from "node:os";
import { fileURLToPath } from "node:url";
import { renderMarkdown } from "../src/util/table.ts";
import { needFiles } from "./usage.ts";

const [model = "", head = "", starts = "16", rounds = "24", streams = "1,4,8,16", warmUpSeconds = "60", same] = process.argv.slice(2);
needFiles("bench:gate -- MODEL HEAD [STARTS] [ROUNDS] [STREAMS] [WARM_UP_S] [same]", [model, head]);
const nSlots = 16;
/**
 * `nWarmUp`: rounds before anything counts. V8 compiles the engine's code in threads of its own during the first ten
 * thousand tokens, 60 to 150 microseconds a token, and goes on optimizing and taking back for some ten thousand steps, longer
 * where there is a gate; a server that lives pays that once. Steps are cheapest with few streams.
 */
const settings = [
  { concurrency: 1, nTokens: 150, nWarmUp: 100 },
  { concurrency: 4, nTokens: 100, nWarmUp: 60 },
  { concurrency: 8, nTokens: 60, nWarmUp: 14 },
  { concurrency: 16, nTokens: 50, nWarmUp: 14 },
].filter(({ concurrency }) => streams.split(",").includes(String(concurrency)));
if (settings.length === 0) throw new Error(`STREAMS ${streams}: give some of 1,4,8,16, separated by commas`);

const hasTaskset = os.availableParallelism() > 1 && spawnSync("taskset", ["-V"]).status === 0;
/** Before a server's command line. The client stays off that CPU. */
const onServerCpu = hasTaskset ? ["taskset", "-c", "0"] : [];
if (hasTaskset) spawnSync("taskset", ["-a", "-c", "-p", `1-${os.availableParallelism() - 1}`, String(process.pid)]);
else process.stderr.write("one CPU, or no taskset: servers are not pinned, and the machine's noise counts\n");

interface Server {
  readonly name: string;
  readonly url: string;
  readonly process: ChildProcess;
}

async function start(name: string, port: number, flags: readonly string[]): Promise<Server> {
  const cli = fileURLToPath(new URL("../dist/src/cli.js", import.meta.url));
  const [command, ...args] = [...onServerCpu, process.execPath, cli, "serve", "-m", model, "--port", String(port), "--parallel", String(nSlots), "-c", String(nSlots * 1024), "--threads", "1", ...flags];
  const child = spawn(command as string, args, { stdio: "ignore" });
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

/** The 20th percentile. */
const quiet = (xs: readonly number[]): number => xs.toSorted((x, y) => x - y)[Math.floor(xs.length / 5)] as number;
const mean = (xs: readonly number[]): number => xs.reduce((sum, x) => sum + x, 0) / xs.length;

/** Two-sided 95% points of Student's t by degrees of freedom; in between, the wider. */
const studentT = [[1, 12.71], [2, 4.3], [3, 3.18], [4, 2.78], [5, 2.57], [7, 2.36], [9, 2.26], [11, 2.2], [15, 2.13], [19, 2.09], [29, 2.05]] as const;

/** Geometric mean of ratios, given as logarithms, and its 95% interval. */
function showRatio(logs: readonly number[]): string {
  if (logs.length < 2) return "needs two starts";
  const middle = mean(logs);
  const error = Math.sqrt(logs.reduce((sum, x) => sum + (x - middle) ** 2, 0) / (logs.length - 1) / logs.length);
  const t = studentT.findLast(([df]) => df <= logs.length - 1)?.[1] ?? Infinity;
  return `${Math.exp(middle).toFixed(3)} [${Math.exp(middle - t * error).toFixed(3)}, ${Math.exp(middle + t * error).toFixed(3)}]`;
}

const gateFlags = ["--spec-type", "draft-mtp", "--spec-draft-model", head, "--spec-draft-n-max", "3", "--spec-gate", "adaptive"];

interface Ratio {
  /** Logarithms: no head over gate, by processor time and by wall time. */
  readonly cpu: number;
  readonly wall: number;
  /** What a token took without a head. */
  readonly noHeadMs: number;
}

/** One start of both servers: by concurrency, its two ratios. */
async function runStart(n: number): Promise<Ratio[]> {
  const none = (): Promise<Server> => start("no head", 18_431, ["--spec-type", "none"]);
  const gate = (): Promise<Server> => start("gate", 18_432, same === undefined ? gateFlags : ["--spec-type", "none"]);
  // Who is started first may get the better memory.
  const servers = n % 2 === 0 ? [await none(), await gate()] : [await gate(), await none()].toReversed();
  try {
    for (const { concurrency, nTokens, nWarmUp } of settings) {
      const endMs = performance.now() + 1000 * servers.length * Number(warmUpSeconds);
      for (let i = 0; i < nWarmUp && performance.now() < endMs; i++) for (const server of servers) await load(server, concurrency, nTokens, -1 - i);
    }
    const ratios: Ratio[] = [];
    for (const { concurrency, nTokens } of settings) {
      const cells: { cpuMs: number; wallMs: number }[][] = [[], []];
      for (let round = 0; round <= Number(rounds); round++) {
        for (const i of round % 2 === 0 ? [0, 1] : [1, 0]) {
          const cell = await load(servers[i] as Server, concurrency, nTokens, round);
          // In the first round the gate finds out what this concurrency costs.
          if (round > 0) cells[i]?.push(cell);
        }
      }
      const [a = [], b = []] = cells;
      const ratio = { cpu: Math.log(quiet(a.map((x) => x.cpuMs)) / quiet(b.map((x) => x.cpuMs))), wall: Math.log(quiet(a.map((x) => x.wallMs)) / quiet(b.map((x) => x.wallMs))), noHeadMs: quiet(a.map((x) => x.cpuMs)) };
      ratios.push(ratio);
      process.stderr.write(`start ${n + 1}, c${concurrency}: ${Math.exp(ratio.cpu).toFixed(3)} by processor time, ${Math.exp(ratio.wall).toFixed(3)} by wall time, ${ratio.noHeadMs.toFixed(3)} ms a token without a head\n`);
    }
    for (const { name, url } of servers) {
      const status = (await (await fetch(`${url}/status`)).json()) as { engine: { stepsAtK: number[]; gateReason: string } };
      process.stderr.write(`${name}: steps by draft length ${status.engine.stepsAtK.join("/")}, ${status.engine.gateReason}\n`);
    }
    return ratios;
  } finally {
    await Promise.all(servers.map(async ({ process: child }) => {
      const isGone = new Promise((resolve) => child.once("exit", resolve));
      child.kill("SIGTERM");
      await isGone;
    }));
  }
}

const results: Ratio[][] = [];
for (let n = 0; n < Number(starts); n++) results.push(await runStart(n));
const columns = [{ title: "streams" }, { title: "starts", align: "right" as const }, { title: "by processor time", align: "right" as const }, { title: "by wall time", align: "right" as const }];
const table = (isCounted: (ratio: Ratio, i: number) => boolean): string => {
  const rows = settings.map(({ concurrency }, i) => {
    const counted = results.map((r) => r[i] as Ratio).filter((ratio) => isCounted(ratio, i));
    return [`c${concurrency}`, String(counted.length), showRatio(counted.map((r) => r.cpu)), showRatio(counted.map((r) => r.wall))];
  });
  return renderMarkdown({ columns, rows });
};
const fastestMs = settings.map((_, i) => Math.min(...results.map((r) => (r[i] as Ratio).noHeadMs)));
console.log(table(() => true));
console.log("\nStarts on a quiet machine\n");
console.log(table((ratio, i) => ratio.noHeadMs < 1.2 * (fastestMs[i] as number)));
