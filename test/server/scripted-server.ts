/** A whole server on the scripted engine: HTTP, process border and text side are the real ones. */
import { createApp } from "../../src/server/app.ts";
import { ChatTemplate } from "../../src/server/chat-template.ts";
import { startEngineProcess, type EngineProcess, type EngineProcessOptions } from "../../src/server/engine-process.ts";
import { listen, type HttpServer } from "../../src/server/http-server.ts";
import type { ServerSettings } from "../../src/server/server-context.ts";
import type { ServerEngine } from "../../src/server/server-engine.ts";
import { silentLogger, type Logger } from "../../src/util/log.ts";
import { byteTokenizer } from "./byte-tokenizer.ts";
import { LocalEngine } from "./local-engine.ts";
import type { ScriptedOptions } from "./scripted-engine.ts";

export const scriptedModel = "scripted";

export interface ScriptedServerOptions {
  readonly engine?: ScriptedOptions;
  readonly process?: Partial<EngineProcessOptions>;
  readonly settings?: Partial<ServerSettings>;
  readonly template?: string;
  readonly logger?: Logger;
}

export interface ScriptedServer {
  readonly url: string;
  readonly engine: EngineProcess;
  close(graceMs?: number): Promise<void>;
}

export const defaultSettings: ServerSettings = {
  modelName: scriptedModel,
  apiKeys: [],
  corsOrigins: [],
  isLoopback: true,
  timeoutMs: 60_000,
  maxBodyBytes: 4 << 20,
  reasoning: "auto",
  templateVariables: {},
  seed: 0,
  cachePrompt: false,
  hasSlots: true,
  hasMetrics: true,
  hasDashboard: true,
};

/** The app on an engine in this process: quick to start. */
export async function startLocalServer(options: ScriptedServerOptions = {}): Promise<{ readonly url: string; close(): Promise<void> }> {
  const engine = new LocalEngine(options.engine ?? {});
  const url = await startHttp(engine, options);
  return {
    url: url.url,
    async close() {
      await engine.close();
      await url.close(100);
    },
  };
}

async function startHttp(engine: ServerEngine, options: ScriptedServerOptions): Promise<HttpServer> {
  const text = { tokenizer: byteTokenizer, template: new ChatTemplate(options.template ?? byteTokenizer.chatTemplate, byteTokenizer) };
  const settings = { ...defaultSettings, ...options.settings };
  return listen(createApp({ settings, engine, text: () => text, logger: options.logger ?? silentLogger }), { host: "127.0.0.1", port: 0 });
}

export async function startScriptedServer(options: ScriptedServerOptions = {}): Promise<ScriptedServer> {
  const logger = options.logger ?? silentLogger;
  const engine = startEngineProcess({ entry: new URL("./scripted-child.ts", import.meta.url), options: options.engine ?? {}, logger, ...options.process });
  const server = await startHttp(engine, options);
  await engine.ready;
  return {
    url: server.url,
    engine,
    async close(graceMs = 0) {
      await engine.close(graceMs);
      await server.close(100);
    },
  };
}
