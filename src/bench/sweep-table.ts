/** A sweep as one table: a row per server, three columns per concurrency. */
import { formatFixed, formatPercent } from "../util/format.ts";
import type { Column, Table } from "../util/table.ts";
import type { Estimate, SweepRow } from "./paired.ts";

export function sweepTable(rows: readonly SweepRow[]): Table {
  const concurrencies = [...new Set(rows.map((r) => r.concurrency))].sort((a, b) => a - b);
  const servers = [...new Set(rows.map((r) => r.server))];
  const hasRatio = rows.some((r) => r.ratio !== undefined);
  const hasGoodput = rows.some((r) => r.goodputPerSec !== undefined);
  const columns: Column[] = [{ title: "server" }];
  for (const c of concurrencies) {
    columns.push({ title: `c${c} tok/s`, align: "right" });
    if (hasRatio) columns.push({ title: "ratio", align: "right" });
    columns.push({ title: "p95 TTFT ms", align: "right" });
    if (hasGoodput) columns.push({ title: "goodput/s", align: "right" });
  }
  columns.push({ title: "acceptance", align: "right" }, { title: "failed", align: "right" });
  return {
    columns,
    rows: servers.map((server) => {
      const own = rows.filter((r) => r.server === server);
      const cells = concurrencies.flatMap((c) => {
        const row = own.find((r) => r.concurrency === c);
        return [row === undefined ? "" : formatFixed(row.tokPerSec.median, 1), ...(hasRatio ? [formatRatio(row?.ratio)] : []), row?.ttftP95Ms === undefined ? "" : formatFixed(row.ttftP95Ms, 1), ...(hasGoodput ? [row?.goodputPerSec === undefined ? "" : formatFixed(row.goodputPerSec, 2)] : [])];
      });
      const accepted = own.filter((r) => r.acceptance !== undefined).map((r) => r.acceptance as number);
      const acceptance = accepted.length === 0 ? "n/a" : Math.max(...accepted) - Math.min(...accepted) < 0.005 ? formatPercent(accepted[0] as number, 1) : `${formatPercent(Math.min(...accepted), 1)}-${formatPercent(Math.max(...accepted), 1)}`;
      return [server, ...cells, acceptance, String(own.reduce((sum, r) => sum + r.failed, 0))];
    }),
  };
}

/** "1.31x", with its 95% interval where there are rounds to make one. */
export function formatRatio(ratio: Estimate | undefined): string {
  if (ratio === undefined) return "";
  const point = `${formatFixed(ratio.median, 2)}x`;
  return Number.isNaN(ratio.low) ? point : `${point} [${formatFixed(ratio.low, 2)}, ${formatFixed(ratio.high, 2)}]`;
}
