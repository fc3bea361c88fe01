/**
 * The two lab reports' own numbers as data (2026-06-27, one RTX PRO 6000 Blackwell Max-Q, patched llama.cpp): the tables
 * and the rules are tried on them. Nothing here was measured by this project.
 */
import type { Artifact, BenchRow, CheckRow, Determinism, ProfileInfo, ReportData, ShapeRow } from "../../src/report/model.ts";
import { wilsonInterval } from "../../src/util/stats.ts";

export interface RowFields {
  requests?: number;
  tokens?: number;
  p95?: number | null;
  drafted?: number;
  accepted?: number;
  by?: readonly number[];
  mean?: number;
  acceptance?: number;
  mib?: number;
  baseline?: readonly [name: string, tokPerSec: number];
  maxTokens?: number;
}

export function row(matrix: string, profile: string, concurrency: number, tokPerSec: number, f: RowFields = {}): BenchRow {
  const ratio = f.baseline === undefined ? null : { baseline: f.baseline[0], median: tokPerSec / f.baseline[1], low: NaN, high: NaN };
  const acceptance = f.acceptance ?? (f.drafted === undefined || f.accepted === undefined ? null : f.accepted / f.drafted);
  return {
    matrix,
    profile,
    concurrency,
    rounds: 1,
    maxTokens: f.maxTokens ?? 128,
    ratePerSec: null,
    isStreamed: true,
    requests: f.requests ?? 128,
    failed: 0,
    promptTokens: 0,
    cachedTokens: null,
    outputTokens: f.tokens ?? 0,
    tokPerSec,
    tokPerSecInterval: null,
    ttftP50Ms: null,
    ttftP95Ms: f.p95 ?? null,
    tpotP50Ms: null,
    e2elP50Ms: null,
    tokensPerChunk: null,
    goodput: null,
    queueP50Ms: null,
    prefillP50Ms: null,
    nDrafts: f.drafted === undefined || f.by === undefined ? null : Math.round(f.drafted / f.by.length),
    nDrafted: f.drafted ?? null,
    nAccepted: f.accepted ?? null,
    acceptance,
    acceptanceByPosition: f.by ?? [],
    acceptedAt: (f.by ?? []).map((rate) => Math.round((rate * (f.drafted ?? 0)) / (f.by?.length ?? 1))),
    reachedAt: (f.by ?? []).map((_, i) => Math.round(((i === 0 ? 1 : (f.by?.[i - 1] ?? 0)) * (f.drafted ?? 0)) / (f.by?.length ?? 1))),
    meanAcceptanceLength: f.mean ?? (f.by === undefined ? null : 1 + f.by.reduce((a, b) => a + b, 0)),
    loadedMiB: f.mib ?? null,
    ratio,
    ttftQuantilesMs: [],
    phases: [],
    clientLagP99Ms: null,
    clientCores: null,
    warnings: [],
    raw: [],
  };
}

const conditions = { date: "2026-06-27T00:00:00.000Z", version: "0.0.0", commit: null, machine: "one RTX PRO 6000 Blackwell Max-Q 96GB, tp=1", node: "n/a", library: "patched local build", device: "RTX PRO 6000 Blackwell Max-Q", seed: null };

const profile = (name: string, loadedMiB: number | null, baseline: string | null = null, note: string | null = null): ProfileInfo => ({ name, note, commandLine: null, estimatedMiB: null, addedMiB: null, loadedMiB, isSynthetic: false, baseline });

const artifact = (label: string, file: string, role: string, type: string, sizeBytes: number, more: Partial<Artifact> = {}): Artifact => ({ label, file, role, type, sizeBytes, sha256: "", bitsPerWeight: null, sourceMiB: null, sourceBitsPerWeight: null, resultMiB: null, made: null, note: null, ...more });

const empty = { about: null, costs: [], training: [], extra: [], metadata: [], recommendation: null, sections: [], steps: [], rawFiles: [], determinism: [], shapes: [] };

