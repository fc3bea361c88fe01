/**
 * From measured rows to what to run: for each concurrency a profile, by how much, how sure, at what memory; and for
 * every other profile why not. Pure, and stated in plain words that claim no more than the rows.
 */
import type { BenchRow, Choice, ProfileInfo, Recommendation } from "../report/model.ts";
import { formatFixed, formatPercent } from "../util/format.ts";

/** Profiles are named as in the rows. */
export interface RuleSet {
  /** Over the baseline, the ratio (or the lower end of its interval) must reach this to be chosen. */
  readonly minRatio: number;
  /** The margin that a ratio without an interval must reach. */
  readonly minRatioSingleRun: number;
  readonly maxFailed: number;
  readonly minAcceptance: number;
  /** Never a production choice, with the reason. */
  readonly development: Readonly<Record<string, string>>;
  /** Experiment -> the profile it wants to replace. */
  readonly refinements: Readonly<Record<string, string>>;
  /** Profiles whose correctness gate failed. */
  readonly incorrect: readonly string[];
  /** Matrix -> what a sentence calls it; default: its id. */
  readonly titles?: Readonly<Record<string, string>>;
}

export function recommend(rows: readonly BenchRow[], profiles: readonly ProfileInfo[], rules: RuleSet): Recommendation {
  const groups = groupBy(rows, (r) => `${r.matrix}\n${r.concurrency}`);
  const drafters = new Set(profiles.filter((p) => /--spec-type (?!none)/.test(p.commandLine ?? "") || rows.some((r) => r.profile === p.name && (r.nDrafted ?? 0) > 0)).map((p) => p.name));
  const byConcurrency = groups.map((group) => choose(group.map((row) => ({ row, canWin: isEligible(row, rules) && !(drafters.has(row.profile) && draftedForNothing(row, rules)) })), rules));
  const chosen = new Set(byConcurrency.map((c) => c.profile));
  const others = profiles.filter((p) => !chosen.has(p.name) && rows.some((r) => r.profile === p.name));
  const roles = others.flatMap((p) => roleOf(p.name, rules));
  const rejected = others.filter((p) => !roles.some((r) => r.profile === p.name)).map((p) => ({ profile: p.name, reason: rejection(p, rows, rules) }));
  return { byConcurrency, roles, rejected, sentences: sentencesFor(byConcurrency, rows, rules.titles ?? {}) };
}

const isEligible = (r: BenchRow, rules: RuleSet): boolean => rules.development[r.profile] === undefined && !(r.profile in rules.refinements) && !rules.incorrect.includes(r.profile) && r.failed <= rules.maxFailed * r.requests;

/** Hardly a draft, or hardly one accepted: such a server decodes like its baseline at best, and a difference is noise. */
function draftedForNothing(r: BenchRow, rules: RuleSet): boolean {
  if (r.nDrafts !== null && r.nDrafts < fewDrafts * r.outputTokens) return true;
  return r.acceptance !== null && r.acceptance < rules.minAcceptance;
}

/** Drafts over output tokens: below it drafts cannot have made a difference that rules look at. */
const fewDrafts = 0.1;

interface Candidate {
  readonly row: BenchRow;
  readonly canWin: boolean;
}

/** The baseline, unless something eligible beats it by the margin; of those the fastest. */
function choose(candidates: readonly Candidate[], rules: RuleSet): Choice {
  const group = candidates.map((c) => c.row);
  const plain = group.filter((r) => r.ratio === null);
  const eligible = candidates.filter((c) => c.canWin).map((c) => c.row);
  const baseline = fastest(plain.filter((r) => eligible.includes(r))) ?? fastest(plain) ?? group[0];
  if (baseline === undefined) throw new Error("a group of rows is never empty");
  const better = fastest(eligible.filter((r) => r.tokPerSec > baseline.tokPerSec && isSurelyBetter(r, baseline, rules)));
  const best = better ?? baseline;
  return {
    matrix: best.matrix,
    concurrency: best.concurrency,
    profile: best.profile,
    tokPerSec: best.tokPerSec,
    loadedMiB: best.loadedMiB,
    gain: best === baseline || best.ratio === null ? null : { ratio: best.ratio.median, low: best.ratio.low, high: best.ratio.high },
    confidence: best.ratio !== null && Number.isFinite(best.ratio.low) ? "interval" : group.some((r) => r.ratio !== null && Number.isFinite(r.ratio.low)) ? "interval" : "single run",
    because: best === baseline ? whyBaseline(eligible, baseline, rules) : `${ratioWords(best)} of ${best.ratio?.baseline ?? "the baseline"}`,
  };
}

/** Lower end of the interval where there is one, else the ratio itself against a wider margin; plain rivals are compared by throughput. */
function isSurelyBetter(r: BenchRow, baseline: BenchRow, rules: RuleSet): boolean {
  if (r.ratio === null) return r.tokPerSec >= rules.minRatioSingleRun * baseline.tokPerSec;
  return Number.isFinite(r.ratio.low) ? r.ratio.low >= rules.minRatio : r.ratio.median >= rules.minRatioSingleRun;
}

