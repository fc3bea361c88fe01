/** Results of steps that the report shows with tables of their own: determinism, training, row shapes, costs, free tables. */
import type { CostTable, Determinism, ExtraTable, ShapeRow, TrainingRun } from "../report/model.ts";
import type { Step } from "./recipe.ts";
import type { StepRecord } from "./step-record.ts";

export interface Extras {
  readonly determinism: readonly Determinism[];
  readonly training: readonly TrainingRun[];
  readonly shapes: readonly ShapeRow[];
  readonly costs: readonly CostTable[];
  readonly extra: readonly ExtraTable[];
}

/** Each verb's --json line carries its part of the report under `report`, in the report's own form. */
export function readExtras(done: readonly { step: Step; record: StepRecord }[]): Extras {
  const of = <T>(kind: NonNullable<Step["report"]>): T[] => done.filter(({ step }) => step.report === kind).flatMap(({ record }) => partsOf<T>(record.result));
  return {
    determinism: of<Determinism>("determinism"),
    training: of<TrainingRun>("training"),
    shapes: of<ShapeRow>("shapes"),
    costs: of<CostTable>("costs"),
    extra: of<ExtraTable>("table"),
  };
}

function partsOf<T>(result: unknown): T[] {
  if (typeof result !== "object" || result === null || !("report" in result)) return [];
  const { report } = result;
  return (Array.isArray(report) ? report : [report]) as T[];
}
