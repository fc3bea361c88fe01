import { once } from "node:events";
import { connect } from "node:net";
import { afterEach, describe, expect, test } from "vitest";
import { listen } from "../../src/server/http-server.ts";
import { createApp } from "../../src/server/app.ts";
import { createLogger } from "../../src/util/log.ts";
import { Rng } from "../../src/util/rng.ts";
import { call, parseEvents, textOf, type Json, type Target } from "../conformance/client.ts";
import { scriptedModel, startLocalServer, startScriptedServer, type ScriptedServer, type ScriptedServerOptions } from "./scripted-server.ts";

const servers: ScriptedServer[] = [];
const locals: { close(): Promise<void> }[] = [];
async function start(options: ScriptedServerOptions = {}): Promise<{ server: ScriptedServer; target: Target }> {
  const server = await startScriptedServer(options);
  servers.push(server);
  return { server, target: { baseUrl: server.url, model: scriptedModel, kind: "scripted" } };
}
async function startLocal(options: ScriptedServerOptions = {}): Promise<Target> {
  const server = await startLocalServer(options);
  locals.push(server);
  return { baseUrl: server.url, model: scriptedModel, kind: "scripted" };
}
afterEach(async () => {
  await Promise.all(locals.splice(0).map(async (server) => server.close()));
  await Promise.all(servers.splice(0).map(async (server) => server.close()));
});

const COMPLETIONS = "/v1/completions";
const say = (prompt: string, more: object = {}): object => ({ prompt, max_tokens: 1e9, ...more });

async function until(condition: () => boolean | Promise<boolean>): Promise<void> {
  while (!(await condition())) await new Promise((resolve) => setTimeout(resolve, 5));
}

async function post(target: Target, body: object, init: RequestInit = {}): Promise<Response> {
  return fetch(target.baseUrl + COMPLETIONS, { method: "POST", body: JSON.stringify(body), ...init });
}

async function raw(url: string, text: string): Promise<string> {
  const socket = connect(Number(new URL(url).port), "127.0.0.1");
  socket.write(text);
  let answer = "";
  socket.on("data", (part) => {
    answer += part.toString();
  });
  await once(socket, "close");
  return answer;
}

const isIdle = (server: ScriptedServer) => (): boolean => {
  const { slots, nQueued } = server.engine.snapshot();
  return nQueued === 0 && slots.every((slot) => slot.phase === "idle");
};

async function status(target: Target): Promise<Json> {
  return (await call(target, "/status")).json;
}

describe("who may call", () => {
  test("a key is needed everywhere but for health and the page, and is never logged", async () => {
    const lines: string[] = [];
    const logger = createLogger({ json: true, level: "debug", write: (line) => lines.push(line) });
    const target = await startLocal({ settings: { apiKeys: ["first-key", "second-key"] }, logger });
    for (const path of ["/health", "/", "/dashboard/main.js"]) expect((await call(target, path)).status).toBe(200);
    for (const path of ["/v1/models", "/props", "/slots", "/metrics", "/status"]) expect((await call(target, path)).status).toBe(401);
    const none = await call(target, COMPLETIONS, say("@@say secret words"));
    expect([none.status, none.json.error.code, none.json.error.type]).toEqual([401, "missing_api_key", "authentication_error"]);
    const wrong = await call({ ...target, apiKey: "first-keY" }, COMPLETIONS, say("@@say a"));
    expect([wrong.status, wrong.json.error.code]).toEqual([401, "invalid_api_key"]);
    for (const apiKey of ["first-key", "second-key"]) expect((await call({ ...target, apiKey }, COMPLETIONS, say("@@say secret words"))).status).toBe(200);
    expect((await post(target, say("@@say a"), { headers: { "x-api-key": "second-key" } })).status).toBe(200);
    expect(lines.join("")).toMatch(/"outcome":"ok"/);
    expect(lines.join("")).not.toMatch(/first-key|second-key|secret words/i);
  });

  test("an allowed origin gets its headers, also on a stream, and a preflight without a key", async () => {
    const target = await startLocal({ settings: { corsOrigins: ["https://app.example"], apiKeys: ["k"] } });
    const headers = { origin: "https://app.example", authorization: "Bearer k" };
    const preflight = await fetch(target.baseUrl + COMPLETIONS, { method: "OPTIONS", headers: { origin: "https://app.example" } });
    expect([preflight.status, preflight.headers.get("access-control-allow-origin")]).toEqual([204, "https://app.example"]);
    const streamed = await post(target, say("@@say a", { stream: true }), { headers });
    expect(streamed.headers.get("access-control-allow-origin")).toBe("https://app.example");
    expect(parseEvents(await streamed.text()).isDone).toBe(true);
    expect((await post(target, say("@@say a"), { headers: { ...headers, origin: "https://other.example" } })).status).toBe(403);
  });

  test("on loopback a foreign Host is refused, so that no web page can rename itself here", async () => {
    const { baseUrl } = await startLocal();
    expect(await raw(baseUrl, "GET /v1/models HTTP/1.1\r\nHost: evil.example\r\nConnection: close\r\n\r\n")).toMatch(/^HTTP\/1\.1 403/);
    expect(await raw(baseUrl, "GET /v1/models HTTP/1.1\r\nHost: localhost:1\r\nConnection: close\r\n\r\n")).toMatch(/^HTTP\/1\.1 200/);
  });
});

