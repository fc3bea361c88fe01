import * as fs from "node:fs";
import * as path from "node:path";
import { checkServeOptions, serveOptions, type ServeOptions } from "../config/server-options.ts";
import { engineOptions } from "../config/engine-options.ts";
import { defineCommand, type Io } from "../config/command.ts";
import { createApp } from "../server/app.ts";
import { startEngineProcess } from "../server/engine-process.ts";
import { listen } from "../server/http-server.ts";
import type { ModelText, ServerSettings } from "../server/server-context.ts";
import { usageError } from "../util/errors.ts";
import { statFile } from "../util/files.ts";
import { formatBytes } from "../util/format.ts";
import { createLogger, type Logger } from "../util/log.ts";
import { createProgress } from "../util/progress.ts";
import type { EngineStart } from "./engine-child.ts";
import { readModelText } from "./model-text.ts";

/** After the drain, answers that are written need a moment to reach their clients. */
const FLUSH_MS = 2000;

export const command = defineCommand({
  name: "serve",
  summary: "an OpenAI-compatible server, with or without drafts",
  details: "Names of flags are llama-server's where it has them. The engine runs in a process of its own and is restarted when it dies.",
  options: serveOptions,
  async run(options, io) {
    checkServeOptions(options);
    for (const file of [options.model, ...options.specDraftModel]) statFile(file, "model");
    const logger = createLogger();
    const settings = serverSettings(options);
    const progress = createProgress("loading", { total: 100, format: (percent) => String(Math.round(percent)) });
    let text: ModelText | undefined;
    const engine = startEngineProcess({
      entry: new URL(import.meta.url.endsWith(".ts") ? "./engine-child.ts" : "./engine-child.js", import.meta.url),
      options: engineStart(options),
      maxQueue: options.maxQueue,
      hangMs: options.hangTimeout * 1000,
      logger,
      onProgress: (fraction, what) => progress.update(fraction * 100, what),
    });
    const close = async (graceMs: number): Promise<void> => engine.close(graceMs);
    try {
      const server = await listen(createApp({ settings, engine, text: () => text, logger }), options);
      try {
        text = readModelText(options.model, options);
        const info = await Promise.race([engine.ready, whenAborted(io.signal)]);
        progress.end();
        if (info !== undefined) announce(server.url, settings, engine.info, options, io);
        await whenAborted(io.signal);
        await drain(engine, options.drainTimeout, logger);
      } finally {
        await server.close(FLUSH_MS);
      }
    } finally {
      progress.end();
      await close(0);
    }
  },
});

async function drain(engine: { close(graceMs: number): Promise<void> }, seconds: number, logger: Logger): Promise<void> {
  logger.info("draining: no new requests, running ones may finish", { seconds });
  await engine.close(seconds * 1000);
}

/** Resolves when Ctrl-C or SIGTERM comes. */
async function whenAborted(signal: AbortSignal): Promise<undefined> {
  if (signal.aborted) return undefined;
  return new Promise((resolve) => signal.addEventListener("abort", () => resolve(undefined), { once: true }));
}

function serverSettings(options: ServeOptions): ServerSettings {
  const isLoopback = ["127.0.0.1", "localhost", "::1"].includes(options.host);
  return {
    modelName: options.alias ?? path.basename(options.model).replace(/\.gguf$/i, ""),
    apiKeys: [...options.apiKey, ...keysOfFile(options.apiKeyFile)],
    corsOrigins: (options.corsOrigins ?? "").split(",").map((origin) => origin.trim()).filter((origin) => origin !== ""),
    isLoopback,
    timeoutMs: options.timeout * 1000,
    maxBodyBytes: Math.round(options.maxBodyMib * 2 ** 20),
    reasoning: options.reasoning,
    templateVariables: options.chatTemplateKwargs ?? {},
    seed: options.seed,
    cachePrompt: options.cachePrompt || options.cacheRam > 0,
    hasSlots: options.slots,
    hasMetrics: options.metrics,
    hasDashboard: options.dashboard,
  };
}

function keysOfFile(file: string | undefined): string[] {
  if (file === undefined) return [];
  statFile(file, "--api-key-file");
  const keys = fs.readFileSync(file, "utf8").split("\n").map((line) => line.trim()).filter((line) => line !== "");
  if (keys.length === 0) throw usageError(`--api-key-file ${file} holds no key; write one a line`);
  return keys;
}

/** Only the engine's own options cross to its process: no key, no address. */
function engineStart(options: ServeOptions): EngineStart {
  const known = new Set(Object.keys(engineOptions.shape));
  const engine = Object.fromEntries(Object.entries(options).filter(([key]) => known.has(key))) as EngineStart["engine"];
  // The parent counts running and waiting requests together; a burst waits whole in the engine until its next step.
  return { engine, maxQueue: options.maxQueue + options.parallel, nGroups: options.decodeGroups, hangMs: options.hangTimeout * 1000 };
}

function announce(url: string, settings: ServerSettings, info: { readonly nSlots: number; readonly nCtxSeq: number; readonly nMax: number; readonly device: string; readonly loadMs: number; readonly loadedBytes: number } | undefined, options: ServeOptions, io: Io): void {
  if (info === undefined) return;
  const { nSlots, nCtxSeq, nMax, device, loadMs, loadedBytes } = info;
  if (io.json) {
    io.out(JSON.stringify({ url, model: settings.modelName, nSlots, nCtxSeq, nMax, device, loadMs, loadedBytes }));
    return;
  }
  const drafts = nMax === 0 ? "no drafts" : `drafts of up to ${nMax}, ${options.specGate} gate`;
  io.out(`${settings.modelName} at ${url}/v1 (${nSlots} slots of ${nCtxSeq} tokens, ${drafts}, ${device}, ${formatBytes(loadedBytes)} loaded in ${(loadMs / 1000).toFixed(1)} s)`);
  if (!settings.isLoopback && settings.apiKeys.length === 0) io.note("warning: everyone on the network can use this server; set --api-key");
  if (settings.hasDashboard) io.note(`dashboard at ${url}/`);
}
