import { formatFixed, formatPercent } from "../util/format.ts";
import type { Table } from "../util/table.ts";
import type { CertificateRow } from "./certificate.ts";

export function certificateTable(rows: readonly CertificateRow[]): Table {
  const number = (value: number | null, decimals: number): string => (value === null ? "n/a" : formatFixed(value, decimals));
  return {
    columns: [{ title: "mode" }, { title: "against" }, { title: "equal", align: "right" }, { title: "rate, 95% interval", align: "right" }, { title: "first fork", align: "right" }, { title: "median", align: "right" }, { title: "margin, median", align: "right" }, { title: "largest", align: "right" }],
    rows: rows.map((r) => [
      r.mode,
      r.reference,
      `${r.exact}/${r.prompts}`,
      `${formatPercent(r.exact / Math.max(1, r.prompts), 1)} [${formatPercent(r.exactInterval.low, 1)}, ${formatPercent(r.exactInterval.high, 1)}]`,
      number(r.firstForkMin, 0),
      number(r.firstForkMedian, 0),
      number(r.marginMedian, 3),
      number(r.marginMax, 3),
    ]),
  };
}
