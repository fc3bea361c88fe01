/**
 * What the gate believes about acceptance: conditional rates by position from recent steps, with forgetting.
 *
 * Counts decay per step, so that a window counts in steps at any concurrency; positions that a step did not draft decay
 * more slowly, so that old bad news does not last for ever. Where nothing is drafted at all a few drafts' weight is kept:
 * a probe can overrule it, but time alone does not turn a bad head into a promising one. A position nobody drafted lately
 * borrows the conditional rate of the position before it. Conditional rates are kept because they do not depend on the draft
 * length in use; unconditional rates, which the cost model needs, are their running product.
 */

/** What is left of old news while nothing is drafted. */
const keptDrafts = 4;

export class AcceptanceEstimate {
  readonly #accepted: Float64Array;
  readonly #reached: Float64Array;
  readonly #decay: number;
  readonly #idleDecay: number;
  readonly #prior: number;
  readonly #priorWeight: number;
  /** Answers by position and by length, until a count changes: the gate asks a dozen times a step. */
  readonly #conditional: Float64Array;
  readonly #expected: Float64Array;
  readonly #variance: Float64Array;
  #isStale = true;

  constructor(nMax: number, { windowSteps = 64, idleWindowSteps = 512, prior = 0.8, priorWeight = 1 } = {}) {
    this.#accepted = new Float64Array(nMax);
    this.#reached = new Float64Array(nMax);
    this.#conditional = new Float64Array(nMax);
    this.#expected = new Float64Array(nMax + 1).fill(1);
    this.#variance = new Float64Array(nMax + 1);
    this.#decay = 1 - 1 / windowSteps;
    this.#idleDecay = 1 - 1 / idleWindowSteps;
    this.#prior = prior;
    this.#priorWeight = priorWeight;
  }

  /** One verified draft of `nDraft` tokens. Hot: allocates nothing. */
  note(nDraft: number, nAccepted: number): void {
    this.#isStale = true;
    for (let i = 0; i < nDraft && i <= nAccepted; i++) {
      this.#reached[i] = (this.#reached[i] as number) + 1;
      if (i < nAccepted) this.#accepted[i] = (this.#accepted[i] as number) + 1;
    }
  }

  /** Ends a step that drafted `nDraft` positions. */
  endStep(nDraft: number): void {
    for (let i = 0; i < this.#reached.length; i++) {
      if (i < nDraft) this.#scale(i, this.#decay);
      else if (nDraft > 0 || (this.#reached[i] as number) > keptDrafts) this.#scale(i, this.#idleDecay);
    }
  }

  /** Reduces what is known to the weight of at most `nDrafts` drafts, so that a probe can overrule it. */
  weakenTo(nDrafts: number): void {
    for (let i = 0; i < this.#reached.length; i++) {
      const reached = this.#reached[i] as number;
      if (reached > nDrafts) this.#scale(i, nDrafts / reached);
    }
  }

  /** P(position i accepted | positions before it accepted). */
  conditional(i: number): number {
    if (this.#isStale) this.#answer();
    return this.#conditional[i] as number;
  }

  /** Expected tokens of one sequence in a step of draft length k: 1 + the sum of the unconditional rates. */
  expectedTokens(k: number): number {
    if (this.#isStale) this.#answer();
    return this.#expected[k] as number;
  }

  /** Variance of the tokens of one sequence in a step of draft length k. */
  tokenVariance(k: number): number {
    if (this.#isStale) this.#answer();
    return this.#variance[k] as number;
  }

  #answer(): void {
    let before = this.#prior;
    let reach = 1;
    let meanSquare = 1;
    for (let i = 0; i < this.#conditional.length; i++) {
      before = ((this.#accepted[i] as number) + before * this.#priorWeight) / ((this.#reached[i] as number) + this.#priorWeight);
      this.#conditional[i] = before;
      reach *= before;
      const expected = (this.#expected[i] as number) + reach;
      // One token more with chance `reach`: (i + 2)^2 instead of (i + 1)^2.
      meanSquare += (2 * i + 3) * reach;
      this.#expected[i + 1] = expected;
      this.#variance[i + 1] = meanSquare - expected * expected;
    }
    this.#isStale = false;
  }

  #scale(i: number, factor: number): void {
    this.#isStale = true;
    this.#reached[i] = (this.#reached[i] as number) * factor;
    this.#accepted[i] = (this.#accepted[i] as number) * factor;
  }
}
