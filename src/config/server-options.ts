/** What the HTTP side of `serve` adds to the engine options. */
import * as z from "zod";
import { usageError } from "../util/errors.ts";
import { checkEngineOptions, engineOptions } from "./engine-options.ts";

const jsonObject = z
  .string()
  .transform((text, context): Readonly<Record<string, unknown>> => {
    try {
      const value: unknown = JSON.parse(text);
      if (typeof value === "object" && value !== null && !Array.isArray(value)) return value as Record<string, unknown>;
    } catch {
      // Reported below, like any other value that is not an object.
    }
    context.addIssue(`a JSON object is needed, as in {"enable_thinking":false}`);
    return {};
  })
  .optional();

export const serverOptions = z.strictObject({
  host: z.string().min(1).default("127.0.0.1").meta({ description: "address to listen on; 0.0.0.0 for every network", placeholder: "HOST" }),
  port: z.int().min(0).max(65535).default(8080).meta({ description: "port to listen on; 0: any free one", placeholder: "N" }),
  alias: z.string().min(1).optional().meta({ short: "a", description: "model name in the API; default: the file's name", placeholder: "NAME" }),
  apiKey: z.array(z.string().min(1)).default([]).meta({ description: "key that clients must send", placeholder: "KEY", env: "FORETOKEN_API_KEY" }),
  apiKeyFile: z.string().optional().meta({ description: "file with one key a line", placeholder: "FILE" }),
  corsOrigins: z.string().optional().meta({ description: "origins that browsers may call from, comma-separated; * for all; default: none", placeholder: "LIST" }),
  timeout: z.number().min(0).default(600).meta({ description: "most seconds for one request; 0: no limit", placeholder: "S" }),
  maxQueue: z.int().min(0).default(512).meta({ description: "requests that may wait for a slot; more get 429", placeholder: "N" }),
  decodeGroups: z.int().min(1).max(64).default(1).meta({ description: "slots in this many groups that decode at the same time, each with contexts of its own: a few rows leave most of a large GPU idle", placeholder: "N" }),
  maxBodyMib: z.number().min(0.001).default(16).meta({ description: "largest request body", placeholder: "MIB" }),
  drainTimeout: z.number().min(0).default(30).meta({ description: "seconds that running requests get after SIGTERM or Ctrl-C", placeholder: "S" }),
  hangTimeout: z.number().min(0).default(120).meta({ description: "seconds without a sign of life before the engine is restarted; 0: never", placeholder: "S" }),
  reasoning: z.enum(["auto", "on", "off"]).default("auto").meta({ description: "thinking in chats: as the template does, always, or never" }),
  chatTemplateFile: z.string().optional().meta({ description: "Jinja chat template instead of the model's own", placeholder: "FILE" }),
  chatTemplateKwargs: jsonObject.meta({ description: "further variables of the chat template, as a JSON object", placeholder: "JSON" }),
  slots: z.boolean().default(true).meta({ description: "GET /slots" }),
  metrics: z.boolean().default(true).meta({ description: "GET /metrics" }),
  dashboard: z.boolean().default(true).meta({ description: "the page at /" }),
});
export type ServerOptions = z.output<typeof serverOptions>;

export const serveOptions = z.strictObject({ ...engineOptions.shape, ...serverOptions.shape });
export type ServeOptions = z.output<typeof serveOptions>;

/** @throws {UserError} exit code 2. */
export function checkServeOptions(options: ServeOptions): void {
  checkEngineOptions(options);
  if (options.decodeGroups > options.parallel) throw usageError(`--decode-groups ${options.decodeGroups} is above --parallel ${options.parallel}: each group needs a slot; lower it`);
  if (options.apiKey.some((key) => /[^\x21-\x7e]/.test(key))) throw usageError("--api-key takes printable ASCII without spaces: a header carries it");
}
