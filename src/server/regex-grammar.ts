/**
 * A regular expression as GBNF over the characters of a JSON string. Literals, classes, groups, alternation and
 * quantifiers; look-around, back references and word borders have no grammar.
 */
import { classCode, literal, repeat } from "./gbnf.ts";

/** Characters that stand for themselves in a JSON string: no quote, backslash, control character. */
const NOT_PLAIN = `\\x00-\\x1f\\x22\\x5c\\x7f`;

type Range = readonly [from: number, to: number];

/** \\s means the space alone: other white space is a control character. */
const shorthands: Readonly<Record<string, readonly Range[]>> = {
  d: [[48, 57]],
  w: [[65, 90], [97, 122], [48, 57], [95, 95]],
  s: [[32, 32]],
};

export class UnsupportedRegex extends Error {
  override readonly name: string = "UnsupportedRegex";
}

/** The body of a rule that matches the content of a string, without its quotes. @throws {UnsupportedRegex} */
export function regexToGrammar(pattern: string): string {
  const parser = new RegexParser(pattern);
  return parser.parse();
}

class RegexParser {
  readonly #pattern: string;
  #at = 0;

  constructor(pattern: string) {
    this.#pattern = pattern;
  }

  /** JSON Schema patterns match anywhere: a side without its anchor allows any text. */
  parse(): string {
    const branches: string[] = [];
    do {
      const isAnchored = this.#take("^");
      const body = this.#sequence();
      const end = this.#take("$");
      branches.push(`${isAnchored ? "" : "char* "}${body}${end ? "" : " char*"}`);
    } while (this.#take("|"));
    if (this.#at < this.#pattern.length) throw this.#unsupported();
    return branches.length === 1 ? (branches[0] as string) : branches.map((b) => `(${b})`).join(" | ");
  }

  #alternatives(): string {
    const branches = [this.#sequence()];
    while (this.#take("|")) branches.push(this.#sequence());
    return branches.length === 1 ? (branches[0] as string) : branches.join(" | ");
  }

  #sequence(): string {
    const items: string[] = [];
    for (let c = this.#pattern[this.#at]; c !== undefined && c !== "|" && c !== ")" && !(c === "$" && this.#isEnd()); c = this.#pattern[this.#at]) {
      items.push(this.#quantified(this.#atom()));
    }
    return items.length === 0 ? `""` : items.join(" ");
  }

  /** "$" at the end of a branch of the whole pattern. */
  #isEnd(): boolean {
    const next = this.#pattern[this.#at + 1];
    return next === undefined || next === "|";
  }

  #quantified(atom: string): string {
    const range = /^(?:[*+?]|\{(\d+)(?:(,)(\d*))?\})\??/.exec(this.#pattern.slice(this.#at));
    if (range === null) return atom;
    this.#at += range[0].length;
    const sign = range[0][0];
    if (sign === "*") return repeat(atom, 0, undefined);
    if (sign === "+") return repeat(atom, 1, undefined);
    if (sign === "?") return repeat(atom, 0, 1);
    const min = Number(range[1]);
    return repeat(atom, min, range[2] === undefined ? min : range[3] === "" ? undefined : Number(range[3]));
  }

  #atom(): string {
    const c = this.#next();
    switch (c) {
      case "(":
        return this.#group();
      case "[":
        return this.#class();
      case ".":
        return "char";
      case "\\":
        return this.#escape();
      case "^":
      case "$":
      case "*":
      case "+":
      case "?":
        throw this.#unsupported();
      default:
        return jsonCharacter(c);
    }
  }

  #group(): string {
    if (this.#take("?")) {
      if (!this.#take(":")) {
        if (!/^<\w+>/.test(this.#pattern.slice(this.#at))) throw this.#unsupported();
        this.#at = this.#pattern.indexOf(">", this.#at) + 1;
      }
    }
    const body = this.#alternatives();
    if (!this.#take(")")) throw this.#unsupported();
    return `(${body})`;
  }

  #escape(): string {
    const c = this.#next();
    const set = shorthands[c.toLowerCase()];
    if (set !== undefined) return c === c.toLowerCase() ? `[${classText(set)}]` : `[^${classText(set)}${NOT_PLAIN}]`;
    return jsonCharacter(this.#escapedCharacter(c));
  }

  #escapedCharacter(c: string): string {
    const named: Readonly<Record<string, string>> = { n: "\n", t: "\t", r: "\r", f: "\f", v: "\v" };
    if (named[c] !== undefined) return named[c];
    const nHex = c === "x" ? 2 : c === "u" ? 4 : 0;
    if (nHex > 0) {
      const hex = this.#pattern.slice(this.#at, this.#at + nHex);
      if (!new RegExp(`^[0-9a-fA-F]{${nHex}}$`).test(hex)) throw this.#unsupported();
      this.#at += nHex;
      return String.fromCodePoint(Number.parseInt(hex, 16));
    }
    if (/[A-Za-z0-9]/.test(c)) throw this.#unsupported();
    return c;
  }

  #class(): string {
    const isNegated = this.#take("^");
    const ranges: Range[] = [];
    while (!this.#take("]")) {
      const from = this.#classItem();
      if (typeof from !== "number") ranges.push(...from);
      else if (this.#pattern[this.#at] === "-" && this.#pattern[this.#at + 1] !== "]") {
        this.#at++;
        const to = this.#classItem();
        if (typeof to !== "number" || to < from) throw this.#unsupported();
        ranges.push([from, to]);
      } else ranges.push([from, from]);
    }
    return isNegated ? `[^${classText(ranges)}${NOT_PLAIN}]` : jsonClass(ranges);
  }

  /** One character, or the ranges of a shorthand. */
  #classItem(): number | readonly Range[] {
    const c = this.#next();
    if (c !== "\\") return c.codePointAt(0) as number;
    const escaped = this.#next();
    return shorthands[escaped] ?? (this.#escapedCharacter(escaped).codePointAt(0) as number);
  }

  #take(c: string): boolean {
    if (this.#pattern[this.#at] !== c) return false;
    this.#at++;
    return true;
  }

  #next(): string {
    const code = this.#pattern.codePointAt(this.#at);
    if (code === undefined) throw this.#unsupported();
    const c = String.fromCodePoint(code);
    this.#at += c.length;
    return c;
  }

