/** `foretoken trace`: what steps the engine makes under a load, in this process, without HTTP; or from slot lengths alone. */
import * as fs from "node:fs";
import * as z from "zod";
import { defineCommand, type Io } from "../config/command.ts";
import { checkEngineOptions, engineOptions, type EngineOptions } from "../config/engine-options.ts";
import type { CostTableData } from "../engine/cost-table.ts";
import { meanAcceptanceLength } from "../engine/draft-counts.ts";
import { greedySampling, type DraftStats, type EngineEvent } from "../engine/request.ts";
import { predictForwards } from "../engine/split.ts";
import { summarizeTrace, type PhaseTimes, type TraceSummary } from "../engine/trace-summary.ts";
import type { StepRecord } from "../engine/trace.ts";
import { createExpertCounter, readExpertCount, type ExpertCounter } from "../llama/expert-counter.ts";
import { loadLlama } from "../llama/library.ts";
import { openEngine } from "../llama/open-engine.ts";
import { usageError } from "../util/errors.ts";
import { formatPercent } from "../util/format.ts";
import { createProgress } from "../util/progress.ts";
import { Rng } from "../util/rng.ts";
import { quantile } from "../util/stats.ts";
import { renderText } from "../util/table.ts";
import { ExpertTrace, renderExperts, type ExpertSummary } from "./trace-experts.ts";

const options = z.strictObject({
  ...engineOptions.shape,
  model: engineOptions.shape.model.optional().meta({ short: "m", description: "GGUF file of the model; not needed with --predict", placeholder: "FILE" }),
  requests: z.int().min(1).default(32).meta({ short: "n", description: "requests to run" }),
  concurrency: z.array(z.int().min(1)).default([]).meta({ description: "requests in flight, one run each; default: the number of slots", placeholder: "N" }),
  promptLen: z.int().min(1).default(128).meta({ description: "tokens of each prompt, drawn at random" }),
  promptSpread: z.int().min(0).default(0).meta({ description: "lengths vary by this many tokens" }),
  maxTokens: z.int().min(1).default(128).meta({ description: "new tokens of each request" }),
  temperature: z.number().min(0).default(0).meta({ description: "sampling temperature of the requests" }),
  topK: z.int().min(0).default(40).meta({ description: "top-k of the requests" }),
  warmup: z.int().min(0).default(1).meta({ description: "bursts run before the measured requests and discarded" }),
  predict: z.string().optional().meta({ description: "only compute forwards of one decode from rows per slot, for example 3,3,1,3", placeholder: "ROWS" }),
  record: z.string().optional().meta({ description: "write prompts and outputs as token ids, for --spec-oracle", placeholder: "FILE" }),
  experts: z.boolean().default(false).meta({ description: "count the distinct experts that the routers of each layer select in a decode step, by row shape; slows every step, so no times are told" }),
  output: z.string().optional().meta({ short: "o", description: "write every step as a JSON line", placeholder: "FILE" }),
});
type TraceOptions = z.output<typeof options>;

export interface TraceRun {
  readonly concurrency: number;
  readonly tokPerSec: number;
  readonly decodeTokPerSec: number;
  readonly ttftP50Ms: number;
  readonly ttftP95Ms: number;
  readonly draft: DraftStats;
  readonly isSynthetic: boolean;
  readonly summary: TraceSummary;
  readonly costTable: CostTableData | undefined;
  /** With --experts. */
  readonly experts?: ExpertSummary;
}

export const command = defineCommand({
  name: "trace",
  summary: "what steps the engine makes: decode calls, forwards, row shapes, time by phase",
  details: "Runs the engine in this process on random prompts. Prompts are token ids below half of the vocabulary, so the text means nothing.",
  options,
  async run(o, io) {
    if (o.predict !== undefined) return printPrediction(o, o.predict, io);
    if (o.model === undefined) throw usageError("--model is needed; --help shows the usage");
    checkExpertOptions(o);
    const runs = runAll(o, o.model);
    if (io.json) io.out(JSON.stringify(runs.map(({ experts, ...run }) => (experts === undefined ? run : withoutTimes(run, experts)))));
    else for (const run of runs) print(run, io);
    return undefined;
  },
});

/** @throws {UserError} exit code 2: what else is asked for would take times of steps that were slowed. */
function checkExpertOptions(o: TraceOptions): void {
  if (!o.experts) return;
  if (o.output !== undefined) throw usageError("--experts slows every step, so --output would write times that mean nothing; leave one of them out");
  if (o.specType !== "none" && o.specGate !== "fixed") throw usageError("--experts slows every step, so the adaptive gate would choose by wrong costs; add --spec-gate fixed");
}

/** What of a run does not depend on how long its steps took. */
function withoutTimes({ concurrency, isSynthetic, draft, summary }: TraceRun, experts: ExpertSummary): Record<string, unknown> {
  const { nDecodeSteps, nDecodes, nForwards, nRows, nOutputs, forwardsPerDecodeStep, steadyShape, steadyShare, stepsAtK } = summary;
  return { concurrency, isSynthetic, draft, summary: { nDecodeSteps, nDecodes, nForwards, nRows, nOutputs, forwardsPerDecodeStep, steadyShape, steadyShare, stepsAtK }, experts };
}

