/**
 * Server-sent events on a Node response. It never waits for the client: what the socket does not take at once is
 * buffered by Node, and a client whose buffer passes the limit is cut off, so that no reader can hold an engine.
 */
import type { ServerResponse } from "node:http";

/** 1 MiB is some ten thousand chunks: a reader that far behind is not reading. */
const BUFFER_LIMIT_BYTES = 1 << 20;
const PING_INTERVAL_MS = 15_000;

export class SseWriter {
  readonly #response: ServerResponse;
  readonly #ping: NodeJS.Timeout;
  #isSlow = false;

  constructor(response: ServerResponse) {
    this.#response = response;
    response.writeHead(200, { "content-type": "text/event-stream; charset=utf-8", "cache-control": "no-cache", "x-accel-buffering": "no" });
    response.flushHeaders();
    response.socket?.setNoDelay(true);
    this.#ping = setInterval(() => this.#write(": ping\n\n"), PING_INTERVAL_MS);
    response.once("close", () => clearInterval(this.#ping));
  }

  /** True once the client was cut off for not reading. */
  get isSlow(): boolean {
    return this.#isSlow;
  }

  /** Several chunks in one write: one packet for what one step brought. */
  send(chunks: readonly unknown[]): void {
    if (chunks.length === 0) return;
    this.#write(chunks.map((chunk) => `data: ${JSON.stringify(chunk)}\n\n`).join(""));
  }

  end(): void {
    clearInterval(this.#ping);
    this.#write("data: [DONE]\n\n");
    this.#response.end();
  }

  /** An error in the middle of a stream: an event of its own, then the end without [DONE]. */
  fail(body: unknown): void {
    clearInterval(this.#ping);
    this.#write(`data: ${JSON.stringify(body)}\n\n`);
    this.#response.end();
  }

  #write(text: string): void {
    if (this.#response.destroyed || this.#response.writableEnded) return;
    this.#response.write(text);
    if (this.#response.writableLength <= BUFFER_LIMIT_BYTES) return;
    this.#isSlow = true;
    this.#response.destroy();
  }
}
