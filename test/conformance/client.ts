/** HTTP as the suite sees it: nothing but fetch, and events parsed by hand so that their framing is tested too. */
import assert from "node:assert/strict";

export interface Target {
  /** Without a slash at the end, without /v1. */
  readonly baseUrl: string;
  readonly model: string;
  readonly apiKey?: string;
  /** What the server is: "any" server of this API, this project's, or this project's on the scripted engine. */
  readonly kind: "any" | "foretoken" | "scripted";
}

export interface Answer {
  readonly status: number;
  readonly headers: Headers;
  readonly text: string;
  /** Parsed body; undefined when it is not JSON. */
  readonly json: Json;
}

// Replies are checked field by field: their type is what the checks establish.
// oxlint-disable-next-line typescript/no-explicit-any
export type Json = any;

export interface Stream {
  readonly status: number;
  readonly headers: Headers;
  readonly chunks: readonly Json[];
  readonly isDone: boolean;
}

function init(target: Target, body: unknown, signal?: AbortSignal): RequestInit {
  const headers: Record<string, string> = { "content-type": "application/json" };
  if (target.apiKey !== undefined) headers["authorization"] = `Bearer ${target.apiKey}`;
  return { method: body === undefined ? "GET" : "POST", headers, ...(body === undefined ? {} : { body: typeof body === "string" ? body : JSON.stringify(body) }), ...(signal === undefined ? {} : { signal }) };
}

export async function call(target: Target, path: string, body?: unknown): Promise<Answer> {
  const response = await fetch(target.baseUrl + path, init(target, body));
  const text = await response.text();
  let json: Json;
  try {
    json = JSON.parse(text);
  } catch {
    json = undefined;
  }
  return { status: response.status, headers: response.headers, text, json };
}

/** A call that must succeed; returns the body. */
export async function ok(target: Target, path: string, body?: unknown): Promise<Json> {
  const answer = await call(target, path, body);
  assert.equal(answer.status, 200, `${path}: ${answer.text}`);
  return answer.json;
}

/** A call that must fail with this status, in OpenAI's shape; returns the error. */
export async function fails(target: Target, path: string, body: unknown, status: number): Promise<Json> {
  const answer = await call(target, path, body);
  assert.equal(answer.status, status, `${path}: ${answer.text.slice(0, 300)}`);
  assert.equal(typeof answer.json?.error?.message, "string", answer.text.slice(0, 300));
  assert.notEqual(answer.json.error.message, "");
  return answer.json.error;
}

/** Reads a whole stream. Every event must be `data:` with JSON, the last one [DONE]. */
export async function stream(target: Target, path: string, body: object): Promise<Stream> {
  const response = await fetch(target.baseUrl + path, init(target, { ...body, stream: true }));
  const text = await response.text();
  assert.equal(response.status, 200, text.slice(0, 300));
  assert.match(response.headers.get("content-type") ?? "", /^text\/event-stream/);
  return { status: response.status, headers: response.headers, ...parseEvents(text) };
}

/** A stream must end with it. */
export const NOT_DONE = "the stream ended without data: [DONE]";

export function parseEvents(text: string): { readonly chunks: readonly Json[]; readonly isDone: boolean } {
  const chunks: Json[] = [];
  let isDone = false;
  for (const event of text.split("\n\n")) {
    const lines = event.split("\n").filter((line) => line !== "" && !line.startsWith(":"));
    if (lines.length === 0) continue;
    assert.ok(!isDone, `an event after [DONE]: ${event}`);
    const data = lines.map((line) => {
      assert.match(line, /^data: /, `not a data line: ${line}`);
      return line.slice(6);
    });
    if (data.join("\n") === "[DONE]") isDone = true;
    else chunks.push(JSON.parse(data.join("\n")));
  }
  return { chunks, isDone };
}

/** Opens a stream, reads until `until` says so, then closes the connection. Returns what was read. */
export async function abandon(target: Target, path: string, body: object, until: (text: string) => boolean): Promise<string> {
  const controller = new AbortController();
  const response = await fetch(target.baseUrl + path, init(target, { ...body, stream: true }, controller.signal));
  let text = "";
  const decoder = new TextDecoder();
  const reader = (response.body as ReadableStream<Uint8Array>).getReader();
  while (!until(text)) {
    const part = await reader.read();
    if (part.done) break;
    text += decoder.decode(part.value, { stream: true });
  }
  controller.abort();
  return text;
}

/** Text of choice `index`, from deltas or text chunks. */
export function textOf(chunks: readonly Json[], index = 0): string {
  return choicesOf(chunks, index).map((choice) => choice.delta?.content ?? choice.text ?? "").join("");
}

export function choicesOf(chunks: readonly Json[], index = 0): Json[] {
  return chunks.flatMap((chunk) => (chunk.choices as Json[]).filter((choice) => choice.index === index));
}

export function finishReasonOf(chunks: readonly Json[], index = 0): string {
  const reasons = choicesOf(chunks, index).map((choice) => choice.finish_reason).filter((reason) => reason !== null);
  assert.equal(reasons.length, 1, `exactly one chunk has a finish_reason, not ${reasons.length}`);
  return reasons[0];
}
