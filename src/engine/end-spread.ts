/**
 * What drafting costs where requests would otherwise end together.
 *
 * Requests of one token limit that began together end in one step if nothing is drafted: their slots are full until then,
 * and the prompts that follow are read in one forward. With drafts their steps differ by chance, so the last of n ends late
 * while slots stand idle or prompts come in pieces. Of steps that a request of L tokens needs with e tokens a step of
 * variance v, the standard deviation is sqrt(L v / e^3) (renewal theory), their mean L / e.
 */

/** Prompts in pieces come on top of idle slots: together 1.3 to 1.8 times the idle slots at 8 and 16 sequences of an H200 (docs/log.md). */
const piecesFactor = 1.5;

/** Which of the running requests would end together. */
export interface EndSpread {
  /** By how many standard deviations the last of those who end together ends late, averaged over all that run; 0 when none do. */
  readonly lateness: number;
  /** Tokens of each of the largest such set. */
  readonly nTokens: number;
}

export const noSpread: EndSpread = { lateness: 0, nTokens: 1 };

/**
 * Share of a batch's rate that is lost by ends that drift apart, 0 to 0.5.
 * @param expected tokens of a sequence in a step
 * @param variance of these tokens
 */
export function endLoss({ lateness, nTokens }: EndSpread, expected: number, variance: number): number {
  if (lateness === 0 || variance <= 0) return 0;
  return Math.min(0.5, piecesFactor * lateness * Math.sqrt(variance / (nTokens * expected)));
}

export interface RunningRequest {
  readonly maxTokens: number;
  /** The step that decoded it first; undefined before. */
  readonly firstStep: number | undefined;
}

/** @param lengthShare share of recent requests that ended by their limit, not by a stop */
export function spreadOf(running: readonly RunningRequest[], lengthShare: number): EndSpread {
  const groups = new Map<string, { nTokens: number; size: number }>();
  for (const { maxTokens, firstStep } of running) {
    const key = `${maxTokens} ${firstStep}`;
    const group = groups.get(key);
    if (group === undefined) groups.set(key, { nTokens: maxTokens, size: 1 });
    else group.size++;
  }
  let [lateness, nTokens, largest] = [0, 1, 0];
  for (const group of groups.values()) {
    lateness += (group.size / running.length) * meanOfLargest(group.size);
    if (group.size > largest) [largest, nTokens] = [group.size, group.nTokens];
  }
  return lateness === 0 ? noSpread : { lateness: lengthShare * lateness, nTokens };
}

/** Mean of the largest of n standard normal numbers; within 10% for n up to 100. */
function meanOfLargest(n: number): number {
  return 0.623 * Math.log2(n) ** 0.75;
}