describe("limits", () => {
  test("a full queue is 429 with Retry-After, all choices or none", async () => {
    const { server, target } = await start({ engine: { nSlots: 1 }, process: { maxQueue: 2 } });
    const stop = new AbortController();
    const held = [post(target, say("@@hold x", { stream: true }), { signal: stop.signal })];
    await until(async () => (await status(target)).requests.active === 1);
    const tooMany = await call(target, COMPLETIONS, say("@@say a", { n: 3 }));
    expect([tooMany.status, tooMany.json.error.code, tooMany.json.error.type]).toEqual([429, "queue_full", "rate_limit_error"]);
    expect(Number(tooMany.headers.get("retry-after"))).toBeGreaterThan(0);
    const two = call(target, COMPLETIONS, say("@@say b", { n: 2 }));
    await until(() => server.engine.snapshot().nQueued === 2);
    expect((await call(target, COMPLETIONS, say("@@say c"))).status).toBe(429);
    stop.abort();
    await Promise.allSettled(held);
    expect((await two).json.choices.map((choice: Json) => choice.text)).toEqual(["b", "b"]);
    expect((await status(target)).requests).toMatchObject({ ok: 1, rejected: 2, disconnected: 1, active: 0 });
  });

  test("100 requests beyond the slots are served in order", async () => {
    const { server, target } = await start({ engine: { nSlots: 2 } });
    const stop = new AbortController();
    const held = [0, 1].map(async () => post(target, say("@@hold x", { stream: true }), { signal: stop.signal }));
    await until(() => server.engine.snapshot().slots.every((slot) => slot.phase === "decode"));
    const ends: number[] = [];
    const waiting: Promise<void>[] = [];
    for (let i = 0; i < 100; i++) {
      waiting.push(
        call(target, COMPLETIONS, say(`@@repeat 40 ${i} `)).then(({ json }) => {
          expect(json.choices[0].text).toBe(`${i} `.repeat(40));
          ends.push(i);
        }),
      );
      await until(async () => (await status(target)).requests.active === i + 3);
    }
    stop.abort();
    await Promise.allSettled([...held, ...waiting]);
    await Promise.all(waiting);
    expect(ends).toHaveLength(100);
    for (const [place, i] of ends.entries()) expect(Math.abs(place - i)).toBeLessThan(4);
  });

  test("a request that takes too long ends with 504, in a stream with an event, and frees its slot", async () => {
    const { server, target } = await start({ settings: { timeoutMs: 150 } });
    const whole = await call(target, COMPLETIONS, say("@@hold x"));
    expect([whole.status, whole.json.error.type, whole.json.error.code]).toEqual([504, "timeout_error", "timeout"]);
    const streamed = parseEvents(await (await post(target, say("@@hold x", { stream: true }))).text());
    expect(streamed.isDone).toBe(false);
    expect(streamed.chunks.at(-1).error.code).toBe("timeout");
    await until(isIdle(server));
  });

  test("a client that does not read is cut off and frees its slot; others do not notice", async () => {
    const { server, target } = await start({ engine: { nCtxSeq: 1e9 } });
    const body = JSON.stringify(say(`@@forever ${"long text ".repeat(50)}`, { stream: true }));
    const socket = connect(Number(new URL(server.url).port), "127.0.0.1");
    socket.pause();
    socket.on("error", () => {});
    socket.write(`POST ${COMPLETIONS} HTTP/1.1\r\nHost: localhost\r\nContent-Length: ${body.length}\r\n\r\n${body}`);
    await until(async () => (await status(target)).requests.active === 1);
    expect((await call(target, COMPLETIONS, say("@@say fine"))).json.choices[0].text).toBe("fine");
    await until(async () => (await status(target)).requests.slow_client === 1);
    await until(isIdle(server));
    socket.destroy();
  });
});

