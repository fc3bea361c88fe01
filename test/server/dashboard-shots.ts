/**
 * Looks at the dashboard in a real browser: tsx test/server/dashboard-shots.ts FOLDER, with Chromium's path in CHROME when
 * it is not where Debian puts it. Saves a picture per width and colour scheme; fails on console errors, on a page wider
 * than its window, and when the chat box does not answer. Not a part of `npm test`: it needs a browser.
 */
import assert from "node:assert/strict";
import * as fs from "node:fs";
import * as path from "node:path";
import { chromium, type Browser } from "playwright-core";
import { startLocalServer } from "./scripted-server.ts";

const folder = process.argv[2] ?? ".";
const executablePath = [process.env["CHROME"] ?? "", "/usr/bin/chromium", "/usr/bin/google-chrome"].find((file) => file !== "" && fs.existsSync(file));
if (executablePath === undefined) {
  console.error("dashboard-shots: no browser; install chromium, or set CHROME to its path");
  process.exit(1);
}
const flags = "--headless --no-sandbox --disable-gpu --disable-quic --no-first-run --disable-background-networking --disable-component-update --disable-sync";

async function shoot(browser: Browser, url: string, width: number, colorScheme: "light" | "dark"): Promise<void> {
  const page = await browser.newPage({ viewport: { width, height: 900 }, colorScheme });
  const errors: string[] = [];
  page.on("console", (message) => message.type() === "error" && errors.push(message.text()));
  page.on("pageerror", (error) => errors.push(error.message));
  await page.goto(url);
  await page.fill("#prompt", "@@say def add(a, b):\n    return a + b");
  await page.click("#send");
  await page.waitForSelector(".message.assistant .facts");
  assert.match((await page.textContent(".message.assistant")) ?? "", /return a \+ b/);
  await page.waitForTimeout(4000);
  await page.screenshot({ path: path.join(folder, `dashboard-${width}-${colorScheme}.png`), fullPage: true });
  const [wide = 0, window = 0] = await page.evaluate<number[]>("[document.documentElement.scrollWidth, document.documentElement.clientWidth]");
  assert.ok(wide <= window, `the page is ${wide} wide in a window of ${window}`);
  assert.deepEqual(errors, []);
  await page.close();
}

const server = await startLocalServer({ engine: { nSlots: 8, nCtxSeq: 1e6 } });
const browser = await chromium.launch({ executablePath, args: flags.split(" ") });
const load = new AbortController();
for (let i = 0; i < 5; i++)
  fetch(`${server.url}/v1/completions`, { method: "POST", signal: load.signal, body: JSON.stringify({ prompt: "@@forever word ", max_tokens: 900_000 }) }).catch(() => {});
for (const width of [390, 820, 1280]) for (const colorScheme of ["light", "dark"] as const) await shoot(browser, server.url, width, colorScheme);
load.abort();
await browser.close();
await server.close();
console.log(`six pictures in ${folder}, no errors`);
process.exit(0);
