/** Results of steps that the report shows with tables of their own: determinism, training, row shapes, costs, free tables. */
import * as path from "node:path";
import type { CostTableData } from "../engine/cost-table.ts";
import type { TraceSummary } from "../engine/trace-summary.ts";
import type { CostTable, Determinism, ExtraTable, FileMetadata, ShapeRow, TrainingRun, TrainingSnapshot } from "../report/model.ts";
import type { Evaluation } from "../train/evaluate.ts";
import { readTrainLog } from "../train/train-log.ts";
import type { TrainEvent } from "../train/train-options.ts";
import { formatDuration, formatInteger } from "../util/format.ts";
import type { Recipe, Step } from "./recipe.ts";
import type { StepRecord } from "./step-record.ts";

export interface Extras {
  readonly determinism: readonly Determinism[];
  readonly training: readonly TrainingRun[];
  readonly shapes: readonly ShapeRow[];
  readonly costs: readonly CostTable[];
  readonly extra: readonly ExtraTable[];
  readonly metadata: readonly FileMetadata[];
}

interface Done {
  readonly step: Step;
  readonly record: StepRecord;
}

export function readExtras(recipe: Recipe, done: readonly Done[]): Extras {
  const of = (kind: NonNullable<Step["report"]>): readonly Done[] => done.filter(({ step }) => step.report === kind);
  return {
    determinism: of("determinism").flatMap(({ record }) => partsOf<Determinism>(record.result)),
    training: [...of("training").map((d) => trainingRun(d)), ...of("evaluation").map((d) => evaluationRun(recipe, d))],
    shapes: of("shapes").flatMap(shapeRows),
    costs: of("shapes").flatMap(costTables),
    extra: [...phaseTable(of("shapes")), ...of("table").flatMap(({ record }) => partsOf<ExtraTable>(record.result))],
    metadata: of("inspect").flatMap(({ record }) => fileMetadata(record.result)),
  };
}

/** A verb's --json line that carries its part in the report's own form, under `report`. */
function partsOf<T>(result: unknown): T[] {
  if (typeof result !== "object" || result === null || !("report" in result)) return [];
  const { report } = result;
  return (Array.isArray(report) ? report : [report]) as T[];
}

/** `foretoken train`: its log has the curve, its result the end. */
function trainingRun({ step, record }: Done): TrainingRun {
  const end = record.result as Extract<TrainEvent, { event: "end" }> | undefined;
  const folder = record.outputs.map((o) => o.file).find((file) => readTrainLog(file).length > 0);
  const events = folder === undefined ? [] : readTrainLog(folder);
  const curve = (event: "validate" | "step"): TrainingRun["points"] => events.flatMap((e) => (e.event === event ? [{ step: e.step, loss: e.nll[0] ?? null, acceptance: e.acceptance }] : []));
  // A short run validates seldom; its steps are the curve then.
  const points = curve("validate").length >= 3 ? curve("validate") : curve("step");
  const start = events.find((e) => e.event === "start");
  const detail = [
    ...(start?.event === "start" ? [`${formatInteger(start.nTrainable)} parameters on ${formatInteger(start.nTokens)} captured tokens, on ${start.device} in ${start.computeType}.`] : []),
    ...(end === undefined ? [] : [`${formatInteger(end.step)} steps in ${formatDuration(end.elapsedMs)} (${end.reason}), ${end.medianStepMs.toFixed(0)} ms a step.`]),
  ].join(" ");
  return { name: step.title, detail, points, snapshots: [] };
}

/** `foretoken train --evaluate`: heads as the runtime judged them. */
function evaluationRun(recipe: Recipe, { step, record }: Done): TrainingRun {
  const evaluations = Array.isArray(record.result) ? (record.result as Evaluation[]) : [];
  const snapshots = evaluations.flatMap((e): TrainingSnapshot[] =>
    Object.entries(e.halves).map(([half, a]) => ({ label: e.headPaths.map((file) => headLabel(recipe, file)).join(" + ") || "head in the model", promptSet: `${half}, ${a.nPrompts} prompts`, acceptanceByPosition: a.rates, tokensPerRound: a.tokensPerDraft, tokPerSec: null, verdict: null })),
  );
  const first = evaluations[0];
  return { name: step.title, detail: first === undefined ? "" : `Served with drafts of ${first.nMax}, at most ${first.maxTokens} new tokens, temperature ${first.temperature}. Tokens per round: 1 + accepted / drafts.`, points: [], snapshots };
}

