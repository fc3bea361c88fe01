/**
 * What a report is made of, as plain data: summary.json holds exactly this. A report is a pure function of it, so the
 * same data gives the same bytes. `null` means not measured or not applicable; nothing is ever filled in.
 */

export interface Interval {
  readonly low: number;
  readonly high: number;
}

/** One profile at one concurrency, all rounds together. docs/metrics.md defines each figure. */
export interface BenchRow {
  /** Which matrix of the recipe it belongs to: rows of different matrices had different loads. */
  readonly matrix: string;
  readonly profile: string;
  readonly concurrency: number;
  readonly rounds: number;
  readonly maxTokens: number;
  /** Open loop: requests per second on average; null in a closed loop. */
  readonly ratePerSec: number | null;
  readonly isStreamed: boolean;
  readonly requests: number;
  readonly failed: number;
  readonly promptTokens: number;
  readonly cachedTokens: number | null;
  readonly outputTokens: number;
  readonly tokPerSec: number;
  readonly tokPerSecInterval: Interval | null;
  readonly ttftP50Ms: number | null;
  readonly ttftP95Ms: number | null;
  readonly tpotP50Ms: number | null;
  readonly e2elP50Ms: number | null;
  readonly tokensPerChunk: number | null;
  /** Requests that met every limit, and how many of those a second; null without limits. */
  readonly goodput: { readonly limits: string; readonly good: number; readonly requestsPerSec: number } | null;
  readonly queueP50Ms: number | null;
  readonly prefillP50Ms: number | null;
  readonly nDrafts: number | null;
  readonly nDrafted: number | null;
  readonly nAccepted: number | null;
  /** nAccepted / nDrafted */
  readonly acceptance: number | null;
  /** Unconditional: accepted at i / nDrafts. Drafts shorter than i count below the line too. */
  readonly acceptanceByPosition: readonly number[];
  /** Drafts whose token at i was accepted, and drafts whose token at i was compared (all before it accepted). */
  readonly acceptedAt: readonly number[];
  readonly reachedAt: readonly number[];
  /** 1 + nAccepted / nDrafts */
  readonly meanAcceptanceLength: number | null;
  /** Host memory of the server's processes, or device memory where there is one. */
  readonly loadedMiB: number | null;
  /** Throughput over the baseline's, paired by round. */
  readonly ratio: ({ readonly baseline: string; readonly median: number } & Interval) | null;
  /** Time to first token at 0, 5, .. 100 percent of the requests. */
  readonly ttftQuantilesMs: readonly number[];
  /** Calls and time of the server's phases over the measured part, where it tells. */
  readonly phases: readonly Phase[];
  /** How late the client's own event loop was, and the cores it used: the worst round. */
  readonly clientLagP99Ms: number | null;
  readonly clientCores: number | null;
  readonly warnings: readonly string[];
  readonly raw: readonly string[];
}

export interface Phase {
  readonly name: string;
  readonly calls: number;
  readonly ms: number;
}

export interface ProfileInfo {
  readonly name: string;
  /** What it stands for, in a few words. */
  readonly note: string | null;
  readonly commandLine: string | null;
  /** Computed from the files before anything is loaded. */
  readonly estimatedMiB: number | null;
  /** What loading the model and making its contexts added, as the server itself measured it. */
  readonly addedMiB: number | null;
  /** All of the server's processes after the measurement, the largest over its rows. */
  readonly loadedMiB: number | null;
  readonly isSynthetic: boolean;
  /** Same work without drafts: what this profile is compared with. */
  readonly baseline: string | null;
}

export interface Artifact {
  readonly label: string;
  readonly file: string;
  /** target, head, integrated: what the file is for. */
  readonly role: string;
  readonly type: string | null;
  readonly sizeBytes: number;
  readonly sha256: string;
  readonly bitsPerWeight: number | null;
  readonly sourceMiB: number | null;
  readonly sourceBitsPerWeight: number | null;
  readonly resultMiB: number | null;
  /** The command that made it. */
  readonly made: string | null;
  readonly note: string | null;
}

/** What a file says of itself, read back from its header. */
export interface FileMetadata {
  readonly file: string;
  readonly architecture: string;
  readonly fileType: string;
  readonly blockCount: number | null;
  readonly nextnPredictLayers: number | null;
  readonly nTensors: number;
  readonly bitsPerWeight: number;
  /** "11 Q8_0, 9 F32" of the head's block. */
  readonly headTypes: string;
  readonly head: string;
}

export interface CheckRow {
  readonly profile: string;
  readonly name: string;
  readonly ok: boolean;
  readonly detail: string;
}

