/** `foretoken trace --experts`: distinct experts that the target's routers select in a decode step, by row shape. */
import type { StepRecord } from "../engine/trace.ts";
import type { ExpertCounter, RoutedForward, RoutedLayer } from "../llama/expert-counter.ts";
import { formatPercent } from "../util/format.ts";
import { renderText } from "../util/table.ts";

/** One layer over the forwards of a shape. */
export interface LayerExperts {
  readonly layer: number;
  readonly nUsed: number;
  readonly mean: number;
  readonly min: number;
  readonly max: number;
}

/** Forwards of one size in decode steps of one shape. */
export interface ShapeExperts {
  /** Of the step: "16 seq x 3 rows". */
  readonly shape: string;
  /** Rows of one forward: all of the step's, unless its rows were verified in several. */
  readonly nRows: number;
  readonly nForwards: number;
  /** Distinct experts a layer and forward: mean over all layers, and the lowest and highest mean of a layer. */
  readonly mean: number;
  readonly lowest: number;
  readonly highest: number;
  /** What routers that choose at random, all experts alike, would select. */
  readonly uniform: number;
  readonly layers: readonly LayerExperts[];
}

export interface ExpertSummary {
  readonly nExperts: number;
  readonly shapes: readonly ShapeExperts[];
  /** Decode steps left out, because the rows that the routers saw were not those of the step (a decode failed before it). */
  readonly nSkipped: number;
}

/**
 * Expected number of distinct experts when each of `nRows` rows draws `nUsed` different ones of `nExperts`, all alike and
 * rows independent: an expert is missed by one row with probability 1 - nUsed / nExperts.
 */
export function uniformDistinct(nExperts: number, nUsed: number, nRows: number): number {
  return nExperts * (1 - (1 - nUsed / nExperts) ** nRows);
}

interface Tally {
  readonly shape: string;
  readonly nRows: number;
  readonly forwards: RoutedForward[];
}

/** Joins what the counter saw with the step it was in. */
export class ExpertTrace {
  readonly #counter: Pick<ExpertCounter, "take" | "isOn" | "nExperts">;
  #tallies = new Map<string, Tally>();
  #nSkipped = 0;

  constructor(counter: Pick<ExpertCounter, "take" | "isOn" | "nExperts">) {
    this.#counter = counter;
  }

  /** Forgets what was counted and counts from now on. */
  start(): void {
    this.#counter.take();
    this.#counter.isOn = true;
    this.#tallies = new Map();
    this.#nSkipped = 0;
  }

  stop(): void {
    this.#counter.isOn = false;
  }

  /** At the end of each step, with its record. */
  endStep({ kind, nSeqs, nRowsEach, nRows }: Pick<StepRecord, "kind" | "nSeqs" | "nRowsEach" | "nRows">): void {
    if (!this.#counter.isOn) return;
    const forwards = this.#counter.take();
    if (kind !== "decode") return;
    if (forwards.reduce((sum, forward) => sum + rowsOf(forward), 0) !== nRows) {
      this.#nSkipped++;
      return;
    }
    const shape = `${nSeqs} seq x ${nRowsEach} ${nRowsEach === 1 ? "row" : "rows"}`;
    for (const forward of forwards) {
      const key = `${shape} ${rowsOf(forward)}`;
      const tally = this.#tallies.get(key) ?? { shape, nRows: rowsOf(forward), forwards: [] };
      tally.forwards.push(forward);
      this.#tallies.set(key, tally);
    }
  }

  /** Most frequent shape first. */
  summary(): ExpertSummary {
    const { nExperts } = this.#counter;
    const shapes = [...this.#tallies.values()].toSorted((a, b) => b.forwards.length - a.forwards.length).map((tally) => summarizeShape(tally, nExperts));
    return { nExperts, shapes, nSkipped: this.#nSkipped };
  }
}

const rowsOf = (forward: RoutedForward): number => forward[0]?.nRows ?? 0;
const meanOf = (values: readonly number[]): number => values.reduce((a, b) => a + b, 0) / values.length;

function summarizeShape({ shape, nRows, forwards }: Tally, nExperts: number): ShapeExperts {
  const routed = forwards.flat();
  const layers = [...new Set(routed.map(({ layer }) => layer))].map((layer) => summarizeLayer(layer, routed.filter((r) => r.layer === layer)));
  const means = layers.map(({ mean }) => mean);
  return {
    shape,
    nRows,
    nForwards: forwards.length,
    mean: meanOf(means),
    lowest: Math.min(...means),
    highest: Math.max(...means),
    uniform: meanOf(layers.map(({ nUsed }) => uniformDistinct(nExperts, nUsed, nRows))),
    layers,
  };
}

function summarizeLayer(layer: number, routed: readonly RoutedLayer[]): LayerExperts {
  const counts = routed.map(({ nDistinct }) => nDistinct);
  return { layer, nUsed: routed[0]?.nUsed ?? 0, mean: meanOf(counts), min: counts.reduce((a, b) => Math.min(a, b)), max: counts.reduce((a, b) => Math.max(a, b)) };
}

export function renderExperts({ nExperts, shapes, nSkipped }: ExpertSummary): string {
  const titles = ["decode shape", "rows a forward", "forwards", "layers", "experts a row", "distinct experts a layer", "of all", "lowest layer", "highest layer", "uniform random"];
  const rows = shapes.map((s) => [s.shape, String(s.nRows), String(s.nForwards), String(s.layers.length), usedOf(s.layers), s.mean.toFixed(1), formatPercent(s.mean / nExperts, 0), layerAt(s, s.lowest), layerAt(s, s.highest), s.uniform.toFixed(1)]);
  const notes = [
    `experts: ${nExperts} in a layer; means over forwards; uniform random is N (1 - (1 - k/N)^rows), for rows that choose k of N independently, all experts alike`,
    "no times: the routers' choices are read after each layer, which slows every step; prompts are random token ids, and text may route otherwise",
    ...(nSkipped === 0 ? [] : [`decode steps left out, because a decode failed before them: ${nSkipped}`]),
  ];
  return [renderText({ columns: titles.map((title, i) => ({ title, align: i === 0 ? "left" : "right" })), rows }), ...notes].join("\n");
}

const layerAt = ({ layers }: ShapeExperts, mean: number): string => `${mean.toFixed(1)} (${layers.find((l) => l.mean === mean)?.layer ?? ""})`;

function usedOf(layers: readonly LayerExperts[]): string {
  const used = layers.map(({ nUsed }) => nUsed);
  const [fewest, most] = [Math.min(...used), Math.max(...used)];
  return fewest === most ? String(most) : `${fewest} to ${most}`;
}
