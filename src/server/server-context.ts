/** What every handler of the server shares. */
import type { Logger } from "../util/log.ts";
import type { ChatTemplate } from "./chat-template.ts";
import type { ServerEngine } from "./server-engine.ts";
import type { ServerStats } from "./server-stats.ts";
import type { Tokenizer } from "./tokenizer.ts";

export interface ServerSettings {
  /** Name of the model in the API. */
  readonly modelName: string;
  readonly apiKeys: readonly string[];
  /** Origins that browsers may call from; "*" for all. Empty: none but this server's own pages. */
  readonly corsOrigins: readonly string[];
  /** True when only this machine can reach the server: then the Host header must name this machine. */
  readonly isLoopback: boolean;
  readonly timeoutMs: number;
  readonly maxBodyBytes: number;
  readonly reasoning: "auto" | "on" | "off";
  readonly templateVariables: Readonly<Record<string, unknown>>;
  /** Seed of requests that name none; 0: a new one each. */
  readonly seed: number;
  /** Whether requests that do not say so use the prompt cache. */
  readonly cachePrompt: boolean;
  readonly hasSlots: boolean;
  readonly hasMetrics: boolean;
  readonly hasDashboard: boolean;
}

/** What reading the model file gives. */
export interface ModelText {
  readonly tokenizer: Tokenizer;
  readonly template: ChatTemplate;
}

export interface ServerContext {
  readonly settings: ServerSettings;
  readonly engine: ServerEngine;
  /** @throws {ApiError} 503 while the model file is being read. */
  readonly text: ModelText;
  readonly stats: ServerStats;
  readonly logger: Logger;
  /** A number that no other request of this server has. */
  nextId(): number;
}
