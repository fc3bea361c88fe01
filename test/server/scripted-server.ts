/** A whole server on the scripted engine: HTTP, process border and text side are the real ones. */
import { createApp } from "../../src/server/app.ts";
import { ChatTemplate } from "../../src/server/chat-template.ts";
import { startEngineProcess, type EngineProcess, type EngineProcessOptions } from "../../src/server/engine-process.ts";
import { listen } from "../../src/server/http-server.ts";
import type { ServerSettings } from "../../src/server/server-context.ts";
import { silentLogger, type Logger } from "../../src/util/log.ts";
import { byteTokenizer } from "./byte-tokenizer.ts";
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

const defaultSettings: ServerSettings = {
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

export async function startScriptedServer(options: ScriptedServerOptions = {}): Promise<ScriptedServer> {
  const logger = options.logger ?? silentLogger;
  const engine = startEngineProcess({ entry: new URL("./scripted-child.ts", import.meta.url), options: options.engine ?? {}, logger, ...options.process });
  const text = { tokenizer: byteTokenizer, template: new ChatTemplate(options.template ?? byteTokenizer.chatTemplate, byteTokenizer) };
  const settings = { ...defaultSettings, ...options.settings };
  const server = await listen(createApp({ settings, engine, text: () => text, logger }), { host: "127.0.0.1", port: 0 });
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
