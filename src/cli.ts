#!/usr/bin/env node
/** argv -> command; nothing else. The only place that ends the process. */
import type { Command, Io } from "./config/command.ts";
import { helpText } from "./config/command.ts";
import { parsePlain, type Flag } from "./config/flags.ts";
import { UserError, usageError } from "./util/errors.ts";
import { packageVersion } from "./util/paths.ts";
import { nearest } from "./util/suggest.ts";
import { verbs } from "./commands/verbs.ts";

function overview(): string {
  const width = Math.max(...Object.keys(verbs).map((name) => name.length)) + 2;
  return [
    "foretoken: gives a GGUF model a multi-token-prediction draft head, and finds out honestly whether it pays",
    "",
    "usage: foretoken <verb> [flags]     foretoken <verb> --help shows the flags of a verb",
    "",
    ...Object.entries(verbs).map(([name, verb]) => `  ${name.padEnd(width)}${verb.summary}`),
  ].join("\n");
}

/** Runs one command line and returns the exit code: 0 done, 1 failed, 2 wrong usage. */
export async function main(argv: readonly string[]): Promise<number> {
  const { name, rest } = splitVerb(argv);
  if (name === undefined || name === "--help" || name === "-h" || name === "help") {
    console.log(overview());
    return name === undefined ? 2 : 0;
  }
  if (name === "--version" || name === "version") {
    console.log(packageVersion);
    return 0;
  }
  const verb = verbs[name];
  if (verb === undefined) {
    const hint = nearest(name, Object.keys(verbs));
    throw usageError(`unknown verb "${name}"${hint === undefined ? "; foretoken --help lists the verbs" : `; did you mean ${hint}?`}`);
  }
  if (rest.includes("--version")) {
    console.log(packageVersion);
    return 0;
  }
  const json = rest.includes("--json");
  const quiet = rest.includes("--quiet");
  if (quiet) process.env["FORETOKEN_PROGRESS"] ??= "off";
  const command: Command = await verb.load();
  const { flags, options, help } = await readArguments(command, rest.filter((a) => a !== "--json" && a !== "--quiet"));
  if (help) {
    console.log(helpText(command, flags));
    return 0;
  }
  const io: Io = {
    out: (text) => void process.stdout.write(`${text}\n`),
    note: (text) => void (quiet || process.stderr.write(`${text}\n`)),
    json,
    signal: signalOnInterrupt(),
  };
  return (await command.run(options, io)) ?? 0;
}

/** Option schemas are loaded only for the verbs that have one: zod takes longer to load than a header to read. */
async function readArguments({ options: set, positionals }: Command, argv: readonly string[]): Promise<{ readonly flags: readonly Flag[]; readonly options: unknown; readonly help: boolean }> {
  if ("flags" in set) return { flags: set.flags, ...parsePlain(set, argv, positionals) };
  const { flagsOf, parseArguments } = await import("./config/options.ts");
  return { flags: flagsOf(set), ...parseArguments(set, argv, positionals) };
}

/** The longest run of leading words that names a verb: "bench", "bench sweep", "probe determinism capture". */
function splitVerb(argv: readonly string[]): { name: string | undefined; rest: readonly string[] } {
  for (let n = 3; n > 1; n--) {
    const name = argv.slice(0, n).join(" ");
    if (argv.length >= n && name in verbs) return { name, rest: argv.slice(n) };
  }
  return { name: argv[0], rest: argv.slice(1) };
}

function signalOnInterrupt(): AbortSignal {
  const controller = new AbortController();
  const stop = (signal: NodeJS.Signals): void => {
    if (controller.signal.aborted) process.exit(signal === "SIGINT" ? 130 : 143);
    controller.abort(new UserError(`stopped by ${signal}`));
  };
  process.on("SIGINT", stop).on("SIGTERM", stop).on("SIGHUP", stop);
  return controller.signal;
}

process.stdout.on("error", (error: NodeJS.ErrnoException) => {
  if (error.code === "EPIPE") process.exit(0);
});

main(process.argv.slice(2)).then(
  (code) => process.exit(code),
  (error: unknown) => {
    if (error instanceof UserError) process.stderr.write(`foretoken: ${error.message}\n`);
    else process.stderr.write(`foretoken: a bug: ${error instanceof Error ? error.stack : String(error)}\n`);
    process.exit(error instanceof UserError ? error.exitCode : 1);
  },
);
