/**
 * The certificate: comparisons of modes with named references, and a sentence that says no more than they show. Equality
 * in n of n prompts is a rate with an interval, not a proof; and plain decoding in a batch is compared too, since it also
 * differs from plain decoding alone (kernels depend on the batch width).
 */
import { formatFixed, formatPercent } from "../util/format.ts";
import { type Comparison, summarizeForks } from "./compare.ts";

export interface CertificateRow extends ReturnType<typeof summarizeForks> {
  readonly mode: string;
  readonly reference: string;
  readonly prompts: number;
  readonly exact: number;
  readonly exactInterval: { readonly low: number; readonly high: number };
  readonly note: string | null;
}

export interface Certificate {
  readonly title: string;
  /** What the first reference is, in words. */
  readonly reference: string;
  readonly maxTokens: number;
  readonly rows: readonly CertificateRow[];
  readonly verdict: string;
}

export interface JudgedComparison {
  readonly comparison: Comparison;
  readonly note: string | null;
  /** Decodes without drafts: what it differs by is not speculation's doing. */
  readonly isPlain: boolean;
}

/** Above this margin a fork is no tie: rounding does not turn a token that is 20 percent likelier, and something else is wrong. */
export const tieMarginNats = 0.2;

export function certify(title: string, reference: string, maxTokens: number, judged: readonly JudgedComparison[]): Certificate {
  const rows = judged.map(({ comparison, note }): CertificateRow => {
    const { mode, reference: against, prompts, exact, exactInterval, forks } = comparison;
    return { mode, reference: against, prompts, exact, exactInterval, ...summarizeForks(forks), note };
  });
  return { title, reference, maxTokens, rows, verdict: verdictOf(rows, judged, maxTokens) };
}

function verdictOf(rows: readonly CertificateRow[], judged: readonly JudgedComparison[], maxTokens: number): string {
  const withPlain = rows.map((row, i) => ({ row, isPlain: judged[i]?.isPlain ?? false }));
  const equal = withPlain.filter(({ row }) => row.exact === row.prompts).map(({ row }) => row);
  const plainForks = withPlain.filter(({ row, isPlain }) => isPlain && row.exact < row.prompts).map(({ row }) => row);
  const draftForks = withPlain.filter(({ row, isPlain }) => !isPlain && row.exact < row.prompts).map(({ row }) => row);
  const sentences: string[] = [];
  if (equal.length > 0) {
    const least = equal.reduce((a, b) => (b.exactInterval.low < a.exactInterval.low ? b : a));
    sentences.push(`Equal in all ${least.prompts} prompts over at most ${maxTokens} tokens, ${byReference(equal, (r) => r.mode)}. That shows a rate of equal outputs of at least ${formatPercent(least.exactInterval.low, 1)} (95%), for these prompts on this machine; it is no proof.`);
  }
  if (draftForks.length > 0) sentences.push(`Different in some prompts, ${byReference(draftForks, differs)}.`);
  if (plainForks.length > 0) sentences.push(`Without any drafts, ${byReference(plainForks, differs)}: so much comes from batch width and kernels alone.`);
  const worst = Math.max(...rows.map((r) => r.marginMax ?? 0));
  if (rows.some((r) => r.marginMax !== null)) sentences.push(worst <= tieMarginNats ? `Every fork was a near tie: the reference preferred its own token by at most ${formatFixed(worst, 3)} nats.` : `Not every fork was a near tie: the reference preferred its own token by up to ${formatFixed(worst, 3)} nats, more than ${tieMarginNats}, which rounding at that token alone does not explain (differences also build up in recurrent states, and in a mixture of experts a router near a tie chooses otherwise).`);
  return sentences.join(" ");
}

/** "against plain alone: repeat, sequential K 3; against plain c4: K 2 c4" */
function byReference(rows: readonly CertificateRow[], say: (r: CertificateRow) => string): string {
  return [...new Set(rows.map((r) => r.reference))].map((reference) => `against ${reference}: ${rows.filter((r) => r.reference === reference).map(say).join(", ")}`).join("; ");
}

function differs(r: CertificateRow): string {
  return `${r.mode} in ${r.prompts - r.exact} of ${r.prompts}${r.firstForkMin === null ? "" : ` (first at token ${r.firstForkMin})`}`;
}
