/** A small Hugging Face hub on loopback, with faults to order. */
import { createHash } from "node:crypto";
import * as http from "node:http";
import type { AddressInfo } from "node:net";

export interface Hub {
  readonly url: string;
  /** Requests for content, as `path start-end`. */
  readonly requests: string[];
  readonly files: Map<string, Buffer>;
  /** Break the connection after so many bytes of a content answer; used up one answer at a time. */
  readonly breakAfter: number[];
  /** Answer content with these bytes changed. */
  corrupt: boolean;
  token: string | undefined;
  close(): Promise<void>;
}

export const commit = "0123456789abcdef0123456789abcdef01234567";

function entryOf(name: string, content: Buffer): Record<string, unknown> {
  const oid = createHash("sha1").update(`blob ${content.length}\0`).update(content).digest("hex");
  const lfs = content.length > 1000 ? { lfs: { oid: createHash("sha256").update(content).digest("hex"), size: content.length, pointerSize: 134 } } : {};
  return { type: "file", path: name, size: content.length, oid, ...lfs };
}

export async function startHub(): Promise<Hub> {
  const hub = { url: "", requests: [] as string[], files: new Map<string, Buffer>(), breakAfter: [] as number[], corrupt: false, token: undefined as string | undefined };
  const server = http.createServer((request, response) => answer(hub, request, response));
  await new Promise<void>((resolve) => server.listen(0, "127.0.0.1", resolve));
  hub.url = `http://127.0.0.1:${(server.address() as AddressInfo).port}`;
  const close = async (): Promise<void> => {
    server.closeAllConnections();
    await new Promise((resolve) => server.close(resolve));
  };
  return Object.assign(hub, { close });
}

function answer(hub: Omit<Hub, "close">, request: http.IncomingMessage, response: http.ServerResponse): void {
  const { pathname } = new URL(request.url ?? "/", hub.url);
  const json = (value: unknown, status = 200): void => void response.writeHead(status, { "content-type": "application/json" }).end(JSON.stringify(value));
  if (hub.token !== undefined && request.headers.authorization !== `Bearer ${hub.token}`) return json({ error: "Invalid credentials" }, 401);
  const revision = /^\/api\/models\/owner\/model\/revision\/([^/]+)$/.exec(pathname)?.[1];
  if (revision !== undefined && ["main", "v1", commit].includes(revision)) return json({ _id: "1", id: "owner/model", sha: commit, private: false, lastModified: "2026-01-01T00:00:00Z" });
  if (pathname === `/api/models/owner/model/tree/${commit}`) return json([{ type: "directory", path: "sub", size: 0, oid: "0" }, ...[...hub.files].map(([name, content]) => entryOf(name, content))]);
  const name = pathname.startsWith(`/owner/model/resolve/${commit}/`) ? decodeURI(pathname.slice(`/owner/model/resolve/${commit}/`.length)) : undefined;
  const content = name === undefined ? undefined : hub.files.get(name);
  if (content === undefined) return json({ error: "Repository not found" }, 404);
  return sendContent(hub, name as string, content, request, response);
}

function sendContent(hub: Omit<Hub, "close">, name: string, content: Buffer, request: http.IncomingMessage, response: http.ServerResponse): void {
  const range = /^bytes=(\d+)-(\d+)?$/.exec(request.headers.range ?? "");
  const [start, end] = [Number(range?.[1] ?? 0), Math.min(Number(range?.[2] ?? content.length - 1), content.length - 1)];
  const isProbe = start === 0 && range?.[2] === "0";
  if (!isProbe) hub.requests.push(`${name} ${start}-${end}`);
  const bytes = Buffer.from(content.subarray(start, end + 1));
  if (hub.corrupt && !isProbe && bytes.length > 0) bytes[0] = (bytes[0] as number) ^ 255;
  response.writeHead(range === null ? 200 : 206, { etag: `"${name}"`, "content-length": bytes.length, ...(range === null ? {} : { "content-range": `bytes ${start}-${end}/${content.length}` }) });
  const limit = isProbe ? undefined : hub.breakAfter.shift();
  if (limit === undefined) response.end(bytes);
  else response.write(bytes.subarray(0, limit), () => setTimeout(() => response.destroy(), 20));
}
