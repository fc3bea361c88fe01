/** Blocks as one self-contained HTML page: no script, no outside file; light, dark, print and phone width by CSS alone. */
import type { Table } from "../util/table.ts";
import type { Block, Tile } from "./block.ts";
import { styleSheet } from "./style.ts";
import { escapeXml } from "./svg.ts";

export interface Page {
  readonly title: string;
  readonly subtitle: string;
  readonly footer: string;
}

export function htmlDocument(page: Page, blocks: readonly Block[]): string {
  const headings = blocks.flatMap((b) => (b.kind === "heading" && b.level === 2 ? [b.text] : []));
  const contents = headings.map((text) => `<a href="#${slug(text)}">${inline(text)}</a>`).join("");
  return `<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta name="color-scheme" content="light dark">
<title>${escapeXml(page.title)}</title>
<style>${styleSheet}</style>
</head>
<body>
<header><h1>${inline(page.title)}</h1><p>${inline(page.subtitle)}</p></header>
<nav aria-label="sections">${contents}</nav>
<main>
${blocks.map(htmlBlock).join("\n")}
</main>
<footer><p>${inline(page.footer)}</p></footer>
</body>
</html>
`;
}

export const slug = (text: string): string => text.toLowerCase().replace(/[^a-z0-9]+/g, "-").replace(/^-|-$/g, "");

function htmlBlock(block: Block): string {
  switch (block.kind) {
    case "heading":
      return block.level === 2 ? `<h2 id="${slug(block.text)}">${inline(block.text)}</h2>` : `<h3>${inline(block.text)}</h3>`;
    case "text":
      return paragraphs(block.text);
    case "table":
      return tableHtml(block.table, block.caption, block.best);
    case "figure":
      return `<figure><div class="title">${inline(block.title)}</div><div class="wide">${block.wide}</div><div class="narrow">${block.narrow}</div><figcaption>${inline(block.caption)}</figcaption></figure>`;
    case "list":
      return `<ul>${block.items.map((item) => `<li>${inline(item)}</li>`).join("")}</ul>`;
    case "code":
      return `<pre><code>${escapeXml(block.text)}</code></pre>`;
    case "verdict":
      return `<section class="verdict">${block.sentences.map((s) => `<p>${inline(s)}</p>`).join("")}</section>`;
    case "tiles":
      return `<section class="tiles">${block.tiles.map(tileHtml).join("")}</section>`;
    case "details":
      return `<details><summary>${inline(block.summary)}</summary>${block.blocks.map(htmlBlock).join("\n")}</details>`;
    default:
      return block satisfies never;
  }
}

function tileHtml(tile: Tile): string {
  return `<div class="tile"><div class="label">${inline(tile.label)}</div><div class="value">${inline(tile.value)}</div><div class="note">${inline(tile.note)}</div></div>`;
}

function tableHtml(table: Table, caption: string | undefined, best: readonly (readonly boolean[])[] | undefined): string {
  const kind = (i: number): string => (table.columns[i]?.align === "right" ? "num" : "txt");
  const head = table.columns.map((c, i) => `<th scope="col" class="${kind(i)}">${inline(c.title)}</th>`).join("");
  const body = table.rows.map((row, r) => `<tr>${row.map((cell, i) => tableCell(cell, kind(i), i === 0, best?.[r]?.[i] === true)).join("")}</tr>`).join("");
  return `<div class="table"><div class="scroll" tabindex="0"><table><thead><tr>${head}</tr></thead><tbody>${body}</tbody></table></div>${caption === undefined ? "" : `<p class="cap">${inline(caption)}</p>`}</div>`;
}

function tableCell(cell: string, kind: string, isFirst: boolean, isBest: boolean): string {
  const text = inline(cell).replaceAll("\n", "<br>");
  const classes = [kind, ...(isBest ? ["best"] : []), ...(cell === "n/a" ? ["na"] : [])].join(" ");
  return isFirst ? `<th scope="row" class="${classes}">${text}</th>` : `<td class="${classes}">${text}</td>`;
}

function paragraphs(text: string): string {
  return text
    .trim()
    .split(/\n\s*\n/)
    .map((p) => `<p>${inline(p.replaceAll("\n", " "))}</p>`)
    .join("");
}

/** The three inline marks that blocks may use: `code`, **bold** and [text](link). */
function inline(text: string): string {
  return escapeXml(text)
    .split(/(`[^`]+`)/)
    .map((part) => (part.startsWith("`") && part.length > 2 ? `<code>${part.slice(1, -1)}</code>` : part.replace(/\*\*([^*]+)\*\*/g, "<strong>$1</strong>").replace(/\[([^\]]+)\]\(([^)\s]+)\)/g, '<a href="$2">$1</a>')))
    .join("");
}