function whyBaseline(eligible: readonly BenchRow[], baseline: BenchRow, rules: RuleSet): string {
  const rival = fastest(eligible.filter((r) => r !== baseline && r.ratio !== null));
  if (rival === undefined) return "nothing else was measured that could take its place";
  const point = rival.ratio?.median ?? 0;
  if (point >= rules.minRatio) return `the best other, ${rival.profile}, is at ${ratioWords(rival)}, which is not surely a gain`;
  return `the best other, ${rival.profile}, is at ${ratioWords(rival)}`;
}

function roleOf(name: string, rules: RuleSet): { profile: string; role: string; reason: string }[] {
  const reason = rules.development[name];
  return reason === undefined ? [] : [{ profile: name, role: "development only", reason }];
}

function rejection(p: ProfileInfo, rows: readonly BenchRow[], rules: RuleSet): string {
  const own = rows.filter((r) => r.profile === p.name);
  if (rules.incorrect.includes(p.name)) return "It failed the correctness gate.";
  const failed = own.filter((r) => r.failed > rules.maxFailed * r.requests);
  if (failed.length > 0) return `${failed.reduce((sum, r) => sum + r.failed, 0)} of its requests failed.`;
  const replaced = rules.refinements[p.name];
  if (replaced !== undefined) return refinementVerdict(own, rows.filter((r) => r.profile === replaced), replaced, rules);
  const ratios = own.filter((r) => r.ratio !== null);
  if (ratios.length === 0) return `${rows.some((r) => r.ratio?.baseline === p.name) ? "The baseline" : "Another way without drafts"}: ${own.map((r) => `${formatFixed(r.tokPerSec, 1)} tok/s at c${r.concurrency}`).join(", ")}.`;
  const best = ratios.reduce((a, b) => ((b.ratio?.median ?? 0) > (a.ratio?.median ?? 0) ? b : a));
  const isUnsure = (best.ratio?.median ?? 0) >= rules.minRatio && (best.ratio?.low ?? 1) < rules.minRatio;
  return [`At best ${ratioWords(best)} of ${best.ratio?.baseline ?? "the baseline"} (c${best.concurrency})${isUnsure ? ", which is not surely a gain" : ""}.`, ...draftWords(own, rules), ...rivalWords(own, rows)].join(" ");
}

function draftWords(own: readonly BenchRow[], rules: RuleSet): string[] {
  const acceptance = pooledAcceptance(own);
  if (acceptance === undefined) return [];
  const nDrafts = own.reduce((sum, r) => sum + (r.nDrafts ?? NaN), 0);
  const nTokens = own.reduce((sum, r) => sum + r.outputTokens, 0);
  if (nDrafts < fewDrafts * nTokens) return [`It drafted in few steps (${nDrafts} for ${nTokens} tokens) and decoded plainly otherwise.`];
  return acceptance < rules.minAcceptance ? [`Its acceptance of ${formatPercent(acceptance)} cannot pay for the drafts.`] : [];
}

/** The fastest drafting profile of the same baseline and concurrency that also accepts more: it shows what this one lacks. */
/** Acceptance rates closer than this are not worth naming beside each other. */
const clearlyMore = 0.02;

function rivalWords(own: readonly BenchRow[], rows: readonly BenchRow[]): string[] {
  const acceptance = pooledAcceptance(own);
  if (acceptance === undefined) return [];
  const faster = own.flatMap((r) => rows.filter((o) => o.matrix === r.matrix && o.concurrency === r.concurrency && o.profile !== r.profile && o.ratio !== null && o.ratio.baseline === r.ratio?.baseline && o.tokPerSec > r.tokPerSec));
  const rival = fastest(faster.filter((o) => (pooledAcceptance(rows.filter((r) => r.profile === o.profile)) ?? 0) > acceptance + clearlyMore));
  if (rival === undefined) return [];
  return [`${rival.profile} is faster at c${rival.concurrency} and accepts ${formatPercent(pooledAcceptance(rows.filter((r) => r.profile === rival.profile)) ?? 0)} against ${formatPercent(acceptance)}.`];
}

function refinementVerdict(own: readonly BenchRow[], promoted: readonly BenchRow[], name: string, rules: RuleSet): string {
  const pairs = own.flatMap((r) => promoted.filter((p) => p.matrix === r.matrix && p.concurrency === r.concurrency).map((p) => ({ r, p })));
  if (pairs.length === 0) return `It was not measured beside ${name}.`;
  const isBetter = pairs.every(({ r, p }) => r.tokPerSec >= rules.minRatio * p.tokPerSec);
  const words = pairs.map(({ r, p }) => `${formatFixed(r.tokPerSec, 2)} against ${formatFixed(p.tokPerSec, 2)} tok/s${r.acceptance === null || p.acceptance === null ? "" : `, acceptance ${formatPercent(r.acceptance)} against ${formatPercent(p.acceptance)}`} at c${r.concurrency}`);
  return `${isBetter ? "Better than" : "No better than"} ${name}: ${words.join("; ")}.${isBetter ? " It can be promoted." : " Kept as an experiment."}`;
}

