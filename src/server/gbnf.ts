/** Pieces of GBNF, llama.cpp's grammar notation, and the rules that JSON is made of. */

/** A literal in quotes. */
export function literal(text: string): string {
  const escaped = Array.from(text, (c) => (/[\x20-\x7e]/.test(c) ? c.replace(/["\\]/, "\\$&") : escapeCode(c.codePointAt(0) as number)));
  return `"${escaped.join("")}"`;
}

/** A code point inside a character class: everything but letters and digits as its number. */
export function classCode(code: number): string {
  const c = String.fromCodePoint(code);
  return /[A-Za-z0-9]/.test(c) ? c : escapeCode(code);
}

function escapeCode(code: number): string {
  if (code <= 0xff) return `\\x${code.toString(16).padStart(2, "0")}`;
  if (code <= 0xffff) return `\\u${code.toString(16).padStart(4, "0")}`;
  return `\\U${code.toString(16).padStart(8, "0")}`;
}

/** `body` from min to max times; max undefined: without limit. */
export function repeat(body: string, min: number, max: number | undefined): string {
  if (max === 0) return `""`;
  if (min === 0 && max === undefined) return `${body}*`;
  if (min === 1 && max === undefined) return `${body}+`;
  if (min === 0 && max === 1) return `${body}?`;
  if (min === 1 && max === 1) return body;
  return `${body}{${min},${max ?? ""}}`;
}

/** `item` from min to max times with commas between, "" when none. */
export function commaList(item: string, min: number, max: number | undefined): string {
  if (max === 0) return `""`;
  const more = repeat(`("," ws ${item})`, Math.max(0, min - 1), max === undefined ? undefined : max - 1);
  const list = more === `""` ? item : `${item} ${more}`;
  return min === 0 ? `(${list})?` : list;
}

/** Rules that others name. Bounded where a model could go on for ever without closing. */
export const jsonRules: Readonly<Record<string, string>> = {
  ws: `| " " | "\\n" [ \\t]{0,20}`,
  char: `[^"\\\\\\x00-\\x1f\\x7f] | "\\\\" (["\\\\/bfnrt] | "u" [0-9a-fA-F]{4})`,
  string: `"\\"" char* "\\"" ws`,
  digits: `[0-9]{1,24}`,
  natural: `"0" | [1-9] [0-9]{0,20}`,
  integer: `"-"? natural ws`,
  number: `"-"? natural ("." digits)? ([eE] [-+]? [0-9]{1,3})? ws`,
  boolean: `("true" | "false") ws`,
  null: `"null" ws`,
  pair: `string ":" ws value`,
  object: `"{" ws ${commaList("pair", 0, undefined)} "}" ws`,
  array: `"[" ws ${commaList("value", 0, undefined)} "]" ws`,
  value: `object | array | string | number | boolean | null`,
};

/** A grammar being written: named rules, each added once. */
export class Grammar {
  readonly #rules = new Map<string, string>();
  readonly #maxRules: number;

  constructor(maxRules = 4000) {
    this.#maxRules = maxRules;
  }

  /** Adds a rule under `name` or, when that is taken by another body, a numbered one. Returns the name to use. */
  add(name: string, body: string): string {
    const base = name.replace(/[^A-Za-z0-9]+/g, "-").replace(/^-|-$/g, "").slice(0, 40) || "rule";
    for (let i = 0; ; i++) {
      const candidate = i === 0 ? base : `${base}-${i}`;
      const known = this.#rules.get(candidate) ?? jsonRules[candidate];
      if (known === body) return this.#use(candidate, body);
      if (known === undefined && candidate !== "root") return this.#use(candidate, body);
    }
  }

  /** Takes a name now whose body is set later: for rules that refer to themselves. */
  reserve(name: string): { readonly name: string; define(body: string): void } {
    const taken = this.add(name, `"reserved ${this.#rules.size}"`);
    return { name: taken, define: (body) => void this.#rules.set(taken, body) };
  }

  #use(name: string, body: string): string {
    this.#rules.set(name, body);
    if (this.#rules.size > this.#maxRules) throw new RangeError(`the grammar has more than ${this.#maxRules} rules`);
    return name;
  }

  /** The text of the grammar with `root` as its start, and the JSON rules that anything in it names. */
  toString(root: string): string {
    const rules = new Map([["root", root], ...this.#rules]);
    for (const [name, body] of rules)
      for (const word of body.replace(/"(?:[^"\\]|\\.)*"|\[(?:[^\]\\]|\\.)*\]/g, " ").match(/[a-z][A-Za-z0-9-]*/g) ?? [])
        if (!rules.has(word) && jsonRules[word] !== undefined && name !== word) rules.set(word, jsonRules[word]);
    return `${[...rules].map(([name, body]) => `${name} ::= ${body}`).join("\n")}\n`;
  }
}