const target = "IQ4_XS target only";
const throughput: readonly [string, number, readonly (readonly [number, number])[]][] = [
  [target, 19_806, [[234.1, 75.1], [297.7, 159.7], [411.5, 330.2], [476.0, 541.5]]],
  ["IQ4_XS + BF16 MTP draft, n_max=3", 25_724, [[95.5, 84.3], [97.0, 179.2], [102.1, 408.1], [108.2, 726.8]]],
  ["IQ4_XS + BF16 MTP draft, n_max=1", 23_580, [[153.6, 81.9], [147.2, 168.4], [154.3, 390.7], [159.5, 701.3]]],
  ["IQ4_XS + IQ4_XS MTP draft, n_max=1", 21_832, [[155.1, 82.8], [151.6, 213.9], [155.8, 377.8], [162.7, 670.9]]],
];
/** Accepted and generated draft tokens over all concurrencies of a profile. */
const drafts: Readonly<Record<string, readonly [number, number]>> = {
  "IQ4_XS + BF16 MTP draft, n_max=3": [195, 41_577],
  "IQ4_XS + BF16 MTP draft, n_max=1": [151, 14_060],
  "IQ4_XS + IQ4_XS MTP draft, n_max=1": [172, 14_215],
};
const levels = [1, 4, 8, 16];
const targetTokPerSec = [234.1, 297.7, 411.5, 476.0];

const gate: readonly CheckRow[] = throughput.flatMap(([name]) =>
  ["/v1/models listed the served alias", "/v1/chat/completions returned coherent code", "/v1/completions returned coherent text", "output matched `def add(` and `return a + b`"].map((check) => ({ profile: name, name: check, ok: true, detail: "" })),
);

export const bootstrapReport: ReportData = {
  ...empty,
  recipe: "bootstrap",
  title: "Ornith-1.0-35B IQ4_XS Bootstrap MTP Profile",
  conditions,
  profiles: throughput.map(([name, mib]) => profile(name, mib, name === target ? null : target)),
  rows: throughput.flatMap(([name, mib, cells]) =>
    cells.map(([tps, p95], i) => {
      const [accepted, drafted] = drafts[name] ?? [];
      // The report gives one count per profile: it is entered at c1.
      const counts = i === 0 && accepted !== undefined && drafted !== undefined ? { accepted, drafted } : {};
      return row("all", name, levels[i] as number, tps, { p95, mib, maxTokens: 256, ...counts, ...(name === target ? {} : { baseline: [target, targetTokPerSec[i] as number] as const }) });
    }),
  ),
  artifacts: [
    artifact("Target", "ornith-1.0-35b-IQ4_XS.gguf", "target", "IQ4_XS", 18_939_311_680),
    artifact("Bootstrap draft", "ornith-1.0-35b-mtp-bootstrap-layer39-bf16.gguf", "head", "BF16", 3_735_537_248),
    artifact("Bootstrap draft", "ornith-1.0-35b-mtp-bootstrap-layer39-IQ4_XS.gguf", "head", "IQ4_XS", 1_149_036_128, { sourceMiB: 3552.05, sourceBitsPerWeight: 16, resultMiB: 1085.37, bitsPerWeight: 4.89 }),
  ],
  correctness: gate,
};

const t = "IQ4_XS target only, matched c16/128, `CACHE_RAM=0`";
const perHead = "IQ4_XS + Q6_K trained MTP draft, `n_max=2`, per-head contexts";
const sequential = "IQ4_XS + Q6_K trained MTP draft, `n_max=2`, efficient sequential target verification";
const q6n2 = "IQ4_XS + Q6_K trained MTP draft, `n_max=2`";
const q6n3 = "IQ4_XS + Q6_K trained MTP draft, `n_max=3`";
const h2r10 = (step: number): string => `IQ4_XS + Q6_K h2r10prefix head-1 refinement, step ${step}, \`n_max=2\`, per-head contexts`;
const against = ["IQ4_XS target only, matched c16/128, `CACHE_RAM=0`", 595.89] as const;
const gib = (value: number): number => Math.round(value * 1024);

