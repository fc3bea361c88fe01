/** The plan of a sweep: servers, concurrencies, rounds, and the order of its cells. YAML or JSON. */
import { createHash } from "node:crypto";
import * as z from "zod";
import { usageError } from "../util/errors.ts";
import { fillIn, splitCommand } from "./managed-server.ts";
import { LoadOptions, PartialLoad } from "./options.ts";

const SweepServer = z
  .strictObject({
    name: z.string().regex(/^[\w.+-]+$/, "letters, digits and .+-_ only: it names files"),
    /** Program and arguments; {port} is filled in. `foretoken` is this program. */
    command: z.union([z.string(), z.array(z.coerce.string())]).optional(),
    /** A server that runs already. */
    url: z.string().optional(),
    /** Model name for requests; default: the server's name here. */
    model: z.string().optional(),
    apiKey: z.string().optional(),
    env: z.record(z.string(), z.coerce.string()).optional(),
    readyTimeout: z.number().positive().default(600),
    /** Name of the server that ratios are taken against; default: the plan's. */
    baseline: z.string().optional(),
    /** Concurrencies this server is measured at; default: all. */
    concurrency: z.array(z.int().min(1)).optional(),
    /** Marks output that is not model text (synthetic acceptance, random weights). */
    synthetic: z.boolean().default(false),
    note: z.string().optional(),
    /** Stands for what else its measurements depend on, such as the contents of files: cells of another salt are not taken. */
    salt: z.string().optional(),
    load: PartialLoad.optional(),
  })
  .refine((server) => (server.command === undefined) !== (server.url === undefined), "needs either `command` or `url`");

const SweepPlan = z.strictObject({
  name: z.string().regex(/^[\w.-]+$/, "letters, digits and .-_ only: it names a folder"),
  title: z.string().optional(),
  vars: z.record(z.string(), z.coerce.string()).default({}),
  servers: z.array(SweepServer).min(1),
  baseline: z.string().optional(),
  concurrency: z.array(z.int().min(1)).min(1).default([1, 4, 8, 16]),
  rounds: z.int().min(1).default(1),
  /**
   * rounds: each round starts every server anew, in alternating order. servers: each is started once and does all its
   * rounds. cells: all run at once and take turns cell by cell (idle ones must cost nothing but memory).
   */
  order: z.enum(["rounds", "servers", "cells"]).default("rounds"),
  load: PartialLoad.default({}),
  /** Changes of the load at one concurrency. */
  at: z.record(z.string().regex(/^\d+$/, "a concurrency"), PartialLoad).default({}),
  /** Stop before this many seconds have passed; a later run goes on where this one stopped. */
  budget: z.number().positive().optional(),
});

export type SweepServer = z.output<typeof SweepServer>;
export type SweepPlan = z.output<typeof SweepPlan>;

/** One measurement: a server at a concurrency in a round. */
export interface Cell {
  readonly server: SweepServer;
  readonly concurrency: number;
  readonly round: number;
  readonly load: LoadOptions;
  /** Changes when anything that the measurement depends on changes. */
  readonly key: string;
}

/** @throws {UserError} exit code 2 for a plan that does not fit, unknown names, variables without value. */
export function checkPlan(raw: unknown, sets: readonly string[] = [], where = "plan"): SweepPlan {
  const parsed = SweepPlan.safeParse(raw);
  if (!parsed.success) {
    const issue = parsed.error.issues[0];
    throw usageError(`${where}: ${issue?.path.join(".") ?? ""}: ${issue?.message ?? "not valid"}`);
  }
  const plan = parsed.data;
  const names = plan.servers.map((s) => s.name);
  for (const name of [plan.baseline, ...plan.servers.map((s) => s.baseline)])
    if (name !== undefined && !names.includes(name)) throw usageError(`${where}: baseline ${name} is not among the servers ${names.join(", ")}`);
  if (new Set(names).size < names.length) throw usageError(`${where}: two servers have the same name`);
  const vars = { ...plan.vars, ...Object.fromEntries(sets.map(parseSet)) };
  return { ...plan, vars, servers: plan.servers.map((server) => fillServer(server, vars)) };
}

function parseSet(text: string): [string, string] {
  const at = text.indexOf("=");
  if (at < 1) throw usageError(`--set ${text}: must be NAME=VALUE`);
  return [text.slice(0, at), text.slice(at + 1)];
}

/** Variables are filled in now, so a missing one is known before anything starts; {port} stays. */
function fillServer(server: SweepServer, vars: Readonly<Record<string, string>>): SweepServer {
  const fill = (text: string): string => fillIn(text, { ...vars, port: "{port}" });
  const words = server.command === undefined ? undefined : typeof server.command === "string" ? splitCommand(server.command) : server.command;
  return {
    ...server,
    ...(words === undefined ? {} : { command: words.map(fill) }),
    ...(server.url === undefined ? {} : { url: fill(server.url) }),
    ...(server.env === undefined ? {} : { env: Object.fromEntries(Object.entries(server.env).map(([k, v]) => [k, fill(v)])) }),
  };
}

/** All cells in the order they are measured. Servers take turns: forward in even rounds, backward in odd ones. */
export function cellsOf(plan: SweepPlan): Cell[] {
  const rounds = Array.from({ length: plan.rounds }, (_, round) => round);
  const inTurn = (round: number): SweepServer[] => (round % 2 === 0 ? plan.servers : plan.servers.toReversed());
  const at = (server: SweepServer): number[] => plan.concurrency.filter((c) => server.concurrency?.includes(c) ?? true);
  switch (plan.order) {
    case "rounds":
      return rounds.flatMap((round) => inTurn(round).flatMap((server) => at(server).map((c) => cell(plan, server, c, round))));
    case "servers":
      return plan.servers.flatMap((server) => rounds.flatMap((round) => at(server).map((c) => cell(plan, server, c, round))));
    case "cells":
      return rounds.flatMap((round) => plan.concurrency.flatMap((c, i) => inTurn(round + i).flatMap((server) => (at(server).includes(c) ? [cell(plan, server, c, round)] : []))));
    default:
      return plan.order satisfies never;
  }
}

function cell(plan: SweepPlan, server: SweepServer, concurrency: number, round: number): Cell {
  const given = { ...plan.load, ...plan.at[String(concurrency)], ...server.load };
  // Every server gets the same prompts in a round; rounds and concurrencies get others.
  const seed = (given.seed ?? 1) + 1000 * round + concurrency;
  const parsed = LoadOptions.safeParse({ ...given, concurrency, seed });
  if (!parsed.success) throw usageError(`load at concurrency ${concurrency}: ${parsed.error.issues[0]?.path.join(".")}: ${parsed.error.issues[0]?.message}`);
  const { name, command, url, env, model, salt } = server;
  const key = createHash("sha256").update(JSON.stringify([name, command, url, env, model, parsed.data, round, salt])).digest("hex").slice(0, 16);
  return { server, concurrency, round, load: parsed.data, key };
}
