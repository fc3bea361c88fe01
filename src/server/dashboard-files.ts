/** The dashboard's files as they are on disk: no build step, nothing from another host. */
import * as fs from "node:fs";
import { createRequire } from "node:module";
import * as path from "node:path";
import { packageRoot } from "../util/paths.ts";

const require = createRequire(import.meta.url);
const own = (name: string): string => path.join(packageRoot, "src", "server", "dashboard", name);
const uplot = (name: string): string => path.join(path.dirname(require.resolve("uplot/package.json")), "dist", name);

interface PageFile {
  readonly file: () => string;
  readonly type: string;
}

const files: ReadonlyMap<string, PageFile> = new Map([
  ["/", { file: () => own("index.html"), type: "text/html" }],
  ...["style.css", "charts.css", "chat.css"].map((name): [string, PageFile] => [`/dashboard/${name}`, { file: () => own(name), type: "text/css" }]),
  ...["main.js", "api.js", "charts.js", "chat.js"].map((name): [string, PageFile] => [`/dashboard/${name}`, { file: () => own(name), type: "text/javascript" }]),
  ["/dashboard/uplot.js", { file: () => uplot("uPlot.esm.js"), type: "text/javascript" }],
  ["/dashboard/uplot.css", { file: () => uplot("uPlot.min.css"), type: "text/css" }],
]);

/** Where the page and its files are. They hold no data, so they need no key. */
export const dashboardPaths: readonly string[] = [...files.keys()];

const cache = new Map<string, Buffer>();

/** Styles and scripts come from this server only; uPlot sets styles of its elements itself. */
const policy = "default-src 'none'; script-src 'self'; style-src 'self' 'unsafe-inline'; connect-src 'self'; img-src 'self' data:; base-uri 'none'; frame-ancestors 'none'";

export function dashboardFile(urlPath: string): Response {
  const { file, type } = files.get(urlPath) as PageFile;
  let content = cache.get(urlPath);
  if (content === undefined) cache.set(urlPath, (content = fs.readFileSync(file())));
  return new Response(new Uint8Array(content), {
    headers: { "content-type": `${type}; charset=utf-8`, "cache-control": "no-cache", "content-security-policy": policy, "x-content-type-options": "nosniff" },
  });
}
