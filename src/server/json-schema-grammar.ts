/**
 * JSON Schema to GBNF. What a grammar can say is enforced: types, properties and their order, required, enum, const,
 * items, lengths, patterns without look-around, integer ranges, dates, references (also to themselves), unions.
 * A keyword that no grammar can say (`not`, `multipleOf`, ...) is refused with `strict`, else left to the model.
 */
import { commaList, Grammar, literal, repeat } from "./gbnf.ts";
import { integerRange } from "./number-grammar.ts";
import { otherKey } from "./other-key-grammar.ts";
import { regexToGrammar, UnsupportedRegex } from "./regex-grammar.ts";

type Schema = Readonly<Record<string, unknown>>;

/** The schema cannot be turned into a grammar; the message names the place and says why. */
export class SchemaError extends Error {
  override readonly name: string = "SchemaError";
}

/** Of what llama.cpp's parser takes. */
const MOST_REPEATS = 2000;

const unenforceable: readonly string[] = [
  "not", "if", "then", "else", "dependentSchemas", "dependentRequired", "patternProperties", "propertyNames", "minProperties",
  "maxProperties", "uniqueItems", "contains", "minContains", "maxContains", "multipleOf", "unevaluatedProperties", "unevaluatedItems",
];

const formats: Readonly<Record<string, string>> = {
  date: `[0-9]{4} "-" ("0" [1-9] | "1" [0-2]) "-" ("0" [1-9] | [12] [0-9] | "3" [01])`,
  time: `([01] [0-9] | "2" [0-3]) ":" [0-5] [0-9] ":" [0-5] [0-9] ("." [0-9]{1,9})? ("Z" | [+-] ([01] [0-9] | "2" [0-3]) ":" [0-5] [0-9])`,
  uuid: `[0-9a-fA-F]{8} "-" [0-9a-fA-F]{4} "-" [0-9a-fA-F]{4} "-" [0-9a-fA-F]{4} "-" [0-9a-fA-F]{12}`,
};

/** Rules of `schema` in `grammar`; returns the name of the rule that matches a value of it. @throws {SchemaError} */
export function addSchema(grammar: Grammar, schema: unknown, options: { readonly name?: string; readonly strict?: boolean } = {}): string {
  return new Converter(grammar, schema, options.strict ?? false).visit(schema, options.name ?? "value", "");
}

/** A whole grammar for one JSON value. @throws {SchemaError} */
export function schemaToGrammar(schema: unknown, options: { readonly strict?: boolean } = {}): string {
  const grammar = new Grammar();
  try {
    return grammar.toString(addSchema(grammar, schema, { ...options, name: "answer" }));
  } catch (error) {
    throw error instanceof RangeError ? new SchemaError(error.message) : error;
  }
}

class Converter {
  readonly #grammar: Grammar;
  readonly #root: unknown;
  readonly #strict: boolean;
  readonly #references = new Map<string, string>();

  constructor(grammar: Grammar, root: unknown, strict: boolean) {
    this.#grammar = grammar;
    this.#root = root;
    this.#strict = strict;
  }

  visit(given: unknown, name: string, path: string): string {
    if (given === true) return "value";
    if (typeof given !== "object" || given === null || Array.isArray(given)) throw new SchemaError(`${path || "the schema"}: an object is needed, not ${JSON.stringify(given)}`);
    const schema = given as Schema;
    if (typeof schema["$ref"] === "string") return this.#reference(schema["$ref"], path);
    this.#checkKeywords(schema, path);
    if (Array.isArray(schema["allOf"])) return this.visit(this.#merge(schema, schema["allOf"] as unknown[], "allOf", path), name, path);
    const union = schema["anyOf"] ?? schema["oneOf"];
    if (Array.isArray(union)) return this.#union(schema, union as unknown[], name, path);
    if ("const" in schema) return this.#grammar.add(name, `${literal(JSON.stringify(schema["const"]))} ws`);
    if (Array.isArray(schema["enum"])) return this.#enum(schema["enum"] as unknown[], name, path);
    const types = Array.isArray(schema["type"]) ? (schema["type"] as unknown[]) : [schema["type"] ?? impliedType(schema)];
    const branches = types.map((type) => this.#ofType(type, schema, types.length > 1 ? `${name}-${String(type)}` : name, path));
    if (schema["nullable"] === true && !branches.includes("null")) branches.push("null");
    return branches.length === 1 ? (branches[0] as string) : this.#grammar.add(name, branches.join(" | "));
  }

  #checkKeywords(schema: Schema, path: string): void {
    const found = unenforceable.find((keyword) => keyword in schema && schema[keyword] !== false);
    if (this.#strict && found !== undefined) throw new SchemaError(`${path || "the schema"}: "${found}" cannot be enforced; leave it out or set strict to false`);
  }

  /** A rule of its own for each target, so that a schema may contain itself. */
  #reference(reference: string, path: string): string {
    const known = this.#references.get(reference);
    if (known !== undefined) return known;
    const target = this.#resolve(reference, path);
    const rule = this.#grammar.reserve(`ref-${reference.split("/").at(-1) ?? "root"}`);
    this.#references.set(reference, rule.name);
    const body = this.visit(target, `${rule.name}-body`, reference);
    if (body === rule.name) throw new SchemaError(`${path || "the schema"}: the reference ${reference} only leads to itself`);
    rule.define(body);
    return rule.name;
  }

  #resolve(reference: string, path: string): unknown {
    if (!reference.startsWith("#")) throw new SchemaError(`${path || "the schema"}: the reference ${reference} is not inside the schema`);
    let at = this.#root;
    for (const part of reference.slice(1).split("/").filter((p) => p !== "")) {
      const key = decodeURIComponent(part).replaceAll("~1", "/").replaceAll("~0", "~");
      at = typeof at === "object" && at !== null ? (at as Schema)[key] : undefined;
    }
    if (at === undefined) throw new SchemaError(`${path || "the schema"}: the reference ${reference} leads nowhere`);
    return at;
  }