const main: readonly BenchRow[] = [
  ...[[1, 239.91], [4, 431.95], [8, 470.81]].map(([c, tps]) => row("trained head", t, c as number, tps as number, { mib: gib(19.34), maxTokens: 256 })),
  ...[[1, 235.99, 239.91], [4, 245.28, 431.95], [8, 247.82, 470.81]].map(([c, tps, base]) => row("trained head", perHead, c as number, tps as number, { mib: gib(25.5), baseline: [t, base as number], maxTokens: 256 })),
  ...[[1, 192.48, 239.91], [4, 165.63, 431.95], [8, 167.47, 470.81]].map(([c, tps, base]) => row("trained head", sequential, c as number, tps as number, { mib: gib(24.4), baseline: [t, base as number], maxTokens: 256 })),
  row("trained head", t, 16, 595.89, { tokens: 15_742, p95: 494.5, mib: gib(19.34) }),
  row("trained head", "IQ4_XS target only, matched c16/128, default cache", 16, 586.57, { tokens: 15_745, p95: 484.8, mib: gib(19.34), baseline: against }),
  row("trained head", perHead, 16, 288.67, { tokens: 15_656, p95: 845.1, drafted: 13_269, accepted: 8915, by: [0.718, 0.621], mib: gib(25.5), baseline: against }),
  row("trained head", `${perHead}, non-batched deferred replay`, 16, 275.89, { tokens: 15_656, p95: 530.4, drafted: 13_435, accepted: 8832, by: [0.701, 0.61], mib: gib(25.5), baseline: against }),
  // oxlint-disable-next-line approx-constant -- a reported rate, not ln 2
  row("trained head", h2r10(250), 16, 284.62, { tokens: 15_656, p95: 540.2, drafted: 13_341, accepted: 8793, by: [0.693, 0.621], mib: gib(29.1), baseline: against }),
  row("trained head", h2r10(500), 16, 283.74, { tokens: 15_656, p95: 537.6, drafted: 13_351, accepted: 8788, by: [0.692, 0.62], mib: gib(29.1), baseline: against }),
  row("trained head", h2r10(1000), 16, 284.0, { tokens: 15_656, p95: 567.3, drafted: 13_355, accepted: 8786, by: [0.692, 0.62], mib: gib(29.1), baseline: against }),
  row("trained head", sequential, 16, 169.24, { tokens: 15_782, p95: 813.2, drafted: 14_001, accepted: 8612, by: [0.683, 0.54], mib: gib(24.4), baseline: against }),
  row("trained head", q6n2, 16, 286.77, { tokens: 15_656, p95: 847.5, drafted: 13_265, accepted: 8917, by: [0.719, 0.621], mib: gib(22.44), baseline: against }),
  row("trained head", "IQ4_XS + Q5_K_M trained MTP draft, `n_max=2`", 16, 285.32, { tokens: 15_656, p95: 834.1, drafted: 13_335, accepted: 8882, by: [0.715, 0.613], mib: gib(22.16), baseline: against }),
  row("trained head", "IQ4_XS + IQ4_XS trained MTP draft, `n_max=2`", 16, 265.06, { tokens: 15_656, p95: 821.4, drafted: 14_317, accepted: 8475, by: [0.64, 0.541], mib: gib(21.53), baseline: against }),
  row("trained head", "IQ4_XS + Q6_K trained MTP draft, `n_max=1`", 16, 262.76, { tokens: 15_782, p95: 801.9, drafted: 9286, accepted: 6326, by: [0.681], mib: gib(22.44), baseline: against }),
  row("trained head", "IQ4_XS + Q6_K trained MTP draft, `n_max=2`, batched deferred replay", 16, 282.51, { tokens: 15_656, p95: 808.0, drafted: 13_279, accepted: 8910, by: [0.718, 0.62], mib: gib(22.44), baseline: against }),
  row("trained head", q6n3, 16, 270.19, { tokens: 15_572, p95: 845.3, drafted: 16_905, accepted: 9896, by: [0.708, 0.644, 0.39], mib: gib(22.44), baseline: against }),
];

const graftTarget = "Integrated IQ4_XS-MTP graft, no MTP";
const graft = "Integrated IQ4_XS-MTP graft, native `draft-mtp`, `n_max=2`";
const integrated: readonly BenchRow[] = [
  row("integrated graft", graftTarget, 1, 240.6, { requests: 24, tokens: 4312, p95: 46.0, maxTokens: 256 }),
  row("integrated graft", graft, 1, 313.8, { requests: 24, tokens: 4312, p95: 54.0, baseline: [graftTarget, 240.6], maxTokens: 256 }),
  row("integrated graft", graftTarget, 16, 575.43, { tokens: 15_811, p95: 507.3 }),
  row("integrated graft", graft, 16, 337.4, { tokens: 16_195, p95: 818.1, by: [0.934, 0.831], mean: 2.77, baseline: [graftTarget, 575.43] }),
];