export interface DeterminismRow {
  readonly mode: string;
  readonly reference: string;
  readonly prompts: number;
  readonly exact: number;
  readonly exactInterval: Interval;
  readonly firstForkMin: number | null;
  readonly firstForkMedian: number | null;
  /** Difference of the two best log probabilities of the reference where the outputs part. */
  readonly marginMedian: number | null;
  readonly marginMax: number | null;
  readonly note: string | null;
}

export interface Determinism {
  readonly title: string;
  readonly reference: string;
  readonly maxTokens: number;
  readonly rows: readonly DeterminismRow[];
  readonly verdict: string;
}

/** One line of a row-shape trace, as in the trained report. */
export interface ShapeRow {
  readonly profile: string;
  readonly requests: number;
  readonly outputTokens: number;
  readonly tokPerSec: number;
  readonly decodeCalls: number | null;
  readonly forwards: number | null;
  readonly rows: number | null;
  readonly logitRows: number | null;
  readonly shape: string;
}

/** Measured cost of one target (or head) call in ms, by sequences and rows of each. */
export interface CostTable {
  readonly title: string;
  readonly cells: readonly { readonly context: string; readonly sequences: number; readonly rows: number; readonly ms: number }[];
}

export interface TrainingRun {
  readonly name: string;
  readonly detail: string;
  readonly points: readonly { readonly step: number; readonly loss: number | null; readonly acceptance: readonly number[] }[];
  readonly snapshots: readonly TrainingSnapshot[];
}

/** A head as the runtime judged it, not as its loss did. */
export interface TrainingSnapshot {
  readonly label: string;
  readonly promptSet: string;
  readonly acceptanceByPosition: readonly number[];
  readonly tokensPerRound: number | null;
  readonly tokPerSec: number | null;
  readonly verdict: string | null;
}

export interface Conditions {
  readonly date: string;
  readonly version: string;
  readonly commit: string | null;
  readonly machine: string;
  readonly node: string;
  readonly library: string | null;
  readonly device: string | null;
  readonly seed: number | null;
}

export interface StepInfo {
  readonly id: string;
  readonly title: string;
  readonly command: string;
  readonly seconds: number;
  readonly log: string | null;
}

/** A table with its own columns, for things that one recipe alone has. */
export interface ExtraTable {
  readonly title: string;
  readonly text: string | null;
  readonly columns: readonly string[];
  readonly rows: readonly (readonly (string | number | null)[])[];
}

export interface Recommendation {
  readonly byConcurrency: readonly Choice[];
  readonly rejected: readonly { readonly profile: string; readonly reason: string }[];
  readonly roles: readonly { readonly profile: string; readonly role: string; readonly reason: string }[];
  /** Plain words, the first paragraph of the report. */
  readonly sentences: readonly string[];
}

export interface Choice {
  readonly matrix: string;
  readonly concurrency: number;
  readonly profile: string;
  readonly tokPerSec: number;
  readonly loadedMiB: number | null;
  /** Against the baseline; null when the choice is the baseline. */
  readonly gain: ({ readonly ratio: number } & Interval) | null;
  readonly confidence: "interval" | "single run";
  readonly because: string;
}

/** How a report is laid out: which tables, over which rows, in which order. */
export interface Section {
  readonly title: string;
  readonly text: string | null;
  readonly show: readonly SectionPart[];
  readonly matrix: string | null;
  readonly profiles: readonly string[] | null;
  readonly concurrency: readonly number[] | null;
  /** File names, for the artifact table. */
  readonly artifacts: readonly string[] | null;
}

export const sectionParts = [
  "recommendation",
  "artifacts",
  "metadata",
  "profiles",
  "memory",
  "correctness",
  "throughput",
  "ratios",
  "results",
  "latency",
  "drafts",
  "phases",
  "acceptance",
  "shapes",
  "determinism",
  "training",
  "costs",
  "extra",
  "plot:throughput",
  "plot:ratio",
  "plot:draft-length",
  "plot:acceptance",
  "plot:ttft",
  "plot:costs",
  "plot:training",
  "conditions",
  "steps",
  "raw",
] as const;
export type SectionPart = (typeof sectionParts)[number];

export interface ReportData {
  readonly recipe: string;
  readonly title: string;
  readonly about: string | null;
  readonly conditions: Conditions;
  readonly rows: readonly BenchRow[];
  readonly profiles: readonly ProfileInfo[];
  readonly artifacts: readonly Artifact[];
  readonly metadata: readonly FileMetadata[];
  readonly correctness: readonly CheckRow[];
  readonly determinism: readonly Determinism[];
  readonly shapes: readonly ShapeRow[];
  readonly costs: readonly CostTable[];
  readonly training: readonly TrainingRun[];
  readonly extra: readonly ExtraTable[];
  readonly recommendation: Recommendation | null;
  readonly sections: readonly Section[];
  readonly steps: readonly StepInfo[];
  readonly rawFiles: readonly string[];
}