describe("clients that leave", () => {
  test("a client that waits for a whole reply and leaves frees its slot", async () => {
    const { server, target } = await start();
    const stop = new AbortController();
    const left = post(target, say("@@hold x"), { signal: stop.signal });
    await until(() => server.engine.snapshot().slots.some((slot) => slot.phase === "decode"));
    stop.abort();
    await expect(left).rejects.toThrow();
    await until(isIdle(server));
    expect((await status(target)).requests).toMatchObject({ disconnected: 1, active: 0 });
  });

  test("1,000 disconnects at random moments leave no busy slot and balanced counters", async () => {
    const { server, target } = await start({ engine: { nSlots: 16 } });
    const rng = new Rng(1);
    let nOk = 0;
    let nLeft = 0;
    const one = async (): Promise<void> => {
      const stop = new AbortController();
      const isShort = rng.uniform() < 0.2;
      const nParts = rng.below(6);
      setTimeout(() => stop.abort(), isShort ? 5000 : rng.below(30));
      try {
        const response = await post(target, say(isShort ? "@@say short" : "@@forever abc ", { stream: rng.uniform() < 0.7 }), { signal: stop.signal });
        let n = 0;
        for await (const _part of response.body as unknown as AsyncIterable<Uint8Array>) if (!isShort && ++n > nParts) stop.abort();
        nOk++;
      } catch {
        nLeft++;
      }
    };
    const worker = async (): Promise<void> => {
      for (let i = 0; i < 63; i++) await one();
    };
    await Promise.all(Array.from({ length: 16 }, worker));
    expect(nOk + nLeft).toBe(1008);
    await until(isIdle(server));
    await until(async () => (await status(target)).requests.active === 0);
    expect(await server.engine.checkIntegrity()).toBeUndefined();
    const { requests } = await status(target);
    // A client may leave before its request was read: those were never counted.
    expect(requests.failed + requests.rejected + requests.slow_client).toBe(0);
    expect(requests.ok).toBeGreaterThanOrEqual(nOk);
    expect(requests.ok + requests.disconnected).toBeLessThanOrEqual(1008);
    expect(requests.disconnected).toBeGreaterThan(500);
  });
});

describe("an engine that dies", () => {
  test("kill -9 under load: errors for what ran, 503 with Retry-After, then service again", async () => {
    const lines: string[] = [];
    const logger = createLogger({ json: true, write: (line) => lines.push(line) });
    const { server, target } = await start({ engine: { nSlots: 16 }, logger });
    const streams = Array.from({ length: 12 }, async () => (await post(target, say("@@hold x", { stream: true }))).text());
    const wholes = Array.from({ length: 4 }, async () => call(target, COMPLETIONS, say("@@hold x")));
    await until(() => server.engine.snapshot().slots.every((slot) => slot.phase === "decode"));
    process.kill(server.engine.pid as number, "SIGKILL");
    for (const text of await Promise.all(streams)) {
      const { chunks, isDone } = parseEvents(text);
      expect(isDone).toBe(false);
      expect(chunks.at(-1).error.message).toMatch(/signal SIGKILL/);
    }
    for (const answer of await Promise.all(wholes)) expect([answer.status, answer.json.error.type]).toEqual([503, "unavailable_error"]);
    const refused = await call(target, COMPLETIONS, say("@@say no"));
    expect([refused.status, refused.json.error.code]).toEqual([503, "engine_restarting"]);
    expect(Number(refused.headers.get("retry-after"))).toBeGreaterThan(0);
    const health = await call(target, "/health");
    expect([health.status, health.json.status]).toEqual([503, "restarting"]);
    expect(health.json.error.message).toMatch(/SIGKILL/);
    await until(async () => (await call(target, "/health")).status === 200);
    expect((await call(target, COMPLETIONS, say("@@say back"))).json.choices[0].text).toBe("back");
    expect((await call(target, "/metrics")).text).toMatch(/foretoken:engine_failures_total\{cause="exit"\} 1\n[\s\S]*foretoken:engine_requests_lost_total 16\n/);
    const ended = lines.map((line) => JSON.parse(line) as { message: string }).find((line) => line.message === "engine process ended");
    expect(ended).toMatchObject({ level: "error", cause: "exit", how: "signal SIGKILL", nRequestsLost: 16 });
    expect(lines.filter((line) => line.includes('"message":"completion"') && line.includes('"outcome":"failed"'))).toHaveLength(16);
  });

  test("an abort inside a step is one error for its client and no end of the server", async () => {
    const { target } = await start();
    const { chunks } = parseEvents(await (await post(target, say("@@abort", { stream: true }))).text());
    expect(chunks.at(-1).error.message).toMatch(/SIGABRT/);
    await until(async () => (await call(target, "/health")).status === 200);
  });
});

