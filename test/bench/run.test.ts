import * as fs from "node:fs";
import * as http from "node:http";
import type { AddressInfo } from "node:net";
import * as os from "node:os";
import * as path from "node:path";
import { afterAll, beforeAll, describe, expect, test } from "vitest";
import { startServer, type ManagedServer } from "../../src/bench/managed-server.ts";
import { LoadOptions } from "../../src/bench/options.ts";
import { describeResult } from "../../src/bench/print.ts";
import { runBench, writeRaw } from "../../src/bench/run.ts";
import { summarize } from "../../src/bench/summarize.ts";
import type { RequestRecord } from "../../src/bench/record.ts";
import { command as benchCommand } from "../../src/commands/bench.ts";
import { checkOptions } from "../../src/config/options.ts";
import { startFakeServer } from "./fake-server.ts";

const folder = fs.mkdtempSync(path.join(os.tmpdir(), "foretoken-bench-"));
let server: ManagedServer;
beforeAll(async () => {
  server = await startServer({ name: "fake", command: [process.execPath, path.join(import.meta.dirname, "fake-openai.mjs"), "--port", "{port}"], logFile: path.join(folder, "fake.log"), readyTimeoutMs: 60_000 });
});
afterAll(async () => {
  await server.stop();
  fs.rmSync(folder, { recursive: true });
});

const load = (more: Record<string, unknown>): LoadOptions => LoadOptions.parse(more);

describe("runBench", () => {
  test("the warm-up is in no count; several tokens a chunk are counted from usage", async () => {
    const result = await runBench({ baseUrl: server.url, model: "fake" }, load({ requests: 6, concurrency: 3, maxTokens: 10, warmup: 5 }));
    expect(result.summary).toMatchObject({ requests: 6, failed: 0, outputTokens: 60, promptTokens: 42, finishReasons: { length: 6 } });
    expect(result.summary.tokensPerChunk).toMatchObject({ mean: 2, max: 2 });
    expect(result.drafts).toEqual({ nDrafts: 30, nDrafted: 30, nAccepted: 30, acceptedAt: [30], reachedAt: [], source: "metrics" });
    expect(result.counters).toMatchObject({ spec_decode_num_drafts_total: 30, 'spec_decode_num_accepted_tokens_per_pos_total{position="0"}': 30 });
    expect(describeResult(result)).toContain("drafts: 30 of 30 tokens accepted (100.00%), mean length 2.00, by position (1.000) of all drafts");
  });

  test("when the counters could not be read before, none are told", async () => {
    let nReadings = 0;
    const relay = http.createServer((req, res) => {
      if (req.url === "/metrics" && ++nReadings === 1) res.writeHead(503).end();
      else req.pipe(http.request(`${server.url}${req.url}`, { method: req.method, headers: req.headers }, (from) => from.pipe(res.writeHead(from.statusCode ?? 0, from.headers))));
    });
    await new Promise<void>((resolve) => relay.listen(0, "127.0.0.1", resolve));
    const result = await runBench({ baseUrl: `http://127.0.0.1:${(relay.address() as AddressInfo).port}`, model: "fake" }, load({ requests: 2, maxTokens: 4, warmup: 1 }));
    relay.close();
    expect(nReadings).toBe(2);
    expect(result).toMatchObject({ summary: { failed: 0 }, drafts: undefined, acceptance: undefined, counters: {} });
  });

  test("the raw file gives the summary again", async () => {
    const result = await runBench({ baseUrl: server.url, model: "fake" }, load({ requests: 4, concurrency: 2, maxTokens: 4 }));
    const file = path.join(folder, "raw.jsonl");
    await writeRaw(file, { model: "fake" }, result);
    const lines = fs.readFileSync(file, "utf8").trimEnd().split("\n").map((l) => JSON.parse(l) as { kind: string });
    expect(lines.map((l) => l.kind)).toEqual(["run", "request", "request", "request", "request", "end"]);
    expect(summarize(lines.filter((l): l is RequestRecord => l.kind === "request"))).toEqual(result.summary);
  });

  test("512 streams at once: none fails, every token is counted", async () => {
    const { summary } = await runBench({ baseUrl: server.url, model: "fake" }, load({ requests: 1024, concurrency: 512, maxTokens: 16, warmup: 0 }));
    expect(summary).toMatchObject({ requests: 1024, failed: 0, outputTokens: 16_384 });
  });

  test("an open loop sends them all, and reuses connections when asked", async () => {
    const { summary } = await runBench({ baseUrl: server.url, model: "fake" }, load({ requests: 20, rate: 2000, maxTokens: 2, warmup: 0, keepAlive: true }));
    expect(summary).toMatchObject({ requests: 20, failed: 0, outputTokens: 40 });
  });

  test("limits on times that an answer without streaming does not have are refused", async () => {
    await expect(runBench({ baseUrl: server.url, model: "fake" }, load({ stream: false, goodput: ["ttft:100"] }))).rejects.toThrow("need streamed answers");
  });

  test("when no warm-up request succeeds the run ends with the reason", async () => {
    const refusing = await startFakeServer(() => ({ status: 401, steps: [{ atMs: 0, raw: '{"error":{"message":"no key"}}' }] }), { isPaced: false });
    await expect(runBench({ baseUrl: refusing.url, model: "m" }, load({ requests: 2 }))).rejects.toThrow("no warm-up request succeeded; the first failed with http: status 401: no key");
    await refusing.close();
  });

  test("prompt tokens from a cache that nobody asked for are pointed out", async () => {
    const event = { choices: [{ text: "a", finish_reason: "stop" }], usage: { prompt_tokens: 10, completion_tokens: 1, prompt_tokens_details: { cached_tokens: 9 } } };
    const caching = await startFakeServer(() => ({ steps: [{ atMs: 0, event }, { atMs: 0, raw: "data: [DONE]\n\n" }] }), { isPaced: false });
    const measured = await runBench({ baseUrl: caching.url, model: "m" }, load({ requests: 2, warmup: 0 }));
    const onPurpose = await runBench({ baseUrl: caching.url, model: "m" }, load({ requests: 2, warmup: 0, sharedPrefixLen: 5 }));
    await caching.close();
    expect(measured.summary.cachedTokens).toBe(18);
    expect(measured.warnings.filter((w) => w.includes("prompt cache"))).toHaveLength(1);
    expect(onPurpose.warnings.filter((w) => w.includes("prompt cache"))).toEqual([]);
  });
});

test("the verb prints one JSON line, writes the raw file, and fails when every request failed", async () => {
  const out: string[] = [];
  const io = { out: (text: string) => void out.push(text), note: () => {}, json: true, signal: new AbortController().signal };
  const file = path.join(folder, "cli.jsonl");
  const options = checkOptions(benchCommand.options, { baseUrl: server.url, model: "fake", requests: 3, maxTokens: 2, output: file });
  expect(await benchCommand.run(options, io)).toBe(0);
  expect(out).toHaveLength(1);
  expect(JSON.parse(out[0] ?? "")).toMatchObject({ summary: { requests: 3, outputTokens: 6 }, output: file });
  const header = JSON.parse(fs.readFileSync(file, "utf8").split("\n")[0] ?? "") as Record<string, unknown>;
  for (const key of ["date", "foretoken", "machine", "node", "model", "baseUrl", "load", "server"]) expect(header[key], key).toBeDefined();
});