function headLabel(recipe: Recipe, file: string): string {
  const artifact = Object.values(recipe.artifacts).find((a) => path.resolve(a.file) === path.resolve(file));
  return artifact === undefined ? path.basename(file, ".gguf") : `${artifact.label}${artifact.type === undefined ? "" : ` ${artifact.type}`}`;
}

/** What of `foretoken inspect --json` is shown. */
interface Inspected {
  readonly file: string;
  readonly architecture: string;
  readonly fileType: string;
  readonly nTensors: number;
  readonly bitsPerWeight: number;
  readonly mtp: { readonly verdict: string; readonly blocks: readonly number[] };
  readonly keys: Readonly<Record<string, unknown>>;
  /** Those that `--tensors` asked for: the head's. */
  readonly tensors?: readonly { readonly type: string }[];
}

function fileMetadata(result: unknown): FileMetadata[] {
  return ([result ?? []].flat() as Inspected[]).map((f) => {
    const number = (key: string): number | null => (typeof f.keys[key] === "number" ? f.keys[key] : null);
    const types = new Map<string, number>();
    for (const { type } of f.tensors ?? []) types.set(type, (types.get(type) ?? 0) + 1);
    const id = number("general.file_type");
    return {
      file: path.basename(f.file),
      architecture: f.architecture,
      fileType: `${f.fileType}${id === null ? "" : ` (${id})`}`,
      blockCount: number(`${f.architecture}.block_count`),
      nextnPredictLayers: number(`${f.architecture}.nextn_predict_layers`),
      nTensors: f.nTensors,
      bitsPerWeight: f.bitsPerWeight,
      headTypes: [...types].map(([type, n]) => `${n} ${type}`).join(", "),
      head: `${f.mtp.verdict}${f.mtp.blocks.length === 0 ? "" : `: ${f.mtp.blocks.map((b) => `blk.${b}`).join(", ")}`}`,
    };
  });
}

/** What of `foretoken trace --json` is shown. */
interface TraceRun {
  readonly concurrency: number;
  readonly tokPerSec: number;
  readonly summary: TraceSummary;
  readonly costTable?: CostTableData;
  readonly nRequests?: number;
}

const traceRuns = (record: StepRecord): TraceRun[] => (Array.isArray(record.result) ? (record.result as TraceRun[]) : []);

function shapeRows({ step, record }: Done): ShapeRow[] {
  const requests = Number(step.run?.[step.run.findIndex((w) => w === "-n" || w === "--requests") + 1] ?? NaN);
  return traceRuns(record).map(({ concurrency, tokPerSec, summary: s }) => ({
    profile: `${step.title}, c${concurrency}`,
    requests: Number.isNaN(requests) ? 0 : requests,
    outputTokens: s.nEmitted,
    tokPerSec,
    decodeCalls: s.nDecodes,
    forwards: s.nForwards,
    rows: s.nRows,
    logitRows: s.nOutputs,
    shape: `\`${s.steadyShape}\` (${Math.round(100 * s.steadyShare)}% of decode steps)`,
  }));
}

/** Where decode time went, per traced run: the reports' `#calls(b,p,g,a)` and `dur(b,p,g,a)`, with the verification that they left out. */
function phaseTable(done: readonly Done[]): ExtraTable[] {
  const rows = done.flatMap(({ step, record }) =>
    traceRuns(record).map(({ concurrency, summary: s }) => {
      const perStep = (ms: number): number => ms / Math.max(1, s.nDecodeSteps);
      const { process: processMs, generate, verify, own, total } = s.decodeMs;
      return [`${step.title}, c${concurrency}`, s.nDecodeSteps, s.nProcessCalls, s.nGenerateCalls, perStep(total), perStep(verify), perStep(generate), perStep(processMs), perStep(own)];
    }),
  );
  if (rows.length === 0) return [];
  return [
    {
      title: "Decode time by phase",
      text: "Milliseconds of an average decode step: verify is the target, generate the drafting calls of the head, process its catch-up when that is a call of its own, own the engine around them.",
      columns: ["Profile", "Decode steps", "Process calls", "Generate calls", "ms per step", "verify", "generate", "process", "own"],
      rows,
    },
  ];
}

/** The gate's table: a whole step of so many sequences with so many drafts. */
function costTables({ step, record }: Done): CostTable[] {
  const table = traceRuns(record).findLast((r) => r.costTable !== undefined)?.costTable;
  if (table === undefined) return [];
  const cells = table.nSeqs.flatMap((sequences, i) => (table.stepMs[i] ?? []).map((ms, k) => ({ context: "step", sequences, rows: k + 1, ms })));
  return [{ title: `Cost of a step, as the gate measured it (${step.title})`, cells }];
}
