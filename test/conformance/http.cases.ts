import assert from "node:assert/strict";
import { request as httpRequest } from "node:http";
import { connect } from "node:net";
import { anyCase, ownCase, scriptedCase } from "./case.ts";
import { abandon, call, fails, ok, stream, textOf, type Json, type Target } from "./client.ts";
import { promptOf } from "./completions.cases.ts";

const COMPLETIONS = "/v1/completions";
const CHAT = "/v1/chat/completions";

/** Runs until it is cancelled; on a real model long enough for what else happens. */
const endless = (target: Target): object => ({ model: target.model, prompt: target.kind === "scripted" ? "@@hold tick tick tick" : promptOf(target), max_tokens: target.kind === "scripted" ? 1e8 : 1500, ignore_eos: true, temperature: 0 });

async function untilTrue(what: string, condition: () => Promise<boolean>): Promise<void> {
  for (let i = 0; i < 400; i++) {
    if (await condition()) return;
    await new Promise((resolve) => setTimeout(resolve, 10));
  }
  assert.fail(what);
}

async function nBusySlots(target: Target): Promise<number> {
  return ((await ok(target, "/slots")) as Json[]).filter((slot) => slot.is_processing).length;
}

/** Sends bytes as they are and returns all that comes back until the connection ends. */
async function raw(target: Target, text: string): Promise<string> {
  const { hostname, port } = new URL(target.baseUrl);
  return new Promise((resolve, reject) => {
    const socket = connect(Number(port), hostname, () => void socket.write(text));
    let answer = "";
    socket.on("data", (part) => {
      answer += part.toString();
    });
    socket.on("close", () => resolve(answer));
    socket.on("error", reject);
    socket.setTimeout(3000, () => socket.destroy());
  });
}

const authorization = (target: Target): string => (target.apiKey === undefined ? "" : `Authorization: Bearer ${target.apiKey}\r\n`);