describe("start and end", () => {
  test("while the engine loads, health is 503 with the reason and requests are refused", async () => {
    const engine = { state: "loading", stateReason: "loading the model (42%)", info: undefined } as never;
    const settings = { apiKeys: [], corsOrigins: [], isLoopback: true, maxBodyBytes: 1000, modelName: "m", hasSlots: false, hasMetrics: false, hasDashboard: false } as never;
    const server = await listen(createApp({ settings, engine, text: () => undefined, logger: createLogger({ write: () => {} }) }), { host: "127.0.0.1", port: 0 });
    const target: Target = { baseUrl: server.url, model: "m", kind: "foretoken" };
    const health = await call(target, "/health");
    expect([health.status, health.json.status, health.json.error.message]).toEqual([503, "loading", "loading the model (42%)"]);
    const refused = await call(target, COMPLETIONS, say("a"));
    expect([refused.status, refused.json.error.code]).toEqual([503, "engine_loading"]);
    expect((await call(target, "/slots")).status).toBe(404);
    await server.close(0);
  });

  test("a port that is taken is one clear line", async () => {
    const port = Number(new URL((await startLocal()).baseUrl).port);
    await expect(listen({ fetch: () => new Response() } as never, { host: "127.0.0.1", port })).rejects.toThrow(`port ${port} on 127.0.0.1 is in use; choose another with --port, or 0 for any free one`);
  });

  test("a drain lets running requests finish and refuses new ones", async () => {
    const { server, target } = await start({ engine: { nCtxSeq: 20_000 } });
    const running = post(target, say("@@repeat 3000 ab ", { stream: true, max_tokens: 20_000 })).then(async (response) => response.text());
    await until(() => server.engine.snapshot().slots.some((slot) => slot.phase === "decode"));
    const closed = server.engine.close(20_000);
    const refused = await call(target, COMPLETIONS, say("@@say no"));
    expect([refused.status, refused.json.error.code]).toEqual([503, "shutting_down"]);
    const { chunks, isDone } = parseEvents(await running);
    expect(isDone).toBe(true);
    expect(textOf(chunks).length).toBe(9000);
    await closed;
    expect((await call(target, "/health")).json.status).toBe("stopped");
  });
});

describe("reasoning of the server", () => {
  test.each([
    ["off", {}, "<think>\n\n</think>\n\n"],
    ["on", {}, ""],
    ["auto", { reasoning_effort: "none" }, "<think>\n\n</think>\n\n"],
    ["off", { chat_template_kwargs: { enable_thinking: true } }, ""],
  ] as const)("%s, request %j", async (reasoning, more, tail) => {
    const target = await startLocal({ settings: { reasoning } });
    const { json } = await call(target, "/apply-template", { messages: [{ role: "user", content: "q" }], ...more });
    expect(json.prompt).toBe(`<|im_start|>user\nq<|im_end|>\n<|im_start|>assistant\n${tail}`);
  });

  test("a prompt that ends inside <think> makes the answer begin as reasoning", async () => {
    const template = "{% for m in messages %}{{ m.content }}{% endfor %}<|im_end|><think>\n";
    const target = await startLocal({ template });
    const { json } = await call(target, "/v1/chat/completions", { messages: [{ role: "user", content: "@@say why</think>\n\nfour" }] });
    expect(json.choices[0].message).toEqual({ role: "assistant", content: "four", reasoning_content: "why" });
  });
});
