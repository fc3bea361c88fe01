/**
 * An OpenAI-compatible server that follows a script. Time is a number that the script sets before each piece it sends;
 * the next piece waits until the client has read the last, so recorded times equal the script's whatever the machine does.
 */
import * as http from "node:http";
import type { AddressInfo, Socket } from "node:net";

export type Step =
  | { readonly atMs: number; readonly event: unknown }
  | { readonly atMs: number; readonly raw: string }
  /** Cuts the connection in the middle. */
  | { readonly atMs: number; readonly cut: true };

export interface Script {
  readonly status?: number;
  readonly steps: readonly Step[];
}

export const textEvent = (text: string, more: Record<string, unknown> = {}): unknown => ({ choices: [{ index: 0, text, finish_reason: null }], ...more });
export const deltaEvent = (content: string): unknown => ({ choices: [{ index: 0, delta: { content }, finish_reason: null }] });
export const endEvent = (nOutput: number, more: Record<string, unknown> = {}): unknown => ({
  choices: [{ index: 0, text: "", finish_reason: "length" }],
  usage: { prompt_tokens: 10, completion_tokens: nOutput, prompt_tokens_details: { cached_tokens: 4 } },
  ...more,
});
export const done = (atMs: number): Step => ({ atMs, raw: "data: [DONE]\n\n" });

export interface FakeServer {
  readonly url: string;
  readonly now: () => number;
  /** To be given to the client: a piece was read. */
  readonly onBytes: () => void;
  readonly bodies: Record<string, unknown>[];
  readonly nConnections: () => number;
  /** Closes every idle connection, as a server does after some requests. */
  dropIdle(): Promise<void>;
  close(): Promise<void>;
}

/** With `isPaced: false` pieces are sent at once, for tests that do not look at times. */
export async function startFakeServer(script: (index: number, path: string) => Script, { isPaced = true } = {}): Promise<FakeServer> {
  let nowMs = 0;
  let nRequests = 0;
  let wake: (() => void) | undefined;
  let nConnections = 0;
  const sockets = new Set<Socket>();
  const bodies: Record<string, unknown>[] = [];
  const play = async (steps: readonly Step[], res: http.ServerResponse): Promise<void> => {
    for (const step of steps) {
      nowMs = step.atMs;
      if ("cut" in step) return void res.destroy();
      const read = new Promise<void>((resolve) => (wake = resolve));
      res.write("raw" in step ? step.raw : `data: ${JSON.stringify(step.event)}\n\n`);
      if (isPaced) await read;
    }
    res.end();
  };
  const server = http.createServer((req, res) => {
    const pieces: Buffer[] = [];
    req.on("data", (b: Buffer) => pieces.push(b));
    req.on("end", () => {
      if (pieces.length > 0) bodies.push(JSON.parse(Buffer.concat(pieces).toString("utf8")) as Record<string, unknown>);
      const { status = 200, steps } = script(req.method === "POST" ? nRequests++ : -1, req.url ?? "");
      res.writeHead(status, { "content-type": "text/event-stream" });
      if (req.method === "POST") void play(steps, res);
      else res.end(steps.map((step) => ("raw" in step ? step.raw : "")).join(""));
    });
  });
  server.on("connection", (socket) => {
    nConnections++;
    sockets.add(socket);
    socket.on("close", () => sockets.delete(socket));
  });
  await new Promise<void>((resolve) => server.listen(0, "127.0.0.1", resolve));
  return {
    url: `http://127.0.0.1:${(server.address() as AddressInfo).port}`,
    now: () => nowMs,
    onBytes: () => wake?.(),
    bodies,
    nConnections: () => nConnections,
    dropIdle: async () => {
      const closed = [...sockets].map((s) => new Promise((resolve) => s.once("close", resolve)));
      for (const socket of sockets) socket.resetAndDestroy();
      await Promise.all(closed);
    },
    close: () =>
      new Promise<void>((resolve) => {
        server.close(() => resolve());
        server.closeAllConnections();
      }),
  };
}
