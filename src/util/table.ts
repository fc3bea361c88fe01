/** One table, two renderings: aligned text for a terminal, GitHub Markdown for a report. */

export interface Column {
  readonly title: string;
  readonly align?: "left" | "right";
}

export interface Table {
  readonly columns: readonly Column[];
  readonly rows: readonly (readonly string[])[];
}

export function renderText(table: Table): string {
  const widths = table.columns.map((column, i) =>
    Math.max(column.title.length, ...table.rows.map((row) => (row[i] ?? "").length)),
  );
  const line = (cells: readonly string[]): string =>
    cells
      .map((cell, i) => (table.columns[i]?.align === "right" ? cell.padStart(widths[i] ?? 0) : cell.padEnd(widths[i] ?? 0)))
      .join("  ")
      .trimEnd();
  return [line(table.columns.map((c) => c.title)), line(widths.map((w) => "-".repeat(w))), ...table.rows.map(line)].join("\n");
}

export function renderMarkdown(table: Table): string {
  const escape = (cell: string): string => cell.replaceAll("|", "\\|").replaceAll("\n", " ");
  const line = (cells: readonly string[]): string => `| ${cells.map(escape).join(" | ")} |`;
  const rule = `|${table.columns.map((c) => (c.align === "right" ? "---:" : "---")).join("|")}|`;
  return [line(table.columns.map((c) => c.title)), rule, ...table.rows.map(line)].join("\n");
}
