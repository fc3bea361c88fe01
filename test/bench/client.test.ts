import { afterEach, describe, expect, test } from "vitest";
import { createClient, type ClientOptions } from "../../src/bench/client.ts";
import { itlMs, summarize, tpotMs, ttftMs } from "../../src/bench/summarize.ts";
import type { Prompt } from "../../src/bench/workload.ts";
import { deltaEvent, done, endEvent, startFakeServer, textEvent, type FakeServer, type Script } from "./fake-server.ts";

const prompt: Prompt = { id: "p", maxTokens: 8, prompt: "def add(" };
let server: FakeServer | undefined;

afterEach(async () => {
  await server?.close();
  server = undefined;
});

async function open(script: (index: number) => Script, more: Partial<ClientOptions> = {}): Promise<ReturnType<typeof createClient>> {
  server = await startFakeServer(script);
  return createClient({ baseUrl: `${server.url}/v1/`, model: "fake", isStream: true, temperature: 0, topP: 1, seed: 5, ignoreEos: false, timeoutMs: 30_000, keepAlive: false, saveText: true, now: server.now, onBytes: server.onBytes, ...more });
}

describe("a streamed request", () => {
  test("several tokens in a chunk: tokens come from usage, ITL from chunks, TPOT from both", async () => {
    const client = await open(() => ({
      steps: [
        { atMs: 500, event: textEvent("a") },
        { atMs: 530, event: textEvent("bcd") },
        { atMs: 560, event: textEvent("efg") },
        { atMs: 560, event: endEvent(7) },
        done(560),
      ],
    }));
    const record = await client.send(prompt, 0);
    expect(record.failure).toBeUndefined();
    expect(record).toMatchObject({ sentAtMs: 0, contentAtMs: [500, 530, 560], endAtMs: 560, nPrompt: 10, nCached: 4, nOutput: 7, finishReason: "length", text: "abcdefg", status: 200, nReconnects: 0 });
    expect(record.contentTokens).toBeUndefined();
    expect([ttftMs(record), tpotMs(record), itlMs(record)]).toEqual([500, 10, [30, 30]]);
    const summary = summarize([record]);
    expect(summary.outputTokens).toBe(7);
    expect(summary.outputTokPerSec).toBeCloseTo(7 / 0.56, 9);
    expect(summary.tokensPerChunk?.mean).toBeCloseTo(7 / 3, 3);
    expect(server?.bodies[0]).toEqual({ model: "fake", prompt: "def add(", max_tokens: 8, temperature: 0, stream: true, stream_options: { include_usage: true } });
  });

  test("usage in every piece, as vLLM can send it, gives tokens per piece", async () => {
    const usage = (n: number): Record<string, unknown> => ({ usage: { prompt_tokens: 3, completion_tokens: n } });
    const client = await open(() => ({ steps: [{ atMs: 1, event: textEvent("a", usage(1)) }, { atMs: 2, event: textEvent("bc", usage(4)) }, { atMs: 3, event: endEvent(4) }, done(3)] }));
    expect((await client.send(prompt, 0)).contentTokens).toEqual([1, 3]);
  });

  test("role and usage pieces without content are no chunks; chat goes to the chat endpoint", async () => {
    const paths: string[] = [];
    server = await startFakeServer((_, path) => {
      paths.push(path);
      return { steps: [{ atMs: 1, event: { choices: [{ delta: { role: "assistant", content: null } }] } }, { atMs: 9, event: deltaEvent("x") }, { atMs: 10, event: endEvent(1, { timings: { queue_ms: 1.5, prompt_ms: 6, predicted_ms: 2, draft_n: 3, draft_n_accepted: 2 } }) }, done(10)] };
    });
    const client = createClient({ baseUrl: server.url, model: "fake", isStream: true, temperature: 0.7, topP: 0.9, seed: 5, ignoreEos: true, extraBody: { top_k: 1 }, timeoutMs: 30_000, keepAlive: false, saveText: false, now: server.now, onBytes: server.onBytes });
    const record = await client.send({ id: "c", maxTokens: 4, messages: [{ role: "user", content: "hi" }] }, 3);
    expect(record.contentAtMs).toEqual([9]);
    expect(record.timings).toEqual({ queueMs: 1.5, prefillMs: 6, decodeMs: 2, nDrafted: 3, nAccepted: 2 });
    expect(paths).toEqual(["/v1/chat/completions"]);
    expect(server.bodies[0]).toMatchObject({ temperature: 0.7, top_p: 0.9, seed: 8, ignore_eos: true, top_k: 1, messages: [{ role: "user", content: "hi" }] });
  });

  test("a whole answer without streaming has no TTFT and all its tokens", async () => {
    const client = await open(() => ({ steps: [{ atMs: 40, raw: JSON.stringify({ choices: [{ text: "abc", finish_reason: "stop" }], usage: { prompt_tokens: 2, completion_tokens: 3 } }) }] }), { isStream: false });
    const record = await client.send(prompt, 0);
    expect(record).toMatchObject({ contentAtMs: [], endAtMs: 40, nOutput: 3, finishReason: "stop", text: "abc" });
    expect(summarize([record]).ttftMs).toBeUndefined();
  });
});