function runAll(o: TraceOptions, model: string): TraceRun[] {
  const { requests, concurrency, promptLen, promptSpread, maxTokens, temperature, topK, warmup, predict: _, record, experts, output, ...engine } = o;
  const parsed: EngineOptions = { ...engine, model, trace: undefined };
  checkEngineOptions(parsed);
  const progress = createProgress("loading", { total: 100, format: (percent) => String(Math.round(percent)) });
  let records: StepRecord[] = [];
  let onEvent: (event: EngineEvent) => void = () => {};
  const counter = experts ? openCounter(parsed.llamaDir, parsed.device, model) : undefined;
  const expertTrace = counter === undefined ? undefined : new ExpertTrace(counter);
  const opened = openEngine(parsed, {
    sink: (events) => events.forEach((e) => onEvent(e)),
    trace: (r) => {
      records.push(r);
      expertTrace?.endStep(r);
    },
    progress: (fraction, what) => progress.update(fraction * 100, what),
    ...(counter === undefined ? {} : { targetEvalCallback: counter.callback }),
  });
  progress.end();
  const fd = output === undefined ? undefined : fs.openSync(output, "w");
  const runs: TraceRun[] = [];
  const load = { promptLen, promptSpread, maxTokens, temperature, topK, seed: o.seed + 1 };
  const recorded: { prompt: number[]; output: number[] }[] = [];
  for (const c of concurrency.length > 0 ? concurrency : [parsed.parallel]) {
    const drive = (n: number): { ms: number; ttftMs: number[]; nOutput: number } => closedLoop(opened.engine, { ...load, nRequests: n, concurrency: c }, (handler) => void (onEvent = handler), record === undefined ? undefined : recorded);
    if (warmup > 0) drive(warmup * c);
    opened.engine.resetTotals();
    records = [];
    expertTrace?.start();
    const { ms, ttftMs, nOutput } = drive(Math.max(requests, c));
    expertTrace?.stop();
    const snapshot = opened.engine.snapshot();
    const summary = summarizeTrace(records);
    if (fd !== undefined) for (const r of records) fs.writeSync(fd, `${JSON.stringify({ concurrency: c, ...r })}\n`);
    runs.push({
      concurrency: c,
      tokPerSec: (nOutput / ms) * 1000,
      decodeTokPerSec: ((nOutput - ttftMs.length) / summary.decodeMs.total) * 1000,
      ttftP50Ms: quantile(ttftMs, 0.5),
      ttftP95Ms: quantile(ttftMs, 0.95),
      draft: snapshot.draft,
      isSynthetic: snapshot.isSynthetic,
      summary,
      costTable: opened.engine.gate.table?.toJSON(),
      ...(expertTrace === undefined ? {} : { experts: expertTrace.summary() }),
    });
  }
  if (fd !== undefined) fs.closeSync(fd);
  if (record !== undefined) fs.writeFileSync(record, recorded.map((r) => `${JSON.stringify(r)}\n`).join(""));
  opened.engine.checkIntegrity();
  opened.engine.close();
  counter?.close();
  return runs;
}

function openCounter(llamaDir: string | undefined, device: string | undefined, model: string): ExpertCounter {
  const nExperts = readExpertCount(model);
  return createExpertCounter(loadLlama({ llamaDir, device }), nExperts);
}

interface Load {
  readonly nRequests: number;
  readonly concurrency: number;
  readonly promptLen: number;
  readonly promptSpread: number;
  readonly maxTokens: number;
  readonly temperature: number;
  readonly topK: number;
  readonly seed: number;
}

/** Keeps `concurrency` requests in flight until all are done. */
function closedLoop(engine: ReturnType<typeof openEngine>["engine"], load: Load, listen: (handler: (event: EngineEvent) => void) => void, recorded?: { prompt: number[]; output: number[] }[]): { ms: number; ttftMs: number[]; nOutput: number } {
  const rng = new Rng(load.seed);
  const sentMs = new Map<number, number>();
  const outputs = new Map<number, { prompt: number[]; output: number[] }>();
  const ttftMs: number[] = [];
  let nSent = 0;
  let nOutput = 0;
  const submit = (): void => {
    if (nSent === load.nRequests) return;
    const id = nSent++;
    const length = load.promptLen + (load.promptSpread === 0 ? 0 : rng.below(2 * load.promptSpread + 1) - load.promptSpread);
    const prompt = Int32Array.from({ length: Math.max(1, length) }, () => 300 + rng.below(Math.max(1, (engine.info.nVocab >> 1) - 300)));
    if (recorded !== undefined) outputs.set(id, { prompt: [...prompt], output: [] });
    sentMs.set(id, performance.now());
    engine.submit({
      id,
      prompt,
      maxTokens: load.maxTokens,
      sampling: { ...greedySampling, temperature: load.temperature, topK: load.topK, seed: load.seed * 1000 + id },
      stop: [],
      ignoreEos: true,
      nLogprobs: undefined,
      grammar: undefined,
      nMax: undefined,
      cachePrompt: false,
    });
  };
  let nDone = 0;
  listen((event) => {
    if (event.kind === "tokens") {
      nOutput += event.tokens.length;
      outputs.get(event.id)?.output.push(...event.tokens);
      const sent = sentMs.get(event.id);
      if (sent !== undefined) ttftMs.push(performance.now() - sent);
      sentMs.delete(event.id);
    } else if (event.kind === "finish") {
      nDone++;
      submit();
    }
  });
  const startMs = performance.now();
  for (let i = 0; i < load.concurrency; i++) submit();
  while (nDone < load.nRequests) engine.step();
  while (engine.step()) continue;
  recorded?.push(...outputs.values());
  return { ms: performance.now() - startMs, ttftMs, nOutput };
}

