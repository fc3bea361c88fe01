/** The plan of a certificate: servers, modes on them, and what each mode is compared with. YAML. */
import * as path from "node:path";
import * as z from "zod";
import { fillIn, splitCommand } from "../bench/managed-server.ts";
import { usageError } from "../util/errors.ts";
import { readYaml } from "../util/yaml-file.ts";

const name = z.string().regex(/^[\w .,+-]+$/, "letters, digits, blanks and .,+- only: it names files");

const Server = z
  .strictObject({
    name,
    /** Program and arguments; {port} is filled in. `foretoken` is this program. */
    command: z.union([z.string(), z.array(z.coerce.string())]).optional(),
    url: z.string().optional(),
    model: z.string().optional(),
    env: z.record(z.string(), z.coerce.string()).optional(),
    readyTimeout: z.number().positive().default(600),
  })
  .refine((s) => (s.command === undefined) !== (s.url === undefined), "needs either `command` or `url`");

const Mode = z.strictObject({
  name,
  server: name,
  concurrency: z.int().min(1).default(1),
  /** Start the server anew, to see whether a restart changes anything. */
  restart: z.boolean().default(false),
  /** Fields merged into each request, such as {"speculative": {"n_max": 0}}. */
  body: z.record(z.string(), z.unknown()).default({}),
  /** Modes it is compared with; default: the plan's reference. */
  against: z.array(name).optional(),
  /** Decodes without drafts. */
  plain: z.boolean().default(false),
  note: z.string().optional(),
});

const CertifyPlan = z.strictObject({
  name: z.string().regex(/^[\w.-]+$/, "letters, digits and .-_ only: it names a folder"),
  title: z.string().optional(),
  vars: z.record(z.string(), z.coerce.string()).default({}),
  prompts: z.int().min(1).default(64),
  promptFile: z.string().optional(),
  endpoint: z.enum(["auto", "chat", "completions"]).default("auto"),
  maxTokens: z.int().min(1).default(300),
  ignoreEos: z.boolean().default(true),
  seed: z.int().min(0).default(1),
  timeout: z.number().positive().default(600),
  /** Mode that others are compared with. */
  reference: name,
  /** What the reference is, in words. */
  referenceText: z.string().optional(),
  servers: z.array(Server).min(1),
  modes: z.array(Mode).min(2),
});
export type CertifyPlan = z.output<typeof CertifyPlan>;
export type CertifyMode = z.output<typeof Mode>;
export type CertifyServer = z.output<typeof Server>;

/** @throws {UserError} exit code 2 for a plan that does not parse or names what is not there. */
export function loadCertifyPlan(file: string, sets: readonly string[] = []): CertifyPlan {
  return checkCertifyPlan(readYaml(file, "plan"), sets, path.basename(file));
}

export function checkCertifyPlan(raw: unknown, sets: readonly string[] = [], where = "plan"): CertifyPlan {
  const parsed = CertifyPlan.safeParse(raw);
  if (!parsed.success) throw usageError(`${where}: ${parsed.error.issues[0]?.path.join(".") ?? ""}: ${parsed.error.issues[0]?.message ?? "not valid"}`);
  const plan = parsed.data;
  const modes = plan.modes.map((m) => m.name);
  const servers = plan.servers.map((s) => s.name);
  if (new Set(modes).size < modes.length) throw usageError(`${where}: two modes have the same name`);
  for (const wanted of [plan.reference, ...plan.modes.flatMap((m) => m.against ?? [])]) if (!modes.includes(wanted)) throw usageError(`${where}: mode ${wanted} is not defined; there are ${modes.join(", ")}`);
  for (const m of plan.modes) if (!servers.includes(m.server)) throw usageError(`${where}: server ${m.server} is not defined; there are ${servers.join(", ")}`);
  const vars: Record<string, string> = { ...plan.vars };
  for (const set of sets) {
    const at = set.indexOf("=");
    if (at < 1) throw usageError(`--set ${set}: must be NAME=VALUE`);
    vars[set.slice(0, at)] = set.slice(at + 1);
  }
  // Twice: a value may name another.
  const fill = (text: string): string => fillIn(fillIn(text, { ...vars, port: "{port}" }), { ...vars, port: "{port}" });
  return {
    ...plan,
    vars,
    servers: plan.servers.map((s) => ({
      ...s,
      ...(s.command === undefined ? {} : { command: (typeof s.command === "string" ? splitCommand(s.command) : s.command).map(fill) }),
      ...(s.url === undefined ? {} : { url: fill(s.url) }),
    })),
  };
}
