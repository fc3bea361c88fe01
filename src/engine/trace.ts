/** What one step did: the record that `--trace`, `foretoken trace` and the row-shape table read. */
export interface StepRecord {
  readonly step: number;
  /** Milliseconds since the engine started, at the end of the step. */
  readonly atMs: number;
  readonly kind: "prefill" | "decode";
  readonly nSeqs: number;
  /** Those of them without a request, decoded to keep the shape. */
  readonly nGhosts: number;
  /** Target rows of each sequence in the step's main decode. */
  readonly nRowsEach: number;
  readonly nDraft: number;
  /** Why the gate chose `nDraft`; for prefill "prompt". */
  readonly why: string;
  /** Target decode calls, rows and logit rows. */
  readonly nDecodes: number;
  readonly nRows: number;
  readonly nOutputs: number;
  /** Target forwards (ubatches) that libllama makes of the step, by the split rule. */
  readonly nForwards: number;
  readonly nEmitted: number;
  readonly nAccepted: number;
  /** Phases in ms: p own catch-up decodes, g draft generation, v target decode until results are there, a everything of the engine's own. */
  readonly processMs: number;
  readonly generateMs: number;
  readonly verifyMs: number;
  readonly ownMs: number;
  readonly totalMs: number;
  readonly nProcessCalls: number;
  readonly nGenerateCalls: number;
  /** Graphs that libllama reused in this step, and why the target's was not, inferred. */
  readonly nReusedTarget: number;
  readonly nReusedHead: number;
  readonly notReused: "" | "first" | "other sequences" | "other draft length" | "other rows" | "kv grew";
}

export type TraceSink = (record: StepRecord) => void;

/** Infers why the target's graph was not reused, from what changed since the last step. */
export function whyNotReused(now: Pick<StepRecord, "kind" | "nSeqs" | "nRowsEach" | "nReusedTarget" | "nDraft">, last: StepRecord | undefined, sameSequences: boolean): StepRecord["notReused"] {
  if (now.nReusedTarget > 0) return "";
  if (last === undefined) return "first";
  if (last.nRowsEach !== now.nRowsEach) return last.kind === "decode" && now.kind === "decode" && last.nDraft !== now.nDraft ? "other draft length" : "other rows";
  if (!sameSequences || last.nSeqs !== now.nSeqs) return "other sequences";
  return "kv grew";
}
