/** A run as text for people. */
import { formatDuration, formatFixed, formatInteger, formatPercent } from "../util/format.ts";
import { type Table, renderText } from "../util/table.ts";
import { describeLimits } from "./options.ts";
import type { BenchResult } from "./run.ts";
import type { Distribution } from "./summarize.ts";

export function describeResult(result: BenchResult): string {
  const { summary, acceptance, drafts, client } = result;
  const failures = Object.entries(summary.failures).map(([kind, n]) => `${n} ${kind}`);
  const lines = [
    `${formatInteger(summary.requests)} requests, ${summary.failed} failed${failures.length > 0 ? ` (${failures.join(", ")})` : ""}, ${formatDuration(summary.wallMs)}`,
    `output ${formatFixed(summary.outputTokPerSec, 2)} tok/s (${formatInteger(summary.outputTokens)} tokens), with prompts ${formatFixed(summary.totalTokPerSec, 2)} tok/s, ${formatFixed(summary.requestsPerSec, 2)} requests/s`,
    `prompt tokens ${formatInteger(summary.promptTokens)}${summary.cachedTokens === undefined ? "" : `, from a cache ${formatInteger(summary.cachedTokens)}`}`,
  ];
  if (summary.goodput !== undefined) lines.push(`goodput ${formatFixed(summary.goodput.requestsPerSec, 2)} requests/s: ${summary.goodput.good} of ${summary.requests} within ${describeLimits(summary.goodput.limits)}`);
  if (drafts !== undefined && drafts.nDrafted > 0)
    lines.push(`drafts: ${formatInteger(drafts.nAccepted)} of ${formatInteger(drafts.nDrafted)} tokens accepted (${formatPercent(acceptance?.rate ?? 0)})${acceptance?.meanLength === undefined ? "" : `, mean length ${formatFixed(acceptance.meanLength, 2)}`}${acceptance === undefined || acceptance.byPosition.length === 0 ? "" : `, by position (${acceptance.byPosition.map((p) => formatFixed(p, 3)).join(", ")}) of all drafts`}`);
  lines.push(`client: event loop ${client.lagP99Ms} ms late at p99, ${formatFixed(client.cpuShare, 2)} cores`);
  return [...lines, "", renderText(latencyTable(result)), ...result.warnings.map((w) => `warning: ${w}`)].join("\n");
}

function latencyTable({ summary }: BenchResult): Table {
  const rows: [string, Distribution | undefined, number][] = [
    ["TTFT ms", summary.ttftMs, 1],
    ["TPOT ms", summary.tpotMs, 2],
    ["ITL ms", summary.itlMs, 2],
    ["tokens per chunk", summary.tokensPerChunk, 2],
    ["E2EL ms", summary.e2elMs, 1],
    ["queue ms (server)", summary.queueMs, 1],
    ["prefill ms (server)", summary.prefillMs, 1],
    ["decode ms (server)", summary.decodeMs, 1],
    ["send delay ms", summary.sendDelayMs, 1],
  ];
  return {
    columns: [{ title: "" }, ...["mean", "p50", "p90", "p95", "p99", "max"].map((title) => ({ title, align: "right" as const }))],
    rows: rows.flatMap(([name, d, decimals]) => (d === undefined ? [] : [[name, ...[d.mean, d.p50, d.p90, d.p95, d.p99, d.max].map((v) => formatFixed(v, decimals))]])),
  };
}
