/**
 * Who may call. Loopback and no CORS by default are not enough against a web page in the user's own browser, which
 * can send to 127.0.0.1 and can point its own name there: so a foreign Origin is refused, and on loopback a Host that
 * does not name this machine.
 */
import { createHash, timingSafeEqual } from "node:crypto";
import type { MiddlewareHandler } from "hono";
import type { HttpBindings } from "@hono/node-server";
import { ApiError } from "./api-error.ts";
import { dashboardPaths } from "./dashboard-files.ts";
import type { ServerSettings } from "./server-context.ts";

type Middleware = MiddlewareHandler<{ Bindings: HttpBindings }>;

/** Paths that need no key: a health check, and the page, which holds no data. */
const publicPaths: ReadonlySet<string> = new Set(["/health", "/v1/health", ...dashboardPaths]);

const digest = (text: string): Buffer => createHash("sha256").update(text).digest();

/** Compares digests of equal length in constant time, and every key, so that time tells nothing. */
export function createKeyCheck(keys: readonly string[]): (given: string) => boolean {
  const digests = keys.map(digest);
  return (given) => {
    const wanted = digest(given);
    return digests.map((known) => timingSafeEqual(known, wanted)).includes(true);
  };
}

export function requireKey(settings: ServerSettings): Middleware {
  const isKnown = createKeyCheck(settings.apiKeys);
  return async (c, next) => {
    if (settings.apiKeys.length > 0 && !publicPaths.has(c.req.path)) {
      const [, bearer = ""] = /^Bearer +(\S+) *$/i.exec(c.req.header("authorization") ?? "") ?? [];
      const given = bearer === "" ? (c.req.header("x-api-key") ?? "") : bearer;
      if (given === "") throw new ApiError(401, "an API key is needed: send it as Authorization: Bearer KEY", { code: "missing_api_key" });
      if (!isKnown(given)) throw new ApiError(401, "the API key is not known to this server", { code: "invalid_api_key" });
    }
    await next();
  };
}

const loopbackNames: ReadonlySet<string> = new Set(["localhost", "127.0.0.1", "[::1]"]);

export function guardOrigin(settings: ServerSettings): Middleware {
  const { corsOrigins, isLoopback } = settings;
  return async (c, next) => {
    const host = c.req.header("host") ?? "";
    if (isLoopback && host !== "" && !loopbackNames.has(hostName(host)))
      throw new ApiError(403, `this server listens on loopback and does not answer for the host "${host}"; use --host to serve a network`, { code: "wrong_host" });
    const origin = c.req.header("origin");
    if (origin !== undefined && !isSameOrigin(origin, host)) {
      if (!corsOrigins.includes("*") && !corsOrigins.includes(origin))
        throw new ApiError(403, `web pages of ${origin} may not call this server; allow them with --cors-origins`, { code: "wrong_origin" });
      allow(c.env.outgoing, origin);
      if (c.req.method === "OPTIONS") return c.body(null, 204);
    }
    await next();
    return undefined;
  };
}

/** On Node's response, so that streams which bypass Hono carry them too. */
function allow(outgoing: HttpBindings["outgoing"], origin: string): void {
  outgoing.setHeader("access-control-allow-origin", origin);
  outgoing.setHeader("vary", "origin");
  outgoing.setHeader("access-control-allow-methods", "GET, POST, OPTIONS");
  outgoing.setHeader("access-control-allow-headers", "authorization, content-type, x-api-key");
  outgoing.setHeader("access-control-max-age", "600");
}

function hostName(host: string): string {
  return host.replace(/:\d+$/, "").toLowerCase();
}

function isSameOrigin(origin: string, host: string): boolean {
  try {
    return new URL(origin).host === host.toLowerCase();
  } catch {
    return false;
  }
}