  #union(schema: Schema, branches: readonly unknown[], name: string, path: string): string {
    const { anyOf: _anyOf, oneOf: _oneOf, ...base } = schema;
    const hasBase = Object.keys(base).some((key) => ["type", "properties", "required", "items", "enum"].includes(key));
    const names = branches.map((branch, i) => this.visit(hasBase ? this.#merge(base, [branch], "anyOf", path) : branch, `${name}-${i}`, `${path}/anyOf/${i}`));
    return this.#grammar.add(name, names.join(" | "));
  }

  /** One schema that says what all of them say: properties and required are joined, later keywords win. */
  #merge(schema: Schema, parts: readonly unknown[], keyword: string, path: string): Schema {
    const { [keyword]: _parts, ...base } = schema;
    let merged: Record<string, unknown> = { ...base };
    for (const given of parts) {
      const reference = (given as Schema | null)?.["$ref"];
      const part = (typeof reference === "string" ? this.#resolve(reference, path) : given) as Schema;
      merged = {
        ...merged,
        ...part,
        ...("properties" in merged || "properties" in part ? { properties: { ...(merged["properties"] as object), ...(part["properties"] as object) } } : {}),
        ...("required" in merged || "required" in part ? { required: [...((merged["required"] as unknown[]) ?? []), ...((part["required"] as unknown[]) ?? [])] } : {}),
      };
    }
    return merged;
  }

  #enum(values: readonly unknown[], name: string, path: string): string {
    if (values.length === 0) throw new SchemaError(`${path || "the schema"}: enum has no values`);
    return this.#grammar.add(name, `(${values.map((value) => literal(JSON.stringify(value))).join(" | ")}) ws`);
  }

