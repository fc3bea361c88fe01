/**
 * Drafts that are made at length 0 to learn about acceptance, not to win time: when, and how long.
 *
 * Probes come after so many steps at length 0, later each time they find nothing, and rarer where even drafts that are all
 * accepted would win little. One goes on while its own drafts are accepted often enough to break even and ends at once when
 * not, so that an untrained head costs one bad step per `maxSteps`.
 */

/** A probe that has told nothing by then ends: requests too short, none that wants drafts, or hidden rows are not at hand. */
const maxSilentSteps = 16;
/** What a probe may draft before it must have decided. */
const maxDrafted = 32;
/** After a probe that told nothing the next one comes so many steps later, and from so many steps before one hidden rows are prepared for it. */
export const leadSteps = 48;

/**
 * Where even drafts that are all accepted would win less than this, probes are rarer: by the square, as both what they
 * could win and how likely they are to find it are less. Up to `maxPatience` times.
 */
const worthProbing = 0.2;
const maxPatience = 16;

/** How many times longer probes are put off where perfect drafts would win `gain`. */
export function patienceFor(gain: number): number {
  return gain <= 0 ? maxPatience : Math.min(maxPatience, Math.max(1, worthProbing / gain) ** 2);
}

interface Probe {
  readonly k: number;
  /** Acceptance of the first position as it was believed before, and whether this probe says otherwise. */
  readonly expected: number;
  hasSurprised: boolean;
  nSteps: number;
  nDrafted: number;
  nAccepted: number;
}

/** Three standard deviations from what was expected: what was believed of another text is no guide to this one. */
function isSurprising({ nDrafted, nAccepted, expected }: Probe): boolean {
  const p = Math.min(0.95, Math.max(0.05, expected));
  return nDrafted >= 8 && Math.abs(nAccepted / nDrafted - p) > 3 * Math.sqrt((p * (1 - p)) / nDrafted);
}

export class Probing {
  readonly #minSteps: number;
  readonly #maxSteps: number;
  /** Steps at length 0 before the next probe, but for patience. */
  #after: number;
  #open: Probe | undefined;
  stepsAtZero = 0;

  constructor(minSteps: number, maxSteps: number) {
    this.#minSteps = minSteps;
    this.#maxSteps = maxSteps;
    this.#after = minSteps;
  }

  /** Draft length of the probe that goes on; undefined: none does. */
  get length(): number | undefined {
    return this.#open?.k;
  }

  stepsLeft(patience: number): number {
    return Math.max(0, this.#after * patience - this.stepsAtZero);
  }

  /** @param expected acceptance of the first position, as believed */
  start(k: number, expected: number): void {
    this.stepsAtZero = 0;
    this.#open = { k, expected, hasSurprised: false, nSteps: 0, nDrafted: 0, nAccepted: 0 };
  }

  /** Drafts pay: when they no longer do, the first probe comes early again. */
  startAnew(): void {
    this.#after = this.#minSteps;
  }

  cancel(): void {
    this.#open = undefined;
  }

  /** One sequence's drafts of a probe. @returns true, once, when they say that what was believed is wrong */
  note(nAccepted: number): boolean {
    const probe = this.#open;
    if (probe === undefined) return false;
    probe.nDrafted++;
    if (nAccepted > 0) probe.nAccepted++;
    if (probe.hasSurprised || !isSurprising(probe)) return false;
    probe.hasSurprised = true;
    return true;
  }

  endStep(nDraft: number): void {
    this.stepsAtZero = nDraft === 0 ? this.stepsAtZero + 1 : 0;
  }

  /**
   * Before a step of a probe.
   * @param breakEven acceptance of the first position at which the drafts cost what they win
   * @param pays whether drafting wins by all that is believed now
   */
  goesOn(breakEven: number, pays: boolean, patience: number): boolean {
    const probe = this.#open as Probe;
    const { nDrafted, nAccepted } = probe;
    if (nDrafted === 0 && probe.nSteps++ < maxSilentSteps) return true;
    const isGood = nDrafted > 0 && nAccepted / nDrafted >= breakEven;
    if (isGood && !pays && nDrafted < maxDrafted) return true;
    this.#open = undefined;
    if (nDrafted === 0) this.stepsAtZero = Math.max(0, this.#after * patience - leadSteps);
    else this.#after = isGood && pays ? this.#minSteps : Math.min(this.#maxSteps, this.#after * 2);
    return false;
  }
}
