/**
 * One zod object per option set: flags, JSON configuration, help text and TypeScript type all come from it. Numbers and
 * enums are checked by the schema; `.meta({...})` adds short names, further names (llama.cpp spells some flags several
 * ways) and the placeholder of the help text.
 */
import * as z from "zod";
import { usageError } from "../util/errors.ts";
import { kebabCase, parseFlags, parsePlain, type Flag, type FlagKind, type FlagMeta, type PlainOptions } from "./flags.ts";

export type OptionSchema = z.ZodObject;

/** Every flag of an option set, in the order of the schema. */
export function flagsOf(set: OptionSchema | PlainOptions): readonly Flag[] {
  return "flags" in set ? set.flags : Object.entries(set.shape).map(([key, field]) => describeFlag(key, field as z.ZodType));
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

export interface ParsedArguments<T> {
  readonly options: T;
  readonly help: boolean;
}

/**
 * Parses argv against an option set; see `parseFlags`.
 * @throws {UserError} exit code 2.
 */
export function parseArguments<S extends OptionSchema>(set: S, argv: readonly string[], positionals?: readonly string[]): ParsedArguments<z.output<S>>;
export function parseArguments(set: OptionSchema | PlainOptions, argv: readonly string[], positionals?: readonly string[]): ParsedArguments<unknown>;
export function parseArguments(set: OptionSchema | PlainOptions, argv: readonly string[], positionals: readonly string[] = []): ParsedArguments<unknown> {
  if ("flags" in set) return parsePlain(set, argv, positionals);
  const { raw, help } = parseFlags(flagsOf(set), argv, positionals);
  return { options: help ? {} : checkOptions(set, raw, positionals), help };
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
