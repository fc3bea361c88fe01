import { describe, expect, test } from "vitest";
import { acceptanceOf, countsBetween, draftCounts, parsePrometheus } from "../../src/bench/counters.ts";

const text = (prefix: string, drafts: number, drafted: number, accepted: readonly number[]): string =>
  [
    `# HELP ${prefix}spec_decode_num_drafts_total drafts`,
    `# TYPE ${prefix}spec_decode_num_drafts_total counter`,
    `${prefix}spec_decode_num_drafts_total{model_name="m"} ${drafts}`,
    `${prefix}spec_decode_num_draft_tokens_total{model_name="m"} ${drafted}`,
    `${prefix}spec_decode_num_accepted_tokens_total{model_name="m"} ${accepted.reduce((a, b) => a + b, 0)}`,
    ...accepted.map((n, i) => `${prefix}spec_decode_num_accepted_tokens_per_pos_total{model_name="m",position="${i}"} ${n}`),
    "other_total 5 1700000000",
  ].join("\n");

describe("draft counters", () => {
  test.each(["llamacpp:", "vllm:", "foretoken_"])("%s names are read, and a run is a difference", (prefix) => {
    const before = draftCounts(text(prefix, 10, 20, [5, 1]));
    const counts = countsBetween(before, draftCounts(text(prefix, 110, 220, [79, 63])));
    expect(counts).toEqual({ nDrafts: 100, nDrafted: 200, nAccepted: 136, acceptedAt: [74, 62], reachedAt: [], source: "metrics" });
    if (counts === undefined) return;
    const acceptance = acceptanceOf(counts);
    expect(acceptance.rate).toBeCloseTo(0.68, 9);
    expect(acceptance.meanLength).toBeCloseTo(2.36, 9);
    expect(acceptance.byPosition).toEqual([0.74, 0.62]);
    expect(acceptance.conditional).toEqual([0.74, 62 / 74]);
  });

  test("a server that was restarted in between counts from zero; one without counters has none", () => {
    const after = draftCounts(text("llamacpp:", 3, 6, [2, 1]));
    expect(countsBetween(draftCounts(text("llamacpp:", 10, 20, [5, 1])), after)).toEqual(after);
    expect(draftCounts("process_cpu_seconds_total 3\n")).toBeUndefined();
  });

  test("labels may hold any text", () => {
    expect(parsePrometheus('a{x="1,}\\"",y="2"} 3e2\n# a 4\nbad line\nb NaN')).toEqual([{ name: "a", labels: { x: '1,}\\"', y: "2" }, value: 300 }]);
  });
});