export const httpCases = [
  anyCase("http: health says ok", async (target) => {
    assert.equal((await ok(target, "/health")).status, "ok");
  }),

  anyCase("http: /v1/models lists the model", async (target) => {
    const body = await ok(target, "/v1/models");
    assert.equal(body.object, "list");
    assert.ok(body.data.some((model: Json) => model.id === target.model && model.object === "model"), `no model ${target.model} in the list`);
  }),

  anyCase("http: tokens of a text and the text of tokens", async (target) => {
    const content = "héllo 🙂\nworld";
    const { tokens } = await ok(target, "/tokenize", { content });
    assert.ok(tokens.length > 0 && tokens.every(Number.isInteger), JSON.stringify(tokens));
    assert.equal((await ok(target, "/detokenize", { tokens })).content.trimStart(), content);
    const pieces = (await ok(target, "/tokenize", { content, with_pieces: true })).tokens as Json[];
    const bytes = pieces.flatMap(({ piece }) => (typeof piece === "string" ? [...Buffer.from(piece)] : piece));
    assert.equal(Buffer.from(bytes).toString().trimStart(), content);
  }),

  anyCase("http: /props names the slots and the template", async (target) => {
    const body = await ok(target, "/props");
    assert.ok(body.total_slots > 0, `total_slots ${body.total_slots}`);
    assert.equal(typeof body.chat_template, "string");
  }),

  anyCase("http: wrong requests are 400 in OpenAI's shape", async (target) => {
    await fails(target, CHAT, "{not json", 400);
    await fails(target, CHAT, { model: target.model }, 400);
    await fails(target, CHAT, { model: target.model, messages: "hello" }, 400);
    await fails(target, COMPLETIONS, { model: target.model }, 400);
    await fails(target, CHAT, { model: target.model, messages: [{ role: "user", content: "a" }], response_format: { type: "xml" } }, 400);
  }),

  ownCase("http: a wrong field is named", async (target) => {
    const message = { role: "user", content: "a" };
    const wrong: readonly (readonly [object, string])[] = [
      [{ messages: [{ role: "robot", content: "a" }] }, "messages[0].role"],
      [{ messages: [message], temperature: -1 }, "temperature"],
      [{ messages: [message], max_tokens: 1.5 }, "max_tokens"],
      [{ messages: [message], max_tokens: 0 }, "max_tokens"],
      [{ messages: [message], top_p: 2 }, "top_p"],
      [{ messages: [message], stop: [""] }, "stop[0]"],
      [{ messages: [message], n: 0 }, "n"],
      [{ messages: [message], logit_bias: { 999999999: 1 } }, "logit_bias"],
      [{ messages: [message], best_of: 3 }, "best_of"],
      [{ messages: [message], mirostat: 2 }, "mirostat"],
      [{ messages: [{ role: "user", content: [{ type: "image_url", image_url: { url: "x" } }] }] }, "messages[0].content[0].type"],
      [{ messages: [message], tool_choice: "required" }, "tool_choice"],
      [{ messages: [message], top_logprobs: 3 }, "top_logprobs"],
    ];
    for (const [body, param] of wrong) {
      const error = await fails(target, CHAT, { model: target.model, ...body }, 400);
      assert.equal(error.param, param, JSON.stringify(body));
      assert.equal(error.type, "invalid_request_error");
      assert.match(String(error.code), /^(invalid_value|unsupported_parameter)$/, JSON.stringify(body));
    }
    const unknown = await ok(target, CHAT, { model: target.model, messages: [message], max_tokens: 1, some_field_of_another_server: 1, user: "u" });
    assert.equal(unknown.choices.length, 1);
  }),

  anyCase("http: a prompt longer than the context is 400 before any header, streaming or not", async (target) => {
    const { default_generation_settings: settings } = await ok(target, "/props");
    const content = "word ".repeat(settings.n_ctx + 100);
    for (const isStream of [false, true]) {
      const answer = await call(target, CHAT, { model: target.model, messages: [{ role: "user", content }], stream: isStream });
      assert.equal(answer.status, 400);
      assert.match(answer.headers.get("content-type") ?? "", /^application\/json/);
      if (target.kind !== "any") assert.equal(answer.json.error.code, "context_length_exceeded");
    }
  }),

  anyCase("http: the end of the context ends an answer with length", async (target) => {
    const props = await ok(target, "/props");
    const nCtx = props.default_generation_settings.n_ctx as number;
    const unit = await ok(target, "/tokenize", { content: "word ".repeat(100) });
    const nWords = Math.floor(((nCtx - 40) / unit.tokens.length) * 100);
    const script = target.kind === "scripted" ? "@@forever x" : "";
    const body = await ok(target, COMPLETIONS, { model: target.model, prompt: `${"word ".repeat(nWords - (script === "" ? 0 : 10))}${script}`, ignore_eos: true, temperature: 0 });
    assert.equal(body.choices[0].finish_reason, "length");
    assert.ok(body.usage.total_tokens <= nCtx + 1, `${body.usage.total_tokens} tokens in a context of ${nCtx}`);
    assert.ok(body.usage.total_tokens >= nCtx - 8, `only ${body.usage.total_tokens} tokens of a context of ${nCtx}`);
  }),

  anyCase("http: embeddings are refused with an error", async (target) => {
    const answer = await call(target, "/v1/embeddings", { model: target.model, input: "a" });
    assert.ok(answer.status >= 400 && answer.status <= 501, String(answer.status));
    assert.equal(typeof answer.json.error.message, "string");
  }),

  anyCase("http: an unknown path is 404 with an error", async (target) => {
    await fails(target, "/v1/nothing", undefined, 404);
  }),

  ownCase("http: a wrong method is 405, a model that is not here 404", async (target) => {
    await fails(target, CHAT, undefined, 405);
    await fails(target, "/v1/models/another", undefined, 404);
    assert.equal((await ok(target, `/v1/models/${encodeURIComponent(target.model)}`)).id, target.model);
  }),

  anyCase("http: a client that leaves frees its slot", async (target) => {
    const text = await abandon(target, COMPLETIONS, endless(target), (got) => got.includes("\n\n"));
    assert.match(text, /^data: /);
    await untilTrue("the slot is still busy", async () => (await nBusySlots(target)) === 0);
  }),

  anyCase("http: more requests than slots are all answered", async (target) => {
    const prompt = promptOf(target);
    const bodies = await Promise.all(Array.from({ length: 12 }, async () => ok(target, COMPLETIONS, { model: target.model, prompt, max_tokens: 8, ignore_eos: true, temperature: 0 })));
    for (const body of bodies) assert.equal(body.usage.completion_tokens, 8);
  }),

  anyCase("http: a waiting client that leaves cancels only itself", async (target) => {
    const { total_slots: nSlots } = await ok(target, "/props");
    const stop = new AbortController();
    const running = Array.from({ length: nSlots }, async () => abandonAt(target, stop.signal));
    await untilTrue("the slots do not fill", async () => (await nBusySlots(target)) === nSlots);
    const waiting = new AbortController();
    const left = abandonAt(target, waiting.signal);
    const kept = stream(target, COMPLETIONS, { model: target.model, prompt: promptOf(target), max_tokens: 6, temperature: 0 });
    await new Promise((resolve) => setTimeout(resolve, 50));
    waiting.abort();
    await left;
    assert.equal(await nBusySlots(target), nSlots, "the running ones go on");
    stop.abort();
    await Promise.all(running);
    assert.notEqual(textOf((await kept).chunks), "");
    await untilTrue("slots stay busy", async () => (await nBusySlots(target)) === 0);
  }),

  ownCase("http: metrics count what was delivered", async (target) => {
    const read = async (name: string): Promise<number> => {
      const answer = await call(target, "/metrics");
      assert.equal(answer.status, 200);
      const line = answer.text.split("\n").find((l) => l.startsWith(`foretoken:${name} `));
      assert.ok(line !== undefined, name);
      return Number(line.split(" ")[1]);
    };
    const before = await read("tokens_delivered_total");
    const { usage } = await ok(target, COMPLETIONS, { model: target.model, prompt: promptOf(target), max_tokens: 9, temperature: 0 });
    assert.equal(await read("tokens_delivered_total"), before + usage.completion_tokens);
    await untilTrue("tokens_predicted_total stays behind", async () => (await read("tokens_predicted_total")) >= usage.completion_tokens);
    assert.ok((await read("spec_decode_num_accepted_tokens_total")) <= (await read("spec_decode_num_draft_tokens_total")), "more tokens accepted than drafted");
    assert.equal(await read("http_requests_active"), 0);
  }),

  ownCase("http: every metric has its HELP and TYPE, and no line is malformed", async (target) => {
    const { text } = await call(target, "/metrics");
    const typed = new Set<string>();
    for (const line of text.trimEnd().split("\n")) {
      const type = /^# TYPE (\S+) (counter|gauge|histogram)$/.exec(line);
      if (type !== null) typed.add(type[1] as string);
      else if (!line.startsWith("# HELP ")) {
        const sample = /^([a-z_:]+)(\{[a-z]+="[^"]*"(,[a-z]+="[^"]*")*\})? (-?[\d.e+-]+)$/.exec(line);
        assert.ok(sample !== null, line);
        assert.ok(typed.has((sample[1] as string).replace(/_(bucket|sum|count)$/, "")) || typed.has(sample[1] as string), line);
      }
    }
    assert.ok(typed.size > 20, `only ${typed.size} metrics`);
  }),

  ownCase("http: a body above the limit is 413, a header above it 431, a compressed body 415", async (target) => {
    const size = await fails(target, COMPLETIONS, { model: target.model, prompt: "x".repeat(20 << 20) }, 413);
    assert.equal(size.code, "body_too_large");
    assert.match(await raw(target, `GET /health HTTP/1.1\r\nHost: localhost\r\nX-Long: ${"x".repeat(40_000)}\r\n\r\n`), /^HTTP\/1\.1 431/);
    assert.match(await raw(target, `POST ${COMPLETIONS} HTTP/1.1\r\nHost: localhost\r\n${authorization(target)}Connection: close\r\nContent-Encoding: gzip\r\nContent-Length: 2\r\n\r\n{}`), /^HTTP\/1\.1 415/);
  }),

  anyCase("http: a body announced with Expect: 100-continue is asked for and answered", async (target) => {
    const url = new URL(target.baseUrl + COMPLETIONS);
    const body = JSON.stringify({ model: target.model, prompt: promptOf(target), max_tokens: 2 });
    const [wasAskedFor, status] = await new Promise<[boolean, number]>((resolve, reject) => {
      let isAsked = false;
      const headers = { "content-type": "application/json", expect: "100-continue", "content-length": Buffer.byteLength(body), ...(target.apiKey === undefined ? {} : { authorization: `Bearer ${target.apiKey}` }) };
      const sent = httpRequest(url, { method: "POST", headers }, (response) => {
        response.resume();
        response.on("end", () => resolve([isAsked, response.statusCode ?? 0]));
      });
      sent.on("continue", () => {
        isAsked = true;
        sent.end(body);
      });
      sent.on("error", reject);
      sent.flushHeaders();
      // A server that knows no 100-continue waits for the body.
      setTimeout(() => (isAsked ? undefined : sent.end(body)), 1000).unref();
    });
    assert.equal(status, 200);
    if (target.kind !== "any") assert.ok(wasAskedFor, "no 100 Continue");
  }),

  ownCase("http: other origins are refused and get no CORS headers by default", async (target) => {
    const answer = await raw(target, `OPTIONS ${CHAT} HTTP/1.1\r\nHost: localhost\r\nOrigin: https://evil.example\r\nAccess-Control-Request-Method: POST\r\nConnection: close\r\n\r\n`);
    assert.match(answer, /^HTTP\/1\.1 403/);
    assert.doesNotMatch(answer, /access-control-allow/i);
    const { headers } = await call(target, "/health");
    assert.equal(headers.get("access-control-allow-origin"), null);
  }),

  ownCase("http: the dashboard and its files come from here", async (target) => {
    const page = await call(target, "/");
    assert.equal(page.status, 200);
    assert.match(page.headers.get("content-type") ?? "", /^text\/html/);
    for (const [, path = ""] of page.text.matchAll(/(?:src|href)="([^"#]+)"/g)) {
      if (path.startsWith("data:")) continue;
      assert.match(path, /^\//, `${path} is not of this server`);
      assert.equal((await call(target, path)).status, 200, path);
    }
  }),

  scriptedCase("http: a stream begins before its end", async (target) => {
    const text = await abandon(target, CHAT, { ...endless(target), messages: [{ role: "user", content: "@@hold tock tock" }] }, (got) => got.includes(`"content":"t`));
    assert.match(text, /"content":/);
    await untilTrue("the slot is still busy", async () => (await nBusySlots(target)) === 0);
  }),
];

async function abandonAt(target: Target, signal: AbortSignal): Promise<void> {
  const headers: Record<string, string> = { "content-type": "application/json", ...(target.apiKey === undefined ? {} : { authorization: `Bearer ${target.apiKey}` }) };
  try {
    const response = await fetch(target.baseUrl + COMPLETIONS, { method: "POST", headers, body: JSON.stringify({ ...endless(target), stream: true }), signal });
    for await (const _part of response.body as unknown as AsyncIterable<Uint8Array>);
  } catch (error) {
    if (!signal.aborted) throw error;
  }
}
