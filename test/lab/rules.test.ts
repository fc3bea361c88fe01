import { describe, expect, test } from "vitest";
import { recommend, type RuleSet } from "../../src/lab/rules.ts";
import { bootstrapReport, names, row, trainedReport } from "../report/seeds.ts";
import type { ProfileInfo } from "../../src/report/model.ts";

const rules: RuleSet = { minRatio: 1.02, minRatioSingleRun: 1.1, maxFailed: 0, minAcceptance: 0.3, development: {}, refinements: {}, incorrect: [] };

describe("the reports' own numbers give the reports' own conclusions", () => {
  test("bootstrap: target only everywhere, and the untrained head's acceptance cannot pay", () => {
    const { byConcurrency, rejected, sentences } = recommend(bootstrapReport.rows, bootstrapReport.profiles, rules);
    expect(byConcurrency.map((c) => [c.concurrency, c.profile, c.gain])).toEqual([1, 4, 8, 16].map((c) => [c, "IQ4_XS target only", null]));
    expect(rejected.map((r) => r.profile)).toEqual(["IQ4_XS + BF16 MTP draft, n_max=3", "IQ4_XS + BF16 MTP draft, n_max=1", "IQ4_XS + IQ4_XS MTP draft, n_max=1"]);
    expect(rejected[0]?.reason).toContain("At best 0.41x of IQ4_XS target only (c1). Its acceptance of 0.47% cannot pay for the drafts.");
    expect(sentences[0]).toBe("At c1 to c16 run **IQ4_XS target only**.");
  });

  test("trained: the integrated graft at c1, IQ4_XS target only at c4 to c16, the Q6_K draft for development, h2r10prefix and n_max 3 rejected", () => {
    // The report compares across its sections: one group of rows per concurrency.
    const rows = trainedReport.rows.map((r) => ({ ...r, matrix: "all" }));
    const result = recommend(rows, trainedReport.profiles, {
      ...rules,
      development: { [names.perHead]: "The best drafts, slower than its baseline at every concurrency.", [names.sequential]: "Exact, for regression tests." },
      refinements: Object.fromEntries([250, 500, 1000].map((step) => [names.h2r10(step), names.perHead])),
    });
    expect(result.byConcurrency.map((c) => [c.concurrency, c.profile])).toEqual([
      [1, names.graft],
      [4, names.t],
      [8, names.t],
      [16, names.t],
    ]);
    expect(result.byConcurrency[0]).toMatchObject({ confidence: "single run", because: `1.30x of ${names.graftTarget}` });
    expect(result.byConcurrency[0]?.gain?.ratio).toBeCloseTo(1.304, 3);
    expect(result.sentences[0]).toBe(`At c1 run **${names.graft}** (1.30x of its baseline); at c4 to c16 run **${names.t}**.`);
    expect(result.roles).toContainEqual({ profile: names.perHead, role: "development only", reason: "The best drafts, slower than its baseline at every concurrency." });
    const reasonFor = (profile: string): string | undefined => result.rejected.find((r) => r.profile === profile)?.reason;
    expect(reasonFor(names.h2r10(1000))).toBe(`No better than ${names.perHead}: 284.00 against 288.67 tok/s, acceptance 65.79% against 67.19% at c16. Kept as an experiment.`);
    expect(reasonFor(names.q6n3)).toContain("At best 0.45x");
    expect(reasonFor(names.q6n3)).toMatch(/is faster at c(1|16) and accepts [\d.]+% against 58.54%/);
    expect(result.sentences).toContain("Drafting was slower than its baseline in 12 of 12 measurements that drafted.");
  });
});

