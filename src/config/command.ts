/** What a verb is: a summary, an option set, positionals and a run function. The CLI knows nothing else. */
import type * as z from "zod";
import type { Flag, PlainOptions } from "./flags.ts";
import type { OptionSchema } from "./options.ts";

/** What a command may do to the outside besides its work. */
export interface Io {
  /** The result, on stdout, one call a line. */
  out(text: string): void;
  /** A remark for people, on stderr; silent with --quiet. */
  note(text: string): void;
  /** True with --json: print one JSON line with `out` and nothing else there. */
  readonly json: boolean;
  /** Aborted by Ctrl-C or SIGTERM; a second signal ends the process at once. */
  readonly signal: AbortSignal;
}

type OptionSet = OptionSchema | PlainOptions;
type OptionsOf<S extends OptionSet> = S extends PlainOptions<infer T> ? T : S extends OptionSchema ? z.output<S> : never;

export interface Command<S extends OptionSet = OptionSet> {
  readonly name: string;
  readonly summary: string;
  readonly options: S;
  /** Keys of `options` in the order they are written; `files...` collects the rest. */
  readonly positionals?: readonly string[];
  /** Text under the usage line of --help. */
  readonly details?: string;
  /** Returns the exit code; nothing means 0. */
  run(options: OptionsOf<S>, io: Io): Promise<number | void>;
}

/** Keeps the type of the option set for `run`. */
export function defineCommand<S extends OptionSet>(command: Command<S>): Command<S> {
  return command;
}

export function helpText(command: Command, allFlags: readonly Flag[]): string {
  const flags = allFlags.filter((f) => !(f.hidden ?? false));
  const isNeeded = (key: string): boolean => flags.find((f) => f.key === key.replace("...", ""))?.isRequired ?? true;
  const positionals = (command.positionals ?? []).map((p) => (isNeeded(p) ? `<${p}>` : `[${p}]`));
  const positionalKeys = new Set((command.positionals ?? []).map((p) => p.replace("...", "")));
  const lines = [`foretoken ${command.name}: ${command.summary}`, "", `usage: foretoken ${[command.name, ...positionals].join(" ")} [flags]`];
  if (command.details !== undefined) lines.push("", command.details);
  const named = flags.filter((f) => !positionalKeys.has(f.key));
  const places = flags.filter((f) => positionalKeys.has(f.key));
  if (places.length > 0) lines.push("", ...aligned(places.map((f) => [`  <${f.name}>`, explain(f)])));
  lines.push("", "flags:", ...aligned([...named.map((f): [string, string] => [`  ${spelling(f)}`, explain(f)]), ["  -h, --help", "this text"], ["  --json", "one JSON line on stdout"], ["  --quiet", "no remarks on stderr"]]));
  return lines.join("\n");
}

function spelling(flag: Flag): string {
  const names = [...(flag.short === undefined ? [] : [`-${flag.short}`]), `--${flag.name}`];
  return names.join(", ") + (flag.kind === "boolean" ? "" : ` ${flag.placeholder ?? (flag.choices !== undefined ? flag.choices.join("|") : flag.kind === "number" ? "N" : "TEXT")}`);
}

function explain(flag: Flag): string {
  const { defaultValue } = flag;
  const parts = [flag.description ?? ""];
  if (flag.isArray) parts.push("(may be repeated)");
  if (flag.isRequired) parts.push("(needed)");
  else if (defaultValue !== undefined && !(Array.isArray(defaultValue) && defaultValue.length === 0)) {
    parts.push(`[${typeof defaultValue === "boolean" ? (defaultValue ? "on" : "off") : JSON.stringify(defaultValue).replaceAll(`"`, "")}]`);
  }
  if (flag.env !== undefined) parts.push(`[$${flag.env}]`);
  return parts.filter((p) => p !== "").join(" ");
}

function aligned(rows: readonly (readonly string[])[]): string[] {
  const width = Math.min(44, Math.max(...rows.map((r) => (r[0] ?? "").length)) + 2);
  return rows.map(([left = "", right = ""]) => (left.length >= width ? `${left}\n${" ".repeat(width)}${right}` : left.padEnd(width) + right).trimEnd());
}
