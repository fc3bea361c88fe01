/**
 * A recognizer for llama.cpp's grammar notation, written for tests: parses the text, then finds every place where a
 * rule may end (memoized recursive descent). Slow and small; it knows what this project writes.
 */
type Node =
  | { readonly kind: "literal"; readonly codes: readonly number[] }
  | { readonly kind: "class"; readonly ranges: readonly (readonly [number, number])[]; readonly isNegated: boolean }
  | { readonly kind: "rule"; readonly name: string }
  | { readonly kind: "sequence"; readonly items: readonly Node[] }
  | { readonly kind: "choice"; readonly branches: readonly Node[] }
  | { readonly kind: "repeat"; readonly item: Node; readonly min: number; readonly max: number };

export function parseGbnf(text: string): ReadonlyMap<string, Node> {
  return new GbnfParser(text).rules();
}

class GbnfParser {
  readonly #text: string;
  #at = 0;

  constructor(text: string) {
    this.#text = text;
  }

  rules(): Map<string, Node> {
    const rules = new Map<string, Node>();
    this.#space(true);
    while (this.#at < this.#text.length) {
      const name = this.#word();
      this.#space(false);
      this.#expect("::=");
      rules.set(name, this.#choice(false));
      this.#space(true);
    }
    for (const node of rules.values()) checkNames(node, rules);
    return rules;
  }

  #choice(isNested: boolean): Node {
    const branches = [this.#sequence(isNested)];
    for (this.#space(isNested); this.#text[this.#at] === "|"; this.#space(isNested)) {
      this.#at++;
      branches.push(this.#sequence(isNested));
    }
    return branches.length === 1 ? (branches[0] as Node) : { kind: "choice", branches };
  }

  #sequence(isNested: boolean): Node {
    const items: Node[] = [];
    for (this.#space(isNested); ; this.#space(isNested)) {
      const c = this.#text[this.#at];
      if (c === undefined || c === "\n" || c === "|" || c === ")") break;
      items.push(this.#quantified(this.#item()));
    }
    return { kind: "sequence", items };
  }

  #quantified(item: Node): Node {
    const rest = this.#text.slice(this.#at);
    const range = /^[*+?]|^\{(\d+)(,(\d*))?\}/.exec(rest);
    if (range === null) return item;
    this.#at += range[0].length;
    const [sign] = range;
    if (sign === "*") return { kind: "repeat", item, min: 0, max: Infinity };
    if (sign === "+") return { kind: "repeat", item, min: 1, max: Infinity };
    if (sign === "?") return { kind: "repeat", item, min: 0, max: 1 };
    const min = Number(range[1]);
    return { kind: "repeat", item, min, max: range[2] === undefined ? min : range[3] === "" ? Infinity : Number(range[3]) };
  }

  #item(): Node {
    const c = this.#text[this.#at];
    if (c === '"') return this.#literal();
    if (c === "[") return this.#class();
    if (c === "(") {
      this.#at++;
      const inner = this.#choice(true);
      this.#expect(")");
      return inner;
    }
    return { kind: "rule", name: this.#word() };
  }

  #literal(): Node {
    const codes: number[] = [];
    for (this.#at++; this.#text[this.#at] !== '"'; ) codes.push(this.#character());
    this.#at++;
    return { kind: "literal", codes };
  }

  #class(): Node {
    this.#at++;
    const isNegated = this.#text[this.#at] === "^";
    if (isNegated) this.#at++;
    const ranges: [number, number][] = [];
    while (this.#text[this.#at] !== "]") {
      const from = this.#character();
      if (this.#text[this.#at] === "-" && this.#text[this.#at + 1] !== "]") {
        this.#at++;
        ranges.push([from, this.#character()]);
      } else ranges.push([from, from]);
    }
    this.#at++;
    return { kind: "class", ranges, isNegated };
  }

  #character(): number {
    const code = this.#text.codePointAt(this.#at);
    if (code === undefined) throw new Error("the grammar ends inside a literal");
    if (code !== 0x5c) {
      this.#at += code > 0xffff ? 2 : 1;
      return code;
    }
    const kind = this.#text[this.#at + 1] as string;
    this.#at += 2;
    const nHex = { x: 2, u: 4, U: 8 }[kind];
    if (nHex !== undefined) {
      const hex = this.#text.slice(this.#at, this.#at + nHex);
      if (!/^[0-9a-fA-F]+$/.test(hex) || hex.length !== nHex) throw new Error(`wrong escape \\${kind}${hex}`);
      this.#at += nHex;
      return Number.parseInt(hex, 16);
    }
    const plain: Record<string, string> = { n: "\n", t: "\t", r: "\r", "\\": "\\", '"': '"', "[": "[", "]": "]" };
    const character = plain[kind];
    if (character === undefined) throw new Error(`unknown escape \\${kind}`);
    return character.charCodeAt(0);
  }

  #word(): string {
    const word = /^[A-Za-z0-9-]+/.exec(this.#text.slice(this.#at))?.[0];
    if (word === undefined) throw new Error(`a name is needed at ${this.#at}: ${this.#text.slice(this.#at, this.#at + 40)}`);
    this.#at += word.length;
    return word;
  }

  #space(isNewlineAllowed: boolean): void {
    const spaces = isNewlineAllowed ? " \t\n" : " \t";
    while (this.#at < this.#text.length && spaces.includes(this.#text[this.#at] as string)) this.#at++;
  }

  #expect(text: string): void {
    if (!this.#text.startsWith(text, this.#at)) throw new Error(`"${text}" is needed at ${this.#at}: ${this.#text.slice(this.#at, this.#at + 40)}`);
    this.#at += text.length;
  }
}

function checkNames(node: Node, rules: ReadonlyMap<string, Node>): void {
  if (node.kind === "rule" && !rules.has(node.name)) throw new Error(`rule ${node.name} is not defined`);
  if (node.kind === "sequence") for (const item of node.items) checkNames(item, rules);
  if (node.kind === "choice") for (const branch of node.branches) checkNames(branch, rules);
  if (node.kind === "repeat") checkNames(node.item, rules);
}

/** True when the whole text follows the grammar. */
export function matchesGbnf(grammar: string, text: string): boolean {
  const rules = parseGbnf(grammar);
  const codes = Array.from(text, (c) => c.codePointAt(0) as number);
  const memo = new Map<string, ReadonlySet<number>>();
  const ends = (node: Node, at: number): ReadonlySet<number> => {
    switch (node.kind) {
      case "literal":
        return node.codes.every((code, i) => codes[at + i] === code) ? new Set([at + node.codes.length]) : new Set();
      case "class": {
        const code = codes[at];
        if (code === undefined) return new Set();
        return node.ranges.some(([from, to]) => from <= code && code <= to) !== node.isNegated ? new Set([at + 1]) : new Set();
      }
      case "rule": {
        const key = `${node.name} ${at}`;
        const known = memo.get(key);
        if (known !== undefined) return known;
        const found = ends(rules.get(node.name) as Node, at);
        memo.set(key, found);
        return found;
      }
      case "sequence":
        return node.items.reduce<ReadonlySet<number>>((starts, item) => new Set([...starts].flatMap((s) => [...ends(item, s)])), new Set([at]));
      case "choice":
        return new Set(node.branches.flatMap((branch) => [...ends(branch, at)]));
      case "repeat": {
        const all = new Set<number>(node.min === 0 ? [at] : []);
        let starts: ReadonlySet<number> = new Set([at]);
        for (let n = 1; n <= node.max && starts.size > 0; n++) {
          starts = new Set([...starts].flatMap((s) => [...ends(node.item, s)]).filter((e) => n <= node.min || !all.has(e)));
          if (n >= node.min) for (const e of starts) all.add(e);
        }
        return all;
      }
      default:
        return node satisfies never;
    }
  };
  return ends({ kind: "rule", name: "root" }, 0).has(codes.length);
}
