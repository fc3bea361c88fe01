/** Runs a certificate's modes, keeps each capture as soon as it is there, and compares them. Goes on where it was stopped. */
import { createHash } from "node:crypto";
import * as fs from "node:fs";
import * as path from "node:path";
import { localConditions, serverProps } from "../bench/conditions.ts";
import { endLeftovers } from "../bench/leftovers.ts";
import { startServer, type ManagedServer } from "../bench/managed-server.ts";
import type { Target } from "../bench/run.ts";
import { createWorkload } from "../bench/workload.ts";
import { writeTextAtomic } from "../util/files.ts";
import { formatDuration } from "../util/format.ts";
import { capture, type Capture } from "./capture.ts";
import { certify, type Certificate, type JudgedComparison } from "./certificate.ts";
import type { CertifyMode, CertifyPlan, CertifyServer } from "./certify-plan.ts";
import { compareCaptures } from "./compare.ts";

export interface CertifyContext {
  readonly signal?: AbortSignal;
  readonly note: (text: string) => void;
  readonly fresh?: boolean;
}

/** @throws {UserError} when a server does not start or a request fails. */
export async function runCertificate(plan: CertifyPlan, folder: string, context: CertifyContext): Promise<Certificate> {
  for (const pid of endLeftovers(path.join(folder, "running"))) context.note(`ended server ${pid} that a killed run had left behind`);
  const captures = new Map<string, Capture>();
  const server = new OneServer(plan, folder, context);
  try {
    for (const mode of inServerOrder(plan)) captures.set(mode.name, await captureMode(plan, mode, folder, server, context));
  } finally {
    await server.stop();
  }
  const judged = plan.modes.flatMap((mode) => comparisonsOf(plan, mode, captures));
  const title = plan.title ?? plan.name;
  return certify(title, plan.referenceText ?? plan.reference, plan.maxTokens, judged);
}

/** The reference first, then modes that share a server together, so that each starts as seldom as can be. */
function inServerOrder(plan: CertifyPlan): CertifyMode[] {
  const first = plan.modes.find((m) => m.name === plan.reference)?.server;
  const order = [...new Set([first, ...plan.servers.map((s) => s.name)])];
  return plan.modes.toSorted((a, b) => order.indexOf(a.server) - order.indexOf(b.server) || Number(a.restart) - Number(b.restart));
}

export const captureFile = (folder: string, mode: CertifyMode): string => path.join(folder, "captures", `${mode.name.replaceAll(" ", "-")}.json`);

async function captureMode(plan: CertifyPlan, mode: CertifyMode, folder: string, server: OneServer, context: CertifyContext): Promise<Capture> {
  const file = captureFile(folder, mode);
  const definition = plan.servers.find((s) => s.name === mode.server) as CertifyServer;
  const key = createHash("sha256").update(JSON.stringify([mode, definition, { ...plan, modes: [], servers: [], title: "", name: "" }])).digest("hex").slice(0, 16);
  const kept = context.fresh === true ? undefined : readCapture(file, key);
  if (kept !== undefined) return kept;
  const target = await server.get(definition, mode.restart);
  const prompts = createWorkload({ n: plan.prompts, nWarmup: 0, maxTokens: plan.maxTokens, seed: plan.seed, endpoint: plan.endpoint, promptFile: plan.promptFile, randomRangeRatio: 0, randomVocab: 4000, sharedPrefixLen: 0 }).measured;
  const startMs = performance.now();
  const made = await capture(target, {
    name: mode.name,
    // A file with fewer prompts than asked is used over again: the names must still differ.
    prompts: prompts.map((p, i) => ({ ...p, id: `${i}:${p.id}` })),
    concurrency: mode.concurrency,
    maxTokens: plan.maxTokens,
    ignoreEos: plan.ignoreEos,
    margins: isReference(plan, mode),
    extraBody: mode.body,
    timeoutMs: plan.timeout * 1000,
    ...(context.signal === undefined ? {} : { signal: context.signal }),
  });
  await writeTextAtomic(file, `${JSON.stringify({ key, conditions: localConditions(), server: server.commandLine(), props: await serverProps(target), ...made })}\n`);
  context.note(`${mode.name}: ${made.outputs.length} outputs in ${formatDuration(performance.now() - startMs)}`);
  return made;
}

/** Margins are wanted of whatever others are compared with. */
function isReference(plan: CertifyPlan, mode: CertifyMode): boolean {
  return mode.name === plan.reference || plan.modes.some((m) => m.against?.includes(mode.name) === true);
}

function readCapture(file: string, key: string): Capture | undefined {
  try {
    const stored = JSON.parse(fs.readFileSync(file, "utf8")) as Capture & { key: string };
    return stored.key === key ? stored : undefined;
  } catch {
    return undefined;
  }
}

function comparisonsOf(plan: CertifyPlan, mode: CertifyMode, captures: ReadonlyMap<string, Capture>): JudgedComparison[] {
  const against = mode.against ?? (mode.name === plan.reference ? [] : [plan.reference]);
  return against.map((name) => ({ comparison: compareCaptures(captures.get(name) as Capture, captures.get(mode.name) as Capture), note: mode.note ?? null, isPlain: mode.plain }));
}

/** At most one server of the plan runs at a time. */
class OneServer {
  readonly #plan: CertifyPlan;
  readonly #folder: string;
  readonly #context: CertifyContext;
  #name: string | undefined;
  #managed: ManagedServer | undefined;
  #nStarts = 0;

  constructor(plan: CertifyPlan, folder: string, context: CertifyContext) {
    this.#plan = plan;
    this.#folder = folder;
    this.#context = context;
  }

  async get(server: CertifyServer, restart: boolean): Promise<Target> {
    const model = server.model ?? this.#plan.name;
    if (server.url !== undefined) return { baseUrl: server.url, model };
    if (this.#name !== server.name || restart || this.#managed === undefined) {
      await this.stop();
      this.#context.note(`starting ${server.name}`);
      this.#managed = await startServer({ name: server.name, command: server.command as string[], env: server.env, logFile: path.join(this.#folder, "logs", `${server.name.replaceAll(" ", "-")}.${++this.#nStarts}.log`), readyTimeoutMs: server.readyTimeout * 1000, signal: this.#context.signal, noteFolder: path.join(this.#folder, "running") });
      this.#name = server.name;
    }
    return { baseUrl: this.#managed.url, model };
  }

  commandLine(): string | undefined {
    return this.#managed?.commandLine;
  }

  async stop(): Promise<void> {
    const managed = this.#managed;
    this.#managed = undefined;
    await managed?.stop();
  }
}
