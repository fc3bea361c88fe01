/** Two reports beside each other: what changed in speed, acceptance, memory and files, and under which conditions. Pure. */
import { formatFixed } from "../util/format.ts";
import type { Column, Table } from "../util/table.ts";
import type { Block } from "./block.ts";
import type { BenchRow, ReportData } from "./model.ts";
import { fixed, na, percent, whole } from "./tables.ts";

export interface Change {
  readonly matrix: string;
  readonly profile: string;
  readonly concurrency: number;
  readonly before: BenchRow;
  readonly after: BenchRow;
  readonly ratio: number;
  /** faster, slower: the intervals do not touch. unclear: they do, or there is none. */
  readonly verdict: "faster" | "slower" | "unclear";
}

const keyOf = (r: BenchRow): string => JSON.stringify([r.matrix, r.profile, r.concurrency]);

export function changesBetween(before: ReportData, after: ReportData): Change[] {
  const old = new Map(before.rows.map((r) => [keyOf(r), r]));
  return after.rows.flatMap((r) => {
    const other = old.get(keyOf(r));
    if (other === undefined) return [];
    return [{ matrix: r.matrix, profile: r.profile, concurrency: r.concurrency, before: other, after: r, ratio: r.tokPerSec / other.tokPerSec, verdict: verdictOf(other, r) }];
  });
}

function verdictOf(before: BenchRow, after: BenchRow): Change["verdict"] {
  const [a, b] = [before.tokPerSecInterval, after.tokPerSecInterval];
  if (a === null || b === null) return "unclear";
  if (b.low > a.high) return "faster";
  return b.high < a.low ? "slower" : "unclear";
}

export function compareBlocks(before: ReportData, after: ReportData): Block[] {
  const changes = changesBetween(before, after);
  const clear = changes.filter((c) => c.verdict !== "unclear");
  const left = (title: string): Column => ({ title });
  const right = (title: string): Column => ({ title, align: "right" });
  const speed: Table = {
    columns: [left("Profile"), right("c"), right("A tok/s"), right("B tok/s"), right("B / A"), left("by intervals"), right("A p95 TTFT ms"), right("B p95 TTFT ms"), right("A acceptance"), right("B acceptance"), right("A MiB"), right("B MiB")],
    rows: changes.map((c) => [c.profile, String(c.concurrency), fixed(c.before.tokPerSec, 1), fixed(c.after.tokPerSec, 1), `${formatFixed(c.ratio, 2)}x`, c.verdict, fixed(c.before.ttftP95Ms, 1), fixed(c.after.ttftP95Ms, 1), percent(c.before.acceptance, 1), percent(c.after.acceptance, 1), whole(c.before.loadedMiB), whole(c.after.loadedMiB)]),
  };
  const only = [
    ...before.rows.filter((r) => !after.rows.some((o) => keyOf(o) === keyOf(r))).map((r) => `Only in A: ${r.profile} at c${r.concurrency}`),
    ...after.rows.filter((r) => !before.rows.some((o) => keyOf(o) === keyOf(r))).map((r) => `Only in B: ${r.profile} at c${r.concurrency}`),
  ];
  return [
    { kind: "verdict", sentences: [sentence(changes, clear), ...sameMachine(before, after)] },
    { kind: "heading", level: 2, text: "Measurements" },
    { kind: "table", table: speed, caption: "A verdict by intervals needs several rounds in both; without them a difference is unclear." },
    ...(only.length === 0 ? [] : [{ kind: "list", items: only } as const]),
    ...fileBlocks(before, after),
    { kind: "heading", level: 2, text: "Conditions" },
    { kind: "table", table: conditionTable(before, after) },
  ];
}

function sentence(changes: readonly Change[], clear: readonly Change[]): string {
  if (changes.length === 0) return "The two reports have no measurement in common.";
  const faster = clear.filter((c) => c.verdict === "faster").length;
  return `Of ${changes.length} measurements in common B is surely faster in ${faster}, surely slower in ${clear.length - faster}; the other ${changes.length - clear.length} are within their intervals or have none.`;
}

function sameMachine(before: ReportData, after: ReportData): string[] {
  const [a, b] = [before.conditions, after.conditions];
  return a.machine === b.machine && a.device === b.device ? [] : ["The machines differ, so the ratios compare machines as much as programs."];
}

function fileBlocks(before: ReportData, after: ReportData): Block[] {
  const names = [...new Set([...before.artifacts, ...after.artifacts].map((a) => a.file))];
  if (names.length === 0) return [];
  const table: Table = {
    columns: [{ title: "File" }, { title: "A" }, { title: "B" }, { title: "" }],
    rows: names.map((name) => {
      const hashes = [before, after].map((d) => d.artifacts.find((a) => a.file === name)?.sha256);
      return [name, ...hashes.map((h) => h?.slice(0, 12) ?? na), hashes[0] === hashes[1] ? "the same" : "differs"];
    }),
  };
  return [{ kind: "heading", level: 2, text: "Files" }, { kind: "table", table }];
}

function conditionTable(before: ReportData, after: ReportData): Table {
  const keys = ["date", "version", "commit", "machine", "device", "library", "node", "seed"] as const;
  return { columns: [{ title: "Condition" }, { title: "A" }, { title: "B" }], rows: keys.map((key) => [key, ...[before, after].map((d) => String(d.conditions[key] ?? na))]) };
}