describe("failures are named, counted and keep what had arrived", () => {
  const first = { atMs: 5, event: textEvent("a") };
  const cases: [string, Script, string][] = [
    ["a connection cut in mid-stream", { steps: [first, { atMs: 9, cut: true }] }, "reset"],
    ["an error event in mid-stream", { steps: [first, { atMs: 9, event: { error: { message: "engine lost", code: 500 } } }, done(9)] }, "stream-error"],
    ["a stream without its end", { steps: [first] }, "truncated"],
    ["a stream without usage", { steps: [first, { atMs: 6, event: { choices: [{ text: "", finish_reason: "stop" }] } }, done(6)] }, "no-usage"],
    ["a piece that is not JSON", { steps: [first, { atMs: 6, raw: "data: {oops\n\n" }, { atMs: 7, event: endEvent(1) }, done(7)] }, "bad-json"],
    ["a status that is not 200", { status: 503, steps: [{ atMs: 3, raw: JSON.stringify({ error: { message: "loading" } }) }] }, "http"],
  ];
  test.each(cases)("%s", async (_, script, kind) => {
    const client = await open(() => script);
    const record = await client.send(prompt, 0);
    expect(record.failure?.kind).toBe(kind);
    if (kind === "http") expect(record.failure?.message).toBe("status 503: loading");
    else expect(record.contentAtMs).toEqual([5]);
    const summary = summarize([record]);
    expect(summary).toMatchObject({ requests: 1, failed: 1, failures: { [kind]: 1 }, outputTokens: 0 });
  });

  test("no server", async () => {
    const client = await open(() => ({ steps: [] }));
    await server?.close();
    server = undefined;
    expect((await client.send(prompt, 0)).failure?.kind).toBe("connect");
  });

  test("an abort ends the request", async () => {
    const controller = new AbortController();
    const client = await open(() => ({ steps: [first, { atMs: 6, event: textEvent("b") }] }), { signal: controller.signal, onBytes: () => controller.abort() });
    expect((await client.send(prompt, 0)).failure?.kind).toBe("aborted");
  });
});

describe("connections", () => {
  const answer: Script = { steps: [{ atMs: 1, event: endEvent(1) }, done(1)] };

  test("each request has its own by default", async () => {
    const client = await open(() => answer);
    for (let i = 0; i < 3; i++) await client.send(prompt, i);
    expect(server?.nConnections()).toBe(3);
  });

  test("with keep-alive one that the server closed is replaced, and the request does not fail", async () => {
    const client = await open(() => answer, { keepAlive: true });
    await client.send(prompt, 0);
    await client.send(prompt, 1);
    expect(server?.nConnections()).toBe(1);
    await server?.dropIdle();
    const record = await client.send(prompt, 2);
    expect(record.failure).toBeUndefined();
    expect(record.nOutput).toBe(1);
    expect(server?.nConnections()).toBe(2);
    client.close();
  });
});
