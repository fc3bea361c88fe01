/**
 * Flags on a command line, as plain data: what they are called, what they take. `options.ts` derives them from a zod
 * object; a verb whose start-up time matters can list them itself and load no zod (a quarter of the time of `inspect`).
 *
 * A camelCase key is a kebab-case flag: `ctxSize` is `--ctx-size`. Booleans take `--flag`, `--no-flag` and
 * `--flag on|off`; arrays are repeated flags.
 */
import { usageError } from "../util/errors.ts";
import { nearest } from "../util/suggest.ts";

export interface FlagMeta {
  readonly description?: string;
  /** One letter: `m` gives `-m`. */
  readonly short?: string;
  /** Other spellings without leading dashes; one that is not a single letter and starts with a dash-less name, such as `md`, is also taken after one dash. */
  readonly aliases?: readonly string[];
  readonly placeholder?: string;
  /** Environment variable read when the flag is not given. */
  readonly env?: string;
  /** Left out of the help text. */
  readonly hidden?: boolean;
}

export type FlagKind = "boolean" | "number" | "string";

export interface Flag extends FlagMeta {
  readonly key: string;
  readonly name: string;
  readonly kind: FlagKind;
  readonly isArray: boolean;
  readonly isRequired: boolean;
  readonly choices: readonly string[] | undefined;
  readonly defaultValue: unknown;
}

/** An option set without a schema: its flags, and what makes options of their values. */
export interface PlainOptions<T = unknown> {
  readonly flags: readonly Flag[];
  /** @throws {UserError} exit code 2. */
  check(raw: Readonly<Record<string, unknown>>): T;
}

export const kebabCase = (key: string): string => key.replace(/[A-Z]/g, (c) => `-${c.toLowerCase()}`);

/** A flag of a plain option set; what is not said is a text that may be left out. */
export function plainFlag(key: string, more: Partial<Flag> = {}): Flag {
  return { key, name: kebabCase(key), kind: "string", isArray: false, isRequired: false, choices: undefined, defaultValue: undefined, ...more };
}

export interface RawArguments {
  readonly raw: Readonly<Record<string, unknown>>;
  readonly help: boolean;
}

/**
 * Values by key. Positionals fill the named keys in order; the name `files...` collects the rest into the array `files`.
 * @throws {UserError} exit code 2: unknown flag (with a suggestion), missing or malformed value, too many positionals.
 */
export function parseFlags(flags: readonly Flag[], argv: readonly string[], positionals: readonly string[] = []): RawArguments {
  const byName = new Map<string, Flag>();
  for (const flag of flags) {
    byName.set(`--${flag.name}`, flag);
    if (flag.short !== undefined) byName.set(`-${flag.short}`, flag);
    for (const alias of flag.aliases ?? []) {
      byName.set(`--${alias}`, flag);
      byName.set(`-${alias}`, flag);
    }
  }
  const raw: Record<string, unknown> = {};
  const rest: string[] = [];
  let onlyPositionals = false;
  for (let i = 0; i < argv.length; i++) {
    const argument = argv[i] as string;
    if (onlyPositionals || argument === "-" || !argument.startsWith("-") || /^-\d/.test(argument)) {
      rest.push(argument);
      continue;
    }
    if (argument === "--") {
      onlyPositionals = true;
      continue;
    }
    if (argument === "--help" || argument === "-h") return { raw: {}, help: true };
    const equals = argument.indexOf("=");
    const name = equals < 0 ? argument : argument.slice(0, equals);
    let flag = byName.get(name);
    let value: string | undefined = equals < 0 ? undefined : argument.slice(equals + 1);
    if (flag === undefined && name.startsWith("--no-")) {
      flag = byName.get(`--${name.slice(5)}`);
      if (flag?.kind === "boolean" && value === undefined) value = "off";
      else flag = undefined;
    }
    if (flag === undefined) {
      const hint = nearest(name, byName.keys());
      throw usageError(`unknown flag ${name}${hint === undefined ? "; --help lists the flags" : `; did you mean ${hint}?`}`);
    }
    if (flag.kind === "boolean") {
      const next = argv[i + 1];
      if (value === undefined && next !== undefined && /^(on|off|true|false|1|0)$/.test(next)) value = argv[++i];
      raw[flag.key] = parseBoolean(name, value ?? "on");
      continue;
    }
    value ??= argv[++i];
    if (value === undefined) throw usageError(`${name} needs a value${flag.choices === undefined ? "" : `: ${flag.choices.join(", ")}`}`);
    const parsed = flag.kind === "number" ? parseNumber(name, value) : value;
    if (flag.isArray) ((raw[flag.key] ??= []) as unknown[]).push(parsed);
    else raw[flag.key] = parsed;
  }
  fillPositionals(rest, positionals, flags, raw);
  for (const flag of flags) {
    const value = flag.env === undefined ? undefined : process.env[flag.env];
    if (raw[flag.key] === undefined && value !== undefined && value !== "")
      raw[flag.key] = flag.isArray ? [value] : flag.kind === "number" ? parseNumber(`$${flag.env}`, value) : flag.kind === "boolean" ? parseBoolean(`$${flag.env}`, value) : value;
  }
  return { raw, help: false };
}

/** @throws {UserError} exit code 2. */
export function parsePlain<T>(plain: PlainOptions<T>, argv: readonly string[], positionals?: readonly string[]): { readonly options: T; readonly help: boolean } {
  const { raw, help } = parseFlags(plain.flags, argv, positionals);
  return { options: help ? ({} as T) : plain.check(raw), help };
}

function fillPositionals(rest: string[], positionals: readonly string[], flags: readonly Flag[], raw: Record<string, unknown>): void {
  for (const positional of positionals) {
    if (positional.endsWith("...")) {
      const key = positional.slice(0, -3);
      if (rest.length > 0) raw[key] = rest.splice(0);
    } else if (rest.length > 0) {
      const flag = flags.find((f) => f.key === positional);
      const value = rest.shift() as string;
      raw[positional] = flag?.kind === "number" ? parseNumber(positional, value) : value;
    }
  }
  if (rest.length > 0) throw usageError(`unexpected argument "${rest[0]}"; --help shows the usage`);
}

function parseNumber(name: string, text: string): number {
  const value = Number(text);
  if (text.trim() === "" || Number.isNaN(value)) throw usageError(`${name} needs a number, not "${text}"`);
  return value;
}

function parseBoolean(name: string, text: string): boolean {
  if (/^(on|true|1)$/.test(text)) return true;
  if (/^(off|false|0)$/.test(text)) return false;
  throw usageError(`${name} is on or off, not "${text}"`);
}