const external: readonly BenchRow[] = [
  row("external graft", "wang-yang Q6_K-MTP GGUF, no MTP", 16, 550.29, { tokens: 15_780, p95: 517.0 }),
  row("external graft", "wang-yang Q6_K-MTP GGUF, native `draft-mtp`, `n_max=1`", 16, 257.74, { tokens: 15_782, p95: 868.5, acceptance: 0.9067, mean: 1.91, baseline: ["wang-yang Q6_K-MTP GGUF, no MTP", 550.29] }),
];

const shape = (name: string, tps: number, calls: number | null, rows: number | null, logits: number | null, text: string): ShapeRow => ({ profile: name, requests: 16, outputTokens: 512, tokPerSec: tps, decodeCalls: calls, forwards: null, rows, logitRows: logits, shape: text });

const probe = (mode: string, exact: number, note: string): Determinism["rows"][number] => ({ mode, reference: "target only, temperature 0", prompts: 3, exact, exactInterval: wilsonInterval(exact, 3), firstForkMin: null, firstForkMedian: null, marginMedian: null, marginMax: null, note });

const rows = [...main, ...integrated, ...external];
export const trainedReport: ReportData = {
  ...empty,
  recipe: "trained",
  title: "Ornith-1.0-35B IQ4_XS Trained MTP Profile",
  conditions,
  rows,
  profiles: [...new Set(rows.map((r) => r.profile))].map((name) => profile(name, rows.find((r) => r.profile === name && r.loadedMiB !== null)?.loadedMiB ?? null, rows.find((r) => r.profile === name && r.ratio !== null)?.ratio?.baseline ?? null)),
  artifacts: [
    artifact("h2r9 trained draft", "h2r9-Q6_K.gguf", "head", "Q6_K", 3.4e9, { sourceMiB: 8388.17, sourceBitsPerWeight: 16.01 }),
    artifact("h2r9 trained draft", "h2r9-Q5_K_M.gguf", "head", "Q5_K_M", 3.1e9, { sourceMiB: 8388.17, sourceBitsPerWeight: 16.01, resultMiB: 3090.01, bitsPerWeight: 5.9 }),
    artifact("h2r9 trained draft", "h2r9-IQ4_XS.gguf", "head", "IQ4_XS", 2.4e9, { sourceMiB: 8388.17, sourceBitsPerWeight: 16.01, resultMiB: 2374.93, bitsPerWeight: 4.53 }),
    artifact("integrated graft", "ornith-1.0-35b-IQ4_XS-MTP-graft-headQ6.gguf", "integrated", "IQ4_XS", 19_621_846_220, { sourceMiB: 27_844.13, sourceBitsPerWeight: 6.58, resultMiB: 18_712.85, bitsPerWeight: 4.42 }),
  ],
  correctness: [],
  shapes: [
    shape("Target-only integrated graft", 389.09, 34, 931, 512, "`16 seq x 1 row`"),
    shape("`draft-mtp n_max=2`, default verifier", 218.37, 17, 1050, 631, "`16 seq x 3 rows`"),
    shape("`draft-mtp n_max=2`, experimental batched-depth verifier", 159.21, null, null, null, "opt-in split by draft depth"),
  ],
  determinism: [
    {
      title: "Deterministic output probe",
      reference: "target only, temperature 0",
      maxTokens: 256,
      verdict: "Three prompts.",
      rows: [
        probe("Target-only repeat", 3, "the baseline is stable across server restarts"),
        probe("Q6_K MTP, `n_max=2`, per-head contexts", 1, ""),
        probe("Q6_K MTP, `n_max=2`, standard contexts", 1, ""),
        probe("Q6_K MTP, `n_max=1`", 1, ""),
        probe("Q6_K MTP, `n_max=2`, flash-attn off", 1, ""),
        probe("Q6_K MTP, `n_max=2`, sequential verification", 3, ""),
      ],
    },
  ],
};

export const names = { target, t, perHead, sequential, q6n2, q6n3, h2r10, graft, graftTarget };
