/**
 * One zod object per option set: flags, JSON configuration, help text and TypeScript type all come from it.
 *
 * A camelCase key is a kebab-case flag: `ctxSize` is `--ctx-size`. Booleans take `--flag`, `--no-flag` and
 * `--flag on|off`; arrays are repeated flags; numbers and enums are checked by the schema. `.meta({...})` adds
 * short names, further names (llama.cpp spells some flags several ways) and the placeholder of the help text.
 */
import * as z from "zod";
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

export type OptionSchema = z.ZodObject;
type FlagKind = "boolean" | "number" | "string";

export interface Flag extends FlagMeta {
  readonly key: string;
  readonly name: string;
  readonly kind: FlagKind;
  readonly isArray: boolean;
  readonly isRequired: boolean;
  readonly choices: readonly string[] | undefined;
  readonly defaultValue: unknown;
}

export const kebabCase = (key: string): string => key.replace(/[A-Z]/g, (c) => `-${c.toLowerCase()}`);

/** Every flag of an option set, in the order of the schema. */
export function flagsOf(schema: OptionSchema): Flag[] {
  return Object.entries(schema.shape).map(([key, field]) => describeFlag(key, field as z.ZodType));
}

function describeFlag(key: string, field: z.ZodType): Flag {
  let meta: FlagMeta = {};
  let isRequired = true;
  let isArray = false;
  let defaultValue: unknown;
  let inner: z.core.$ZodType = field;
  for (;;) {
    meta = { ...(z.globalRegistry.get(inner) as FlagMeta | undefined), ...meta };
    const def = inner._zod.def;
    if (def.type === "default" || def.type === "prefault") {
      isRequired = false;
      defaultValue = (def as z.core.$ZodDefaultDef).defaultValue;
    } else if (def.type === "optional") isRequired = false;
    else if (def.type === "array") {
      isArray = true;
      inner = (def as z.core.$ZodArrayDef).element;
      continue;
    } else if (def.type === "pipe") {
      inner = (def as z.core.$ZodPipeDef).in;
      continue;
    } else if (!("innerType" in def)) break;
    inner = (def as unknown as { innerType: z.core.$ZodType }).innerType;
  }
  const { type } = inner._zod.def;
  const kind: FlagKind = type === "boolean" ? "boolean" : type === "number" || type === "int" ? "number" : "string";
  const choices = type === "enum" ? Object.values((inner._zod.def as z.core.$ZodEnumDef).entries).map(String) : undefined;
  return { ...meta, key, name: kebabCase(key), kind, isArray, isRequired, choices, defaultValue };
}

export interface ParsedArguments<S extends OptionSchema> {
  readonly options: z.output<S>;
  readonly help: boolean;
}

/**
 * Parses argv against a schema. Positionals fill the named keys in order; the name `files...` collects the rest
 * into the array key `files`.
 * @throws {UserError} exit code 2: unknown flag (with a suggestion), missing or malformed value, too many positionals.
 */
export function parseArguments<S extends OptionSchema>(
  schema: S,
  argv: readonly string[],
  positionals: readonly string[] = [],
): ParsedArguments<S> {
  const flags = flagsOf(schema);
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
    if (argument === "--help" || argument === "-h") return { options: {} as z.output<S>, help: true };
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
  return { options: checkOptions(schema, raw, positionals), help: false };
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

/** Checks values from flags or JSON against the schema; the first problem becomes a one-line usage error. */
export function checkOptions<S extends OptionSchema>(schema: S, raw: unknown, positionals: readonly string[] = []): z.output<S> {
  const result = schema.safeParse(raw);
  if (result.success) return result.data;
  const issue = result.error.issues[0];
  const key = String(issue?.path[0] ?? "");
  const isPositional = positionals.some((p) => p === key || p === `${key}...`);
  const name = key === "" ? "options" : isPositional ? `<${kebabCase(key)}>` : `--${kebabCase(key)}`;
  const given = typeof raw === "object" && raw !== null ? (raw as Record<string, unknown>)[key] : undefined;
  if (given === undefined && key !== "") throw usageError(`${name} is needed; --help shows the usage`);
  throw usageError(`${name} ${JSON.stringify(given) ?? ""}: ${issue?.message ?? "not valid"}`);
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