function printPrediction(o: TraceOptions, text: string, io: Io): void {
  const rows = text.split(",").map(Number);
  if (rows.some((n) => !Number.isInteger(n) || n < 0)) throw usageError(`--predict ${text}: whole numbers of rows per slot, separated by commas`);
  const nKeepTail = o.specType === "none" ? 0 : o.specDraftNMax + 1;
  const forwards = predictForwards(rows.map((n, seq) => [seq, n] as const).filter(([, n]) => n > 0), { nUbatch: o.ubatchSize, isUnified: o.kvUnified, nKeepTail });
  if (io.json) io.out(JSON.stringify({ rows, forwards }));
  else {
    io.out(`${forwards.length} ${forwards.length === 1 ? "forward" : "forwards"} for ${rows.reduce((a, b) => a + b, 0)} rows of ${rows.length} slots`);
    for (const f of forwards) io.out(`  ${f.seqs.length} seq x ${f.nRowsEach}: slots ${f.seqs.join(",")}`);
  }
}

function print(run: TraceRun, io: Io): void {
  const { summary: s, draft, experts } = run;
  const synthetic = run.isSynthetic ? "; acceptance is drawn from set rates, the output is not model text" : "";
  if (experts !== undefined) {
    io.out(`concurrency ${run.concurrency}: ${s.nDecodeSteps} decode steps on random prompts${synthetic}`);
    io.out(renderExperts(experts));
    printDrafts(draft, io);
    return;
  }
  io.out(`concurrency ${run.concurrency}: ${run.tokPerSec.toFixed(1)} tok/s, decode alone ${run.decodeTokPerSec.toFixed(1)}; TTFT p50 ${run.ttftP50Ms.toFixed(0)} ms, p95 ${run.ttftP95Ms.toFixed(0)} ms${synthetic}`);
  io.out(
    renderText({
      columns: [{ title: "decode steps", align: "right" }, { title: "target decode calls", align: "right" }, { title: "forwards", align: "right" }, { title: "target rows", align: "right" }, { title: "logit rows", align: "right" }, { title: "forwards a step", align: "right" }, { title: "steady-state shape" }],
      rows: [[String(s.nDecodeSteps), String(s.nDecodes), String(s.nForwards), String(s.nRows), String(s.nOutputs), s.forwardsPerDecodeStep.toFixed(2), `${s.steadyShape} (${formatPercent(s.steadyShare, 0)})`]],
    }),
  );
  const phase = (name: string, t: PhaseTimes): string[] => [name, t.total.toFixed(2), t.process.toFixed(2), t.generate.toFixed(2), t.verify.toFixed(2), t.own.toFixed(2)];
  io.out(
    renderText({
      columns: ["ms", "total", "p catch-up", "g draft", "target decode", "a own"].map((title, i) => ({ title, align: i === 0 ? ("left" as const) : ("right" as const) })),
      rows: [phase("median steady step", s.steadyMs), phase("all decode steps", s.decodeMs), phase("all prefill steps", s.prefillMs)],
    }),
  );
  io.out(`calls: prefill ${s.nPrefillSteps}, p ${s.nProcessCalls}, g ${s.nGenerateCalls}; steps by draft length ${s.stepsAtK.join("/")}; why ${JSON.stringify(s.stepsByReason)}`);
  io.out(`graphs reused: target ${formatPercent(s.reusedTargetShare, 0)}, head ${formatPercent(s.reusedHeadShare, 0)}; not reused: ${JSON.stringify(s.notReused)}`);
  printDrafts(draft, io);
  if (run.costTable !== undefined) io.out(`cost table (ms): ${JSON.stringify(run.costTable)}`);
}

function printDrafts(draft: DraftStats, io: Io): void {
  if (draft.nDrafts > 0)
    io.out(`drafts ${draft.nDrafts}, drafted ${draft.nDrafted}, accepted ${draft.nAccepted}; unconditional by position (${draft.acceptedAt.map((n) => (n / draft.nDrafts).toFixed(3)).join(", ")}); mean acceptance length ${meanAcceptanceLength(draft).toFixed(2)}`);
}
