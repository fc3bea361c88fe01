/**
 * Figures as SVG without a browser: Observable Plot on linkedom, with a legend of its own so that a file stands alone.
 * Colours are CSS variables with light and dark values, so a page can set them and a file follows the viewer's scheme.
 */
import { createHash } from "node:crypto";
import * as Plot from "@observablehq/plot";
import { parseHTML } from "linkedom";

/** Distinguishable in both schemes and for the common colour blindnesses when neighbours are read in order. */
const series: readonly (readonly [light: string, dark: string])[] = [
  ["#2563a8", "#7db4ee"],
  ["#c2570c", "#f3a262"],
  ["#0f7b6c", "#5fc9b8"],
  ["#9333a8", "#d59be6"],
  ["#8a6d00", "#dcc05a"],
  ["#be2f50", "#f2899f"],
  ["#4b7a1c", "#a5cf72"],
  ["#6b5bb5", "#b3a7ee"],
];

export const plotVariables = {
  light: `--ink:#1c2330;--soft:#5b6472;--rule:#d5d9e0;--paper:#ffffff;${series.map(([l], i) => `--s${i}:${l}`).join(";")}`,
  dark: `--ink:#e4e8ef;--soft:#9aa3b2;--rule:#343b47;--paper:#161a21;${series.map(([, d], i) => `--s${i}:${d}`).join(";")}`,
};

export const seriesColor = (i: number): string => `var(--s${i % series.length})`;
/** What others are compared with is drawn in the colour of text. */
export const baselineColor = "var(--ink)";

export interface Size {
  readonly width: number;
  readonly isNarrow: boolean;
}

export const wideSize: Size = { width: 720, isNarrow: false };
export const narrowSize: Size = { width: 350, isNarrow: true };

export interface LegendEntry {
  readonly label: string;
  readonly color: string;
  readonly isDashed: boolean;
}

/** `plot` is drawn below the legend; the result is one SVG element as text. */
export function drawFigure(title: string, legend: readonly LegendEntry[], size: Size, options: Plot.PlotOptions): string {
  const { document } = parseHTML("<!doctype html><body></body>");
  const svg = Plot.plot({ ...options, width: size.width, document, style: { background: "none", color: "inherit", fontSize: "12px" } });
  svg.querySelector("style")?.remove();
  const height = Number(svg.getAttribute("height"));
  const columns = size.isNarrow ? 1 : Math.max(1, Math.min(2, Math.floor(92 / Math.max(1, ...legend.map((e) => e.label.length)))));
  const { entries, height: legendHeight } = layOutLegend(legend, columns, size.width);
  const top = legend.length === 0 ? 0 : legendHeight + 8;
  for (const name of ["class", "width", "height", "style", "fill", "viewBox"]) svg.removeAttribute(name);
  svg.setAttribute("x", "0");
  svg.setAttribute("y", String(top));
  svg.setAttribute("width", String(size.width));
  svg.setAttribute("height", String(height));
  svg.setAttribute("fill", "currentColor");
  const outerHTML = stableIds((svg as unknown as { outerHTML: string }).outerHTML);
  return `<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 ${size.width} ${height + top}" width="${size.width}" height="${height + top}" role="img" aria-label="${escapeXml(title)}" font-family="system-ui, sans-serif" font-size="12" color="var(--ink)" fill="currentColor">${entries.join("")}${outerHTML}</svg>`;
}

/** Plot numbers its clip paths over the life of the process; a report must come out the same each time, and ids differ between figures. */
function stableIds(svg: string): string {
  const neutral = svg.replace(/plot-clip-\d+/g, "plot-clip");
  const own = createHash("sha256").update(neutral).digest("hex").slice(0, 8);
  const numbers = [...new Set(svg.match(/plot-clip-\d+/g) ?? [])];
  const defined = new Set<string>();
  return svg
    .replace(/plot-clip-\d+/g, (id) => `clip-${own}-${numbers.indexOf(id)}`)
    .replace(/<clipPath id="([^"]+)">.*?<\/clipPath>/g, (whole, id: string) => {
      // Marks that clip alike each bring the same definition.
      if (defined.has(id)) return "";
      defined.add(id);
      return whole;
    });
}

const legendRow = 19;
const legendLine = 15;

/** Rows of entries; a label that is too long for its column goes on below. */
function layOutLegend(legend: readonly LegendEntry[], columns: number, width: number): { entries: string[]; height: number } {
  const entries: string[] = [];
  let y = 0;
  for (let i = 0; i < legend.length; i += columns) {
    const row = legend.slice(i, i + columns).map((e) => ({ ...e, lines: wrap(plain(e.label), Math.floor((width / columns - 34) / 7)) }));
    row.forEach((e, column) => entries.push(legendEntry(e, column * (width / columns), y)));
    y += legendRow + (Math.max(...row.map((e) => e.lines.length)) - 1) * legendLine;
  }
  return { entries, height: y };
}

function legendEntry(entry: LegendEntry & { readonly lines: readonly string[] }, x: number, y: number): string {
  const text = entry.lines.map((line, i) => `<text x="29" y="${13 + i * legendLine}">${escapeXml(line)}</text>`).join("");
  return `<g transform="translate(${x},${y})"><line x1="2" x2="22" y1="9" y2="9" stroke="${entry.color}" stroke-width="2.5"${entry.isDashed ? ' stroke-dasharray="5 3"' : ""}></line>${text}</g>`;
}

function wrap(text: string, nMost: number): string[] {
  const lines: string[] = [""];
  for (const word of text.split(" ")) {
    const line = lines.at(-1) ?? "";
    if (line === "") lines[lines.length - 1] = word;
    else if (line.length + 1 + word.length <= nMost) lines[lines.length - 1] = `${line} ${word}`;
    else lines.push(word);
  }
  return lines;
}

/** Labels without the marks that text blocks may have. */
export const plain = (text: string): string => text.replaceAll("`", "").replaceAll("**", "");

export function escapeXml(text: string): string {
  return text.replaceAll("&", "&amp;").replaceAll("<", "&lt;").replaceAll(">", "&gt;").replaceAll('"', "&quot;");
}

/** A figure as a file of its own: with the variables that a page would set, and a background. */
export function standaloneSvg(svg: string): string {
  const style = `<style>:root{${plotVariables.light}}@media (prefers-color-scheme:dark){:root{${plotVariables.dark}}}</style><rect width="100%" height="100%" fill="var(--paper)"></rect>`;
  return `<?xml version="1.0" encoding="UTF-8"?>\n${svg.replace(/^(<svg[^>]*>)/, `$1${style}`)}\n`;
}
