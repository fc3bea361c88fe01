/**
 * One HTTP exchange over node:http, with its own idea of connections. By default every request opens a new one: on
 * loopback that costs a tenth of a millisecond, while a pooled connection that the server has just closed (llama-server
 * does so after some 100 requests) costs a failed request. With keep-alive, a reused connection that dies before any
 * answer is replaced once.
 */
import * as http from "node:http";
import * as https from "node:https";
import { hasErrorCode } from "../util/errors.ts";
import type { FailureKind } from "./record.ts";

export class HttpFailure extends Error {
  override readonly name: string = "HttpFailure";
  readonly kind: FailureKind;

  constructor(kind: FailureKind, message: string) {
    super(message);
    this.kind = kind;
  }
}

export interface Exchange {
  readonly method: "GET" | "POST";
  readonly url: string;
  readonly headers?: Readonly<Record<string, string>>;
  readonly body?: string;
  /** Limit for the whole exchange, in ms. */
  readonly timeoutMs?: number;
  readonly signal?: AbortSignal;
  readonly onStatus?: (status: number) => void;
  readonly onData?: (bytes: Buffer) => void;
}

export interface Connections {
  /** Resolves at the end of the answer with the number of replaced connections. @throws {HttpFailure} */
  exchange(request: Exchange): Promise<number>;
  close(): void;
}

export function createConnections({ keepAlive = false } = {}): Connections {
  const agentOptions = { keepAlive, noDelay: true, maxSockets: Infinity, scheduling: "lifo" as const };
  const agents = { "http:": new http.Agent(agentOptions), "https:": new https.Agent(agentOptions) };
  return {
    async exchange(request) {
      try {
        await once(request, agents);
        return 0;
      } catch (error) {
        if (!(error instanceof StaleConnection)) throw error;
        await once(request, undefined);
        return 1;
      }
    },
    close() {
      agents["http:"].destroy();
      agents["https:"].destroy();
    },
  };
}

/** A reused connection was closed by the server before it answered: safe to send again. */
class StaleConnection extends Error {}

function once(request: Exchange, agents: { "http:": http.Agent; "https:": https.Agent } | undefined): Promise<void> {
  const url = new URL(request.url);
  const isSecure = url.protocol === "https:";
  return new Promise((resolve, reject) => {
    let hasAnswer = false;
    const headers: Record<string, string> = { accept: "*/*", ...request.headers };
    if (request.body !== undefined) headers["content-length"] = String(Buffer.byteLength(request.body));
    const agent = agents === undefined ? false : isSecure ? agents["https:"] : agents["http:"];
    const req = (isSecure ? https : http).request(url, { method: request.method, headers, agent });
    const timer = request.timeoutMs === undefined ? undefined : setTimeout(() => fail(new HttpFailure("timeout", `no end after ${request.timeoutMs} ms`)), request.timeoutMs);
    const onAbort = (): void => fail(new HttpFailure("aborted", "stopped by the client"));
    let stopListening: (() => void) | undefined;
    const settle = (): void => {
      clearTimeout(timer);
      stopListening?.();
    };
    const fail = (error: Error): void => {
      settle();
      req.destroy();
      reject(error);
    };
    req.on("error", (error) => fail(!hasAnswer && req.reusedSocket && isBroken(error) ? new StaleConnection() : describe(error, hasAnswer)));
    req.on("response", (res) => {
      hasAnswer = true;
      request.onStatus?.(res.statusCode ?? 0);
      res.on("data", (bytes: Buffer) => request.onData?.(bytes));
      res.on("error", (error) => fail(describe(error, true)));
      res.on("close", () => {
        if (!res.complete) return fail(new HttpFailure("reset", "the connection broke in the middle of the answer"));
        settle();
        resolve();
      });
    });
    if (request.signal?.aborted === true) return onAbort();
    if (request.signal !== undefined) stopListening = listenForAbort(request.signal, onAbort);
    req.end(request.body);
  });
}

const abortListeners = new WeakMap<AbortSignal, Set<() => void>>();

/** One listener on the signal for all exchanges: adding to an EventTarget walks through those that are there, 512 times 512. */
function listenForAbort(signal: AbortSignal, onAbort: () => void): () => void {
  const listeners = abortListeners.get(signal) ?? new Set<() => void>();
  if (!abortListeners.has(signal)) {
    abortListeners.set(signal, listeners);
    signal.addEventListener("abort", () => listeners.forEach((listener) => listener()), { once: true });
  }
  listeners.add(onAbort);
  return () => void listeners.delete(onAbort);
}

const isBroken = (error: Error): boolean => hasErrorCode(error, "ECONNRESET") || hasErrorCode(error, "EPIPE");

function describe(error: Error, hasAnswer: boolean): HttpFailure {
  if (hasAnswer || isBroken(error)) return new HttpFailure("reset", error.message);
  const message = error instanceof AggregateError && error.message === "" ? error.errors.map((e: Error) => e.message).join("; ") : error.message;
  return new HttpFailure("connect", message);
}

/** GET of a small JSON or text answer. Undefined when there is none: no server, not 2xx. */
export async function getText(url: string, options: { timeoutMs?: number; signal?: AbortSignal; headers?: Readonly<Record<string, string>> } = {}): Promise<string | undefined> {
  const pieces: Buffer[] = [];
  let status = 0;
  const connections = createConnections();
  try {
    await connections.exchange({ method: "GET", url, timeoutMs: 10_000, ...options, onStatus: (s) => (status = s), onData: (b) => pieces.push(b) });
  } catch (error) {
    if (error instanceof HttpFailure) return undefined;
    throw error;
  } finally {
    connections.close();
  }
  return status >= 200 && status < 300 ? Buffer.concat(pieces).toString("utf8") : undefined;
}