  #ofType(type: unknown, schema: Schema, name: string, path: string): string {
    switch (type) {
      case "object":
        return this.#object(schema, name, path);
      case "array":
        return this.#array(schema, name, path);
      case "string":
        return this.#string(schema, name, path);
      case "integer":
        return this.#integer(schema, name, path);
      case "number":
        return this.#number(schema, name, path);
      case "boolean":
      case "null":
        return type;
      case undefined:
        return "value";
      default:
        throw new SchemaError(`${path || "the schema"}: type ${JSON.stringify(type)} is not a JSON type`);
    }
  }

  /** Properties in the order of the schema. `first` stands before any of them, `next` after one: only then a comma comes. */
  #object(schema: Schema, name: string, path: string): string {
    const properties = Object.entries((schema["properties"] as Schema | undefined) ?? {});
    const required = new Set(((schema["required"] as unknown[] | undefined) ?? []).map(String));
    for (const key of required) if (!properties.some(([known]) => known === key)) properties.push([key, true]);
    const additional = schema["additionalProperties"] ?? (properties.length === 0);
    if (properties.length === 0 && additional === true) return "object";
    const more = additional === false ? undefined : this.#additional(additional, properties.map(([key]) => key), name, path);
    let first = more === undefined ? `""` : commaList(more, 0, undefined);
    let next = more === undefined ? `""` : `("," ws ${more})*`;
    for (const [i, [key, value]] of [...properties.entries()].toReversed()) {
      const pair = `${literal(JSON.stringify(key))} ws ":" ws ${this.visit(value, `${name}-${key}`, `${path}/properties/${key}`)}`;
      const pairThenNext = next === `""` ? pair : `${pair} ${this.#grammar.add(`${name}-after-${i}`, next)}`;
      const isRequired = required.has(key);
      [first, next] = isRequired
        ? [pairThenNext, `"," ws ${pairThenNext}`]
        : [`${pairThenNext} | ${first}`, `"," ws ${pairThenNext} | ${next}`];
    }
    return this.#grammar.add(name, `"{" ws (${first}) "}" ws`);
  }

  #additional(schema: unknown, keys: readonly string[], name: string, path: string): string {
    const value = this.visit(schema, `${name}-more`, `${path}/additionalProperties`);
    const key = keys.length === 0 ? "string" : this.#grammar.add(`${name}-other-key`, otherKey(this.#grammar, keys));
    return this.#grammar.add(`${name}-pair`, `${key} ":" ws ${value}`);
  }

  #array(schema: Schema, name: string, path: string): string {
    const prefix = (schema["prefixItems"] as unknown[] | undefined) ?? (Array.isArray(schema["items"]) ? (schema["items"] as unknown[]) : []);
    const min = this.#count(schema, "minItems", path) ?? 0;
    const max = this.#count(schema, "maxItems", path);
    const items = Array.isArray(schema["items"]) ? (schema["additionalItems"] ?? true) : (schema["items"] ?? true);
    if (prefix.length === 0) {
      const item = this.visit(items, `${name}-item`, `${path}/items`);
      return this.#grammar.add(name, `"[" ws ${commaList(item, min, max)} "]" ws`);
    }
    const heads = prefix.map((item, i) => this.visit(item, `${name}-${i}`, `${path}/prefixItems/${i}`)).join(` "," ws `);
    const left = max === undefined ? undefined : Math.max(0, max - prefix.length);
    const rest = items === false ? "" : repeat(`("," ws ${this.visit(items, `${name}-item`, `${path}/items`)})`, Math.max(0, min - prefix.length), left);
    return this.#grammar.add(name, `"[" ws ${heads} ${rest} "]" ws`);
  }

  #string(schema: Schema, name: string, path: string): string {
    const format = schema["format"];
    if (typeof schema["pattern"] === "string") {
      try {
        return this.#grammar.add(name, `"\\"" (${regexToGrammar(schema["pattern"])}) "\\"" ws`);
      } catch (error) {
        if (!(error instanceof UnsupportedRegex)) throw error;
        if (this.#strict) throw new SchemaError(`${path || "the schema"}: ${error.message}`);
      }
    }
    if (format === "date-time") return this.#grammar.add(name, `"\\"" ${formats["date"]} "T" ${formats["time"]} "\\"" ws`);
    if (typeof format === "string" && formats[format] !== undefined) return this.#grammar.add(name, `"\\"" ${formats[format]} "\\"" ws`);
    const min = this.#count(schema, "minLength", path) ?? 0;
    const max = this.#count(schema, "maxLength", path);
    if (min === 0 && max === undefined) return "string";
    if (max !== undefined && max < min) throw new SchemaError(`${path || "the schema"}: maxLength ${max} is below minLength ${min}`);
    return this.#grammar.add(name, `"\\"" ${repeat("char", min, max)} "\\"" ws`);
  }

  #integer(schema: Schema, name: string, path: string): string {
    const min = bound(schema["minimum"], Math.ceil, schema["exclusiveMinimum"], 1);
    const max = bound(schema["maximum"], Math.floor, schema["exclusiveMaximum"], -1);
    if (min === undefined && max === undefined) return "integer";
    if (min !== undefined && max !== undefined && min > max) throw new SchemaError(`${path || "the schema"}: no integer is from ${min} to ${max}`);
    return this.#grammar.add(name, `(${integerRange(min, max)}) ws`);
  }

  /** Of a real number's bounds a grammar can say the sign. */
  #number(schema: Schema, name: string, path: string): string {
    const bounds = ["minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum"].filter((keyword) => typeof schema[keyword] === "number");
    if (bounds.length === 0) return "number";
    const isPositive = Number(schema["minimum"] ?? schema["exclusiveMinimum"] ?? -1) >= 0;
    if (this.#strict && !(bounds.length === 1 && schema["minimum"] === 0))
      throw new SchemaError(`${path || "the schema"}: "${bounds[0]}" of a real number cannot be enforced; leave it out or set strict to false`);
    return isPositive ? this.#grammar.add(name, `natural ("." digits)? ([eE] [-+]? [0-9]{1,3})? ws`) : "number";
  }

  #count(schema: Schema, keyword: string, path: string): number | undefined {
    const n = schema[keyword];
    if (n === undefined || n === null) return undefined;
    if (typeof n !== "number" || !Number.isInteger(n) || n < 0) throw new SchemaError(`${path || "the schema"}: ${keyword} must be a whole number, not ${JSON.stringify(n)}`);
    if (n <= MOST_REPEATS) return n;
    if (keyword.startsWith("max") && !this.#strict) return undefined;
    throw new SchemaError(`${path || "the schema"}: ${keyword} ${n} is above ${MOST_REPEATS}, the most a grammar can count`);
  }
}

function bound(inclusive: unknown, round: (x: number) => number, exclusive: unknown, step: 1 | -1): number | undefined {
  if (typeof inclusive === "number") return round(inclusive);
  if (typeof exclusive !== "number") return undefined;
  return Number.isInteger(exclusive) ? exclusive + step : round(exclusive);
}

/** Schemas often leave out the type that their keywords mean. */
function impliedType(schema: Schema): string | undefined {
  if ("properties" in schema || "required" in schema || "additionalProperties" in schema) return "object";
  if ("items" in schema || "prefixItems" in schema) return "array";
  return "pattern" in schema || "minLength" in schema || "maxLength" in schema ? "string" : undefined;
}
