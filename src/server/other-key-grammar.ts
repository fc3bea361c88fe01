/** Keys of an object that are none of its declared ones: a prefix tree that leaves at the first other character. */
import { classCode, type Grammar } from "./gbnf.ts";

interface Node {
  readonly next: Map<string, Node>;
  isKey: boolean;
}

/** Groups nested deeper than this become rules: parsers of grammars recurse. */
const MOST_NESTING = 16;

/** A string rule body that matches every key but the given ones. Keys are compared as JSON writes them. */
export function otherKey(grammar: Grammar, keys: readonly string[]): string {
  const root: Node = { next: new Map(), isKey: false };
  for (const key of keys) {
    let node = root;
    for (const c of JSON.stringify(key).slice(1, -1)) {
      let child = node.next.get(c);
      if (child === undefined) node.next.set(c, (child = { next: new Map(), isKey: false }));
      node = child;
    }
    node.isKey = true;
  }
  return `"\\"" (${continuations(grammar, root, 1)}) "\\"" ws`;
}

/** What may follow at a node. Escapes are left out of these keys: they could spell a declared one. */
function continuations(grammar: Grammar, node: Node, depth: number): string {
  const branches: string[] = [];
  for (const [c, child] of node.next) {
    const rest = continuations(grammar, child, depth % MOST_NESTING + 1);
    branches.push(`[${classCode(c.codePointAt(0) as number)}] ${depth % MOST_NESTING === 0 ? grammar.add("other-key-rest", rest) : `(${rest})`}`);
  }
  const known = [...node.next.keys()].map((c) => classCode(c.codePointAt(0) as number)).join("");
  branches.push(`[^"\\\\\\x00-\\x1f\\x7f${known}] [^"\\\\\\x00-\\x1f\\x7f]*`);
  if (!node.isKey) branches.push(`""`);
  return branches.join(" | ");
}
