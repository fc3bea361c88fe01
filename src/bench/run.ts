/** One load test of one server: warm-up, counters, measured part, counters, summary. */
import * as fs from "node:fs";
import { UserError, usageError } from "../util/errors.ts";
import { writeAtomic } from "../util/files.ts";
import { createProgress, type Progress } from "../util/progress.ts";
import { arrivalTimes, realClock, runClosedLoop, runOpenLoop } from "./arrivals.ts";
import { createClient, serverRoot, type Client } from "./client.ts";
import { type Acceptance, type DraftCounts, acceptanceOf, counterChanges, countsBetween, countsOfRequests, draftCounts } from "./counters.ts";
import { getText } from "./http.ts";
import { type ClientHealth, watchClient } from "./lag.ts";
import { type LoadOptions, parseExtraBody, parseLimits } from "./options.ts";
import type { RequestRecord } from "./record.ts";
import { type Summary, summarize } from "./summarize.ts";
import { createWorkload, type Prompt } from "./workload.ts";

export interface Target {
  readonly baseUrl: string;
  readonly model: string;
  readonly apiKey?: string | undefined;
}

export interface BenchResult {
  readonly summary: Summary;
  readonly drafts: DraftCounts | undefined;
  readonly acceptance: Acceptance | undefined;
  /** Changes of the server's own counters over the measured part. */
  readonly counters: Readonly<Record<string, number>>;
  readonly client: ClientHealth;
  readonly records: readonly RequestRecord[];
  readonly warnings: readonly string[];
}

export interface BenchContext {
  readonly signal?: AbortSignal;
  /** Shown before the progress figures. */
  readonly label?: string;
}

/** @throws {UserError} when the server cannot be reached, or when not one warm-up request succeeds. */
export async function runBench(target: Target, load: LoadOptions, context: BenchContext = {}): Promise<BenchResult> {
  const limits = parseLimits(load.goodput);
  if (!load.stream && (limits?.ttftMs !== undefined || limits?.tpotMs !== undefined)) throw usageError("--goodput ttft and tpot need streamed answers; leave --no-stream out, or limit e2el");
  const nWarmup = load.warmup ?? load.concurrency;
  const workload = createWorkload({ ...load, n: load.requests, nWarmup });
  const progress = createProgress(context.label ?? `bench c${load.concurrency}`, { total: load.requests });
  try {
    await warmUp(target, load, workload.warmup, context);
    const before = await readMetrics(target, load);
    const stopWatch = watchClient();
    const records = await measure(target, load, workload.measured, context, progress);
    const client = stopWatch();
    const summary = summarize(records, limits === undefined ? {} : { limits });
    const after = await readMetrics(target, load);
    // Without both readings a change is unknown: the second alone would count the warm-up and earlier runs.
    const [drafts, counters] = before === undefined || after === undefined ? [undefined, {}] : [countsBetween(draftCounts(before), draftCounts(after)), counterChanges(before, after)];
    const counts = drafts ?? countsOfRequests(records);
    return { summary, drafts: counts, acceptance: counts === undefined ? undefined : acceptanceOf(counts), counters, client, records, warnings: warningsOf(summary, client, load) };
  } finally {
    progress.end();
  }
}

async function warmUp(target: Target, load: LoadOptions, prompts: readonly Prompt[], context: BenchContext): Promise<void> {
  if (prompts.length === 0) return;
  const client = openClient(target, load, context, () => performance.now());
  const results = await runClosedLoop(prompts.length, load.concurrency, (i) => client.send(shorter(prompts[i] as Prompt, load.warmupMaxTokens), i)).finally(() => client.close());
  context.signal?.throwIfAborted();
  const first = results.find((r) => r.failure !== undefined)?.failure;
  if (first !== undefined && results.every((r) => r.failure !== undefined))
    throw new UserError(`${target.baseUrl}: no warm-up request succeeded; the first failed with ${first.kind}: ${first.message}`);
}

const shorter = (prompt: Prompt, nMost: number): Prompt => ({ ...prompt, maxTokens: Math.min(prompt.maxTokens, nMost) });

async function measure(target: Target, load: LoadOptions, prompts: readonly Prompt[], context: BenchContext, progress: Progress): Promise<RequestRecord[]> {
  const clock = realClock();
  const client = openClient(target, load, context, () => clock.now());
  let nDone = 0;
  let nFailed = 0;
  const onDone = (record: RequestRecord): void => {
    if (record.failure !== undefined) nFailed++;
    progress.update(++nDone, nFailed > 0 ? `${nFailed} failed` : "");
  };
  const send = (i: number, intendedAtMs?: number): Promise<RequestRecord> => client.send(prompts[i] as Prompt, i, intendedAtMs);
  const records =
    load.rate === undefined
      ? await runClosedLoop(prompts.length, load.concurrency, send, onDone).finally(() => client.close())
      : await runOpenLoop(arrivalTimes(prompts.length, load.rate, load.burstiness, load.seed), clock, send, { onDone, ...(load.maxInFlight === undefined ? {} : { maxInFlight: load.maxInFlight }) }).finally(() => client.close());
  context.signal?.throwIfAborted();
  return records;
}

function openClient(target: Target, load: LoadOptions, context: BenchContext, now: () => number): Client {
  return createClient({
    ...target,
    isStream: load.stream,
    temperature: load.temperature,
    topP: load.topP,
    seed: load.seed,
    ignoreEos: load.ignoreEos,
    extraBody: parseExtraBody(load.extraBody),
    timeoutMs: load.timeout * 1000,
    keepAlive: load.keepAlive,
    saveText: load.saveText,
    ...(context.signal === undefined ? {} : { signal: context.signal }),
    now,
  });
}

/** Waits as long as for a request: a busy server's counters are late, not absent. */
async function readMetrics(target: Target, load: LoadOptions): Promise<string | undefined> {
  return getText(`${serverRoot(target.baseUrl)}/metrics`, { timeoutMs: load.timeout * 1000, ...(target.apiKey === undefined ? {} : { headers: { authorization: `Bearer ${target.apiKey}` } }) });
}

function warningsOf(summary: Summary, client: ClientHealth, load: LoadOptions): string[] {
  const warnings: string[] = [];
  if (client.warning !== undefined) warnings.push(client.warning);
  if (load.rate === undefined && load.requests < load.concurrency) warnings.push(`${load.requests} requests cannot fill concurrency ${load.concurrency}`);
  const { cachedTokens = 0, promptTokens } = summary;
  if (load.sharedPrefixLen === 0 && promptTokens > 0 && cachedTokens / promptTokens > 0.5)
    warnings.push(`${cachedTokens} of ${promptTokens} prompt tokens came from a prompt cache: prefill is not measured; turn the cache off or use more prompts`);
  return warnings;
}

/** Raw file: a header line with the conditions, a line per request, and a line with what was read from the server and the client. */
export async function writeRaw(file: string, conditions: Readonly<Record<string, unknown>>, result: BenchResult): Promise<void> {
  const lines = [{ kind: "run", ...conditions }, ...result.records, { kind: "end", drafts: result.drafts, counters: result.counters, client: result.client, warnings: result.warnings }];
  await writeAtomic(file, (temporary) => fs.writeFileSync(temporary, lines.map((line) => `${JSON.stringify(line)}\n`).join("")));
}
