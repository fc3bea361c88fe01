/**
 * What draft lengths are worth: expected tokens a millisecond, tokens from recent acceptance, time from the measured cost
 * tables, less what is known to be lost besides.
 */
import { AcceptanceEstimate } from "./acceptance.ts";
import type { CostTable } from "./cost-table.ts";
import { endLoss, noSpread, type EndSpread } from "./end-spread.ts";
import { Excess } from "./excess.ts";

export class DraftValue {
  acceptance: AcceptanceEstimate;
  /** Time of a step at length 0 over the table's, in the context that decodes now, and in one that can roll back. */
  zeroFactor = 1;
  rollingRatio = 1;
  /** What a length above 0 must promise over length 0 while a change of context lies between them. */
  entryPromise = 0;
  /** The same while other groups work and draft nothing. */
  companyPromise = 0;
  /** Tells which requests would end together without drafts. */
  endSpread: () => EndSpread = () => noSpread;
  readonly nMax: number;
  /** The shortest draft that is made at all. */
  readonly least: number;
  #excess = new Excess();
  #table: CostTable | undefined;
  /** Costs while this engine works alone on the device, and while other groups work too. */
  #alone: CostTable | undefined;
  #crowded: CostTable | undefined;

  constructor(nMax: number, least: number, table: CostTable | undefined) {
    this.nMax = nMax;
    this.least = least;
    this.acceptance = new AcceptanceEstimate(nMax);
    this.#table = table;
    this.#alone = table;
    this.#crowded = table;
  }

  /** Takes measured tables and forgets what calibration taught. */
  useTables(alone: CostTable, crowded: CostTable): void {
    this.#table = alone;
    this.#alone = alone;
    this.#crowded = crowded;
    this.acceptance = new AcceptanceEstimate(this.nMax);
    this.#excess = new Excess();
  }

  /** The table of the coming step. @returns whether it is another one */
  takeTable(isCrowded: boolean): boolean {
    const table = isCrowded ? this.#crowded : this.#alone;
    const isOther = table !== this.#table;
    this.#table = table;
    return isOther;
  }

  get table(): CostTable | undefined {
    return this.#table;
  }

  /** @throws without a table */
  #stepMs(nSeqs: number, k: number): number {
    return (this.#table as CostTable).stepMs(nSeqs, k);
  }

  /**
   * A step took so long, `nSteps` after the last one whose time is known.
   * @param isSteady its shape was that of the steps before it, so that its time refines the table
   * @param isOrdinary it is not one that a trial makes dear
   */
  noteCost(nSeqs: number, k: number, measuredMs: number, isSteady: boolean, isOrdinary: boolean, nSteps: number): void {
    if (this.#table === undefined) return;
    if (isOrdinary) this.#excess.note(k > 0, measuredMs / this.#stepMs(nSeqs, k), nSteps);
    if (isSteady) this.#table.refine(nSeqs, k, measuredMs);
  }

  /** Expected tokens per millisecond of the batch at length k, less what is lost by ends that drift apart and by steps that are not steady. */
  rate(nSeqs: number, k: number): number {
    const stepMs = this.#stepMs(nSeqs, k);
    if (k === 0) return nSeqs / (stepMs * this.zeroFactor);
    const expected = this.acceptance.expectedTokens(k);
    return (nSeqs * expected * (1 - endLoss(this.endSpread(), expected, this.acceptance.tokenVariance(k)))) / (stepMs * this.#excess.ofDrafting);
  }

  /** The rate, less what a length above 0 must promise. */
  worth(nSeqs: number, k: number): number {
    if (k === 0) return this.rate(nSeqs, 0);
    // Beside groups that rest it is the plain context's rate that must be beaten, wherever this one decodes.
    const alone = this.companyPromise > 0 ? (1 + this.companyPromise) * this.zeroFactor : 1;
    return this.rate(nSeqs, k) / Math.max(1 + this.entryPromise, alone);
  }

  /** The length that is worth most, 0 among them. */
  best(nSeqs: number): number {
    let best = 0;
    for (let k = this.least; k <= this.nMax; k++) if (this.worth(nSeqs, k) > this.worth(nSeqs, best)) best = k;
    return best;
  }

  /** The highest rate of a length above 0. */
  bestDrafted(nSeqs: number): number {
    let best = 0;
    for (let k = this.least; k <= this.nMax; k++) best = Math.max(best, this.rate(nSeqs, k));
    return best;
  }

  /**
   * By what share the context that the table's length 0 was measured in is faster without drafts than the best that this
   * one offers; negative when drafting wins.
   */
  plainGain(nSeqs: number): number {
    const drafted = this.bestDrafted(nSeqs);
    const plain = nSeqs / this.#stepMs(nSeqs, 0);
    const undrafted = plain / this.rollingRatio;
    // What this context is used for, or would be. Where drafting has yet to be entered, the tier asks for its promise.
    const least = this.entryPromise > 0 || this.companyPromise === 0 ? undrafted : (1 + this.companyPromise) * plain;
    return plain / (drafted > least ? drafted : undrafted) - 1;
  }

  /** What drafts that are all accepted would win, as a share. */
  perfectGain(nSeqs: number): number {
    let best = 0;
    for (let k = this.least; k <= this.nMax; k++) best = Math.max(best, (k + 1) / this.#stepMs(nSeqs, k));
    return best * this.#stepMs(nSeqs, 0) - 1;
  }

  /** Smallest length that wins more than `gain` if every draft is accepted; 0 if none does. */
  shortestPaying(nSeqs: number, gain: number): number {
    const plain = 1 / this.#stepMs(nSeqs, 0);
    for (let k = this.least; k <= this.nMax; k++) if ((k + 1) / this.#stepMs(nSeqs, k) > plain * (1 + gain)) return k;
    return 0;
  }

  /** Acceptance of the first position at which k drafts cost what they win. */
  breakEven(nSeqs: number, k: number): number {
    return (this.#stepMs(nSeqs, k) / this.#stepMs(nSeqs, 0) - 1) / k;
  }
}