function pooledAcceptance(rows: readonly BenchRow[]): number | undefined {
  const drafted = rows.reduce((sum, r) => sum + (r.nDrafted ?? 0), 0);
  if (drafted > 0) return rows.reduce((sum, r) => sum + (r.nAccepted ?? 0), 0) / drafted;
  return rows.find((r) => r.acceptance !== null)?.acceptance ?? undefined;
}

/** "1.31x [1.28, 1.34]" or "0.48x (one run)". */
function ratioWords(r: BenchRow): string {
  if (r.ratio === null) return `${formatFixed(r.tokPerSec, 1)} tok/s`;
  const point = `${formatFixed(r.ratio.median, 2)}x`;
  return Number.isFinite(r.ratio.low) ? `${point} [${formatFixed(r.ratio.low, 2)}, ${formatFixed(r.ratio.high, 2)}]` : point;
}

function sentencesFor(choices: readonly Choice[], rows: readonly BenchRow[], titles: Readonly<Record<string, string>>): string[] {
  const sentences: string[] = [];
  for (const matrix of new Set(choices.map((c) => c.matrix))) {
    const own = choices.filter((c) => c.matrix === matrix).toSorted((a, b) => a.concurrency - b.concurrency);
    const prefix = new Set(choices.map((c) => c.matrix)).size > 1 ? `${titles[matrix] ?? capital(matrix)}: ` : "";
    sentences.push(prefix + runs(own).map(({ profile, at, gain }) => `at ${at} run **${profile}**${gain}`).join("; ").replace(/^./, (c) => (prefix === "" ? c.toUpperCase() : c)) + ".");
  }
  const drafting = rows.filter((r) => r.ratio !== null && (r.nDrafted ?? 0) > 0);
  if (drafting.length > 0) sentences.push(draftingSentence(drafting));
  if (choices.some((c) => c.confidence === "single run")) sentences.push("Each figure is one run without an interval: treat differences of a few percent as noise.");
  return sentences;
}

/** How often drafts paid, as far as the intervals tell. */
function draftingSentence(drafting: readonly BenchRow[]): string {
  const withInterval = drafting.filter((r) => Number.isFinite(r.ratio?.low));
  if (withInterval.length < drafting.length) {
    const nLosing = drafting.filter((r) => (r.ratio?.median ?? 1) < 1).length;
    return nLosing === 0 ? "Drafting was never slower than its baseline in these runs." : `Drafting was slower than its baseline in ${nLosing} of ${drafting.length} measurements that drafted.`;
  }
  const nSlower = drafting.filter((r) => (r.ratio?.high ?? 1) < 1).length;
  const nFaster = drafting.filter((r) => (r.ratio?.low ?? 1) > 1).length;
  // Each interval leaves out 2.5% at either end, and there are many of them.
  const nByChance = Math.round(0.025 * drafting.length);
  return `Of ${drafting.length} measurements that drafted, ${nSlower} were surely slower than their baseline, ${nFaster} surely faster, ${drafting.length - nSlower - nFaster} not told apart from it${nByChance === 0 ? "" : ` (by chance alone about ${nByChance} would look surely slower and as many surely faster)`}.`;
}

/** Neighbouring concurrencies with the same choice become one: "c4 to c16". */
function runs(choices: readonly Choice[]): { profile: string; at: string; gain: string }[] {
  const groups: Choice[][] = [];
  for (const c of choices) {
    const last = groups.at(-1);
    if (last?.[0]?.profile === c.profile) last.push(c);
    else groups.push([c]);
  }
  return groups.map((g) => {
    const [first, last] = [g[0] as Choice, g.at(-1) as Choice];
    const ratios = g.flatMap((c) => (c.gain === null ? [] : [`${formatFixed(c.gain.ratio, 2)}x`]));
    return { profile: first.profile, at: first === last ? `c${first.concurrency}` : `c${first.concurrency} to c${last.concurrency}`, gain: ratios.length === 0 ? "" : ` (${ratios.join(", ")} of its baseline)` };
  });
}

const capital = (text: string): string => text.replace(/^./, (c) => c.toUpperCase());

const fastest = (rows: readonly BenchRow[]): BenchRow | undefined => rows.toSorted((a, b) => b.tokPerSec - a.tokPerSec)[0];

function groupBy(rows: readonly BenchRow[], key: (r: BenchRow) => string): BenchRow[][] {
  const groups = new Map<string, BenchRow[]>();
  for (const r of rows) groups.set(key(r), [...(groups.get(key(r)) ?? []), r]);
  return [...groups.values()];
}