describe("rules", () => {
  const info = (name: string): ProfileInfo => ({ name, note: null, commandLine: null, estimatedMiB: null, addedMiB: null, loadedMiB: null, isSynthetic: false, baseline: name === "plain" ? null : "plain" });
  const withRatio = (profile: string, tps: number, median: number, low: number, high: number): ReturnType<typeof row> => ({ ...row("m", profile, 4, tps, { drafted: 100, accepted: 80, by: [0.8] }), ratio: { baseline: "plain", median, low, high } });
  const plain = row("m", "plain", 4, 100);

  test("an interval must lie above the margin as a whole", () => {
    const noisy = recommend([plain, withRatio("mtp", 130, 1.3, 0.9, 1.7)], [info("plain"), info("mtp")], rules);
    expect(noisy.byConcurrency[0]).toMatchObject({ profile: "plain", gain: null, because: "the best other, mtp, is at 1.30x [0.90, 1.70], which is not surely a gain" });
    const sure = recommend([plain, withRatio("mtp", 130, 1.3, 1.2, 1.4)], [info("plain"), info("mtp")], rules);
    expect(sure.byConcurrency[0]).toMatchObject({ profile: "mtp", confidence: "interval", gain: { ratio: 1.3, low: 1.2, high: 1.4 } });
  });

  test("one run needs a wider margin", () => {
    const choice = (tps: number): string | undefined => recommend([plain, row("m", "mtp", 4, tps, { baseline: ["plain", 100] })], [info("plain"), info("mtp")], rules).byConcurrency[0]?.profile;
    expect(choice(108)).toBe("plain");
    expect(choice(112)).toBe("mtp");
  });

  test("what fails its gate or its requests, or is for development, is never chosen however fast", () => {
    const fast = withRatio("mtp", 300, 3, 2.9, 3.1);
    const profiles = [info("plain"), info("mtp")];
    expect(recommend([plain, fast], profiles, { ...rules, incorrect: ["mtp"] })).toMatchObject({ byConcurrency: [{ profile: "plain" }], rejected: [{ profile: "mtp", reason: "It failed the correctness gate." }] });
    expect(recommend([plain, { ...fast, failed: 1 }], profiles, rules)).toMatchObject({ byConcurrency: [{ profile: "plain" }], rejected: [{ profile: "mtp", reason: "1 of its requests failed." }] });
    expect(recommend([plain, fast], profiles, { ...rules, development: { mtp: "not yet" } })).toMatchObject({ byConcurrency: [{ profile: "plain" }], rejected: [], roles: [{ profile: "mtp", role: "development only" }] });
  });

  test("several matrices are told apart by their titles, a matrix without one by its id", () => {
    const { sentences } = recommend([plain, { ...plain, matrix: "n" }], [info("plain")], { ...rules, titles: { m: "Integrated graft, c1 check" } });
    expect(sentences.slice(0, 2)).toEqual(["Integrated graft, c1 check: at c4 run **plain**.", "N: at c4 run **plain**."]);
  });

  test("a server that hardly drafts, or whose drafts are hardly accepted, is not chosen for its noise", () => {
    const lucky = { ...withRatio("gate", 140, 1.4, 1.3, 1.5), outputTokens: 1000 };
    const choice = (more: Partial<typeof lucky>, commandLine: string | null = null): string | undefined => recommend([plain, { ...lucky, ...more }], [info("plain"), { ...info("gate"), commandLine }], rules).byConcurrency[0]?.profile;
    expect(choice({ nDrafts: 500, nDrafted: 1000, acceptance: 0.7 })).toBe("gate");
    expect(choice({ nDrafts: 50, nDrafted: 100, acceptance: 0.7 })).toBe("plain");
    expect(choice({ nDrafts: 500, nDrafted: 1000, acceptance: 0.01 })).toBe("plain");
    expect(choice({ nDrafts: 0, nDrafted: 0, acceptance: null }, "foretoken serve --spec-type draft-mtp")).toBe("plain");
    // Another way without drafts, such as another quant, can win.
    expect(choice({ nDrafts: 0, nDrafted: 0, acceptance: null }, "foretoken serve --spec-type none")).toBe("gate");
  });

  test("a refinement that is better can be promoted, but is not chosen by itself", () => {
    const { byConcurrency, rejected } = recommend([plain, withRatio("old", 120, 1.2, 1.15, 1.25), withRatio("new", 150, 1.5, 1.45, 1.55)], [info("plain"), info("old"), info("new")], { ...rules, refinements: { new: "old" } });
    expect(byConcurrency[0]?.profile).toBe("old");
    const verdict = rejected.find((r) => r.profile === "new")?.reason;
    expect(verdict).toContain("Better than old: 150.00 against 120.00 tok/s");
    expect(verdict).toContain("It can be promoted.");
  });
});
