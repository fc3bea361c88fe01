/** The routes. Handlers are in files of their own; this one says what is where. */
import { Hono, type Context } from "hono";
import type { HttpBindings } from "@hono/node-server";
import { errorMessage } from "../util/errors.ts";
import type { Logger } from "../util/log.ts";
import { ApiError, toApiError } from "./api-error.ts";
import { dashboardFile, dashboardPaths } from "./dashboard-files.ts";
import { handleChat } from "./handle-chat.ts";
import { handleCompletion } from "./handle-completion.ts";
import { handleApplyTemplate, handleDetokenize, handleTokenize } from "./handle-tokens.ts";
import { metricsText } from "./metrics.ts";
import { guardOrigin, requireKey } from "./security.ts";
import type { ModelText, ServerContext, ServerSettings } from "./server-context.ts";
import type { ServerEngine } from "./server-engine.ts";
import { ServerStats } from "./server-stats.ts";
import { modelList, props, slots, status } from "./views.ts";

export interface AppDependencies {
  readonly settings: ServerSettings;
  readonly engine: ServerEngine;
  /** Undefined while the model file is being read. */
  readonly text: () => ModelText | undefined;
  readonly logger: Logger;
}

type App = Hono<{ Bindings: HttpBindings }>;
type Handler = (c: Context<{ Bindings: HttpBindings }>, context: ServerContext) => Response | Promise<Response>;

export function createApp({ settings, engine, text, logger }: AppDependencies): App {
  const app: App = new Hono();
  let lastId = 0;
  const context: ServerContext = {
    settings,
    engine,
    logger,
    stats: new ServerStats(),
    nextId: () => ++lastId,
    get text() {
      const known = text();
      if (known === undefined) throw new ApiError(503, "the model file is being read", { code: "engine_loading", retryAfterS: 1 });
      return known;
    },
  };
  app.onError((error) => answerError(error, logger));
  app.notFound((c) => answerError(new ApiError(404, `there is no ${c.req.method} ${c.req.path} here`, { code: "unknown_url" }), logger));
  app.use(guardOrigin(settings));
  app.use(requireKey(settings));
  addApi(app, context);
  addViews(app, context);
  return app;
}

/** One handler under several paths; any other method there is 405. */
function route(app: App, context: ServerContext, method: "GET" | "POST", paths: readonly string[], handler: Handler): void {
  for (const path of paths) {
    app.on(method, path, async (c) => handler(c, context));
    app.all(path, (c) => answerError(new ApiError(405, `${c.req.path} takes ${method}, not ${c.req.method}`, { code: "wrong_method" }), context.logger));
  }
}

function addApi(app: App, context: ServerContext): void {
  route(app, context, "POST", ["/v1/chat/completions", "/chat/completions"], handleChat);
  route(app, context, "POST", ["/v1/completions", "/completions"], handleCompletion);
  route(app, context, "POST", ["/tokenize"], handleTokenize);
  route(app, context, "POST", ["/detokenize"], handleDetokenize);
  route(app, context, "POST", ["/apply-template"], handleApplyTemplate);
  route(app, context, "POST", ["/v1/embeddings", "/embeddings", "/embedding"], () => {
    throw new ApiError(501, "this server generates text and makes no embeddings; use a server with an embedding model", { code: "unsupported_endpoint" });
  });
}

function addViews(app: App, context: ServerContext): void {
  const { settings, engine } = context;
  route(app, context, "GET", ["/health", "/v1/health"], () => health(engine));
  route(app, context, "GET", ["/v1/models", "/models"], () => Response.json(modelList(context)));
  route(app, context, "GET", ["/v1/models/:id"], (c) => {
    const model = modelList(context).data[0];
    if (c.req.param("id") !== settings.modelName) throw new ApiError(404, `the model here is ${settings.modelName}`, { code: "model_not_found", param: "model" });
    return Response.json(model);
  });
  route(app, context, "GET", ["/props"], () => Response.json(props(context)));
  route(app, context, "GET", ["/status"], () => Response.json(status(context)));
  if (settings.hasSlots) route(app, context, "GET", ["/slots"], (c) => slotsResponse(c.req.query("fail_on_no_slot") === "1", context));
  if (settings.hasMetrics)
    route(app, context, "GET", ["/metrics"], () => new Response(metricsText(context), { headers: { "content-type": "text/plain; version=0.0.4; charset=utf-8" } }));
  if (settings.hasDashboard) for (const path of dashboardPaths) route(app, context, "GET", [path], () => dashboardFile(path));
}

/** 200 when requests are served, else 503 with the reason. */
function health(engine: ServerEngine): Response {
  if (engine.state === "ready") return Response.json({ status: "ok" });
  const reason = engine.stateReason === "" ? engine.state : engine.stateReason;
  const error = new ApiError(503, reason, { code: `engine_${engine.state}`, retryAfterS: 1 });
  return Response.json({ status: engine.state, ...error.body }, { status: 503, headers: error.headers });
}

function slotsResponse(mustHaveFree: boolean, context: ServerContext): Response {
  const list = slots(context);
  const isFull = list.every((slot) => slot.is_processing);
  return Response.json(list, { status: mustHaveFree && isFull ? 503 : 200 });
}

function answerError(error: unknown, logger: Logger): Response {
  const known = toApiError(error);
  if (known.status === 500) logger.error("request failed", { error: error instanceof Error ? (error.stack ?? error.message) : errorMessage(error) });
  return Response.json(known.body, { status: known.status === 499 ? 400 : known.status, headers: known.headers });
}
