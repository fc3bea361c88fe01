/** Node's HTTP server around the app: limits on headers, a clear error for a port that is taken, an orderly end. */
import { createServer, type Server } from "node:http";
import type { AddressInfo } from "node:net";
import { getRequestListener } from "@hono/node-server";
import type { createApp } from "./app.ts";
import { UserError, hasErrorCode } from "../util/errors.ts";

export interface HttpServer {
  /** http://host:port as a client writes it. */
  readonly url: string;
  /** Stops listening, lets what is being answered finish for `graceMs`, then cuts the rest. */
  close(graceMs: number): Promise<void>;
}

const MAX_HEADER_BYTES = 32 << 10;
const HEADERS_TIMEOUT_MS = 30_000;
const UPLOAD_TIMEOUT_MS = 120_000;

/** @throws {UserError} when the address cannot be listened on. */
export async function listen(app: ReturnType<typeof createApp>, { host, port }: { readonly host: string; readonly port: number }): Promise<HttpServer> {
  const server = createServer(
    { maxHeaderSize: MAX_HEADER_BYTES, headersTimeout: HEADERS_TIMEOUT_MS, requestTimeout: UPLOAD_TIMEOUT_MS, keepAliveTimeout: 65_000 },
    // Node's own globals stay as they are.
    getRequestListener((request, env) => app.fetch(request, env), { overrideGlobalObjects: false }) as (...args: unknown[]) => void,
  );
  // Whether a body is wanted is decided where it is read.
  server.on("checkContinue", (incoming, outgoing) => server.emit("request", incoming, outgoing));
  await new Promise<void>((resolve, reject) => {
    server.once("error", (error) => reject(listenError(error, host, port)));
    server.listen(port, host, resolve);
  });
  const { port: actual } = server.address() as AddressInfo;
  const shown = host === "0.0.0.0" ? "127.0.0.1" : host === "::" ? "[::1]" : host.includes(":") ? `[${host}]` : host;
  return { url: `http://${shown}:${actual}`, close: async (graceMs) => closeServer(server, graceMs) };
}

function listenError(error: Error, host: string, port: number): Error {
  if (hasErrorCode(error, "EADDRINUSE")) return new UserError(`port ${port} on ${host} is in use; choose another with --port, or 0 for any free one`);
  if (hasErrorCode(error, "EACCES")) return new UserError(`port ${port} on ${host} may not be opened by this user; choose one above 1023 with --port`);
  if (hasErrorCode(error, "EADDRNOTAVAIL") || hasErrorCode(error, "ENOTFOUND")) return new UserError(`${host} is no address of this machine; check --host`);
  return error;
}

async function closeServer(server: Server, graceMs: number): Promise<void> {
  await new Promise<void>((resolve) => {
    const timer = setTimeout(() => server.closeAllConnections(), graceMs);
    server.close(() => {
      clearTimeout(timer);
      resolve();
    });
    server.closeIdleConnections();
  });
}