  #unsupported(): UnsupportedRegex {
    return new UnsupportedRegex(`pattern ${this.#pattern}: what stands at ${this.#at} has no grammar`);
  }
}

/** A character as JSON writes it inside a string. */
function jsonCharacter(c: string): string {
  return literal(JSON.stringify(c).slice(1, -1));
}

function classText(ranges: readonly Range[]): string {
  return ranges.map(([from, to]) => (from === to ? classCode(from) : `${classCode(from)}-${classCode(to)}`)).join("");
}

/** Code points that JSON writes with an escape inside a string. */
const escaped: readonly number[] = [...Array.from({ length: 32 }, (_, i) => i), 0x22, 0x5c, 0x7f];

/** A class over the characters of a JSON string: what needs an escape leaves the class and becomes a branch of its own. */
function jsonClass(ranges: readonly Range[]): string {
  let plain = [...ranges];
  const branches: string[] = [];
  for (const code of escaped) {
    const holds = plain.filter(([from, to]) => from <= code && code <= to);
    if (holds.length === 0) continue;
    plain = plain.flatMap(([from, to]): Range[] => {
      if (code < from || code > to) return [[from, to]];
      return [...(from < code ? [[from, code - 1] as Range] : []), ...(code < to ? [[code + 1, to] as Range] : [])];
    });
    branches.push(jsonCharacter(String.fromCodePoint(code)));
  }
  if (plain.length > 0) branches.unshift(`[${classText(plain)}]`);
  if (branches.length === 0) return `""`;
  return branches.length === 1 ? (branches[0] as string) : `(${branches.join(" | ")})`;
}
