import { JsonScanner } from "./json-scanner.ts";
import type { CallReader } from "./tool-call-parser.ts";

type Emit = Parameters<CallReader["push"]>[1];

const CLOSE = "</tool_call>";
/** The usual order: the name first. Other orders are read whole. */
const HEAD = /^\s*\{\s*"name"\s*:\s*("(?:[^"\\]|\\.)*")\s*,\s*"(?:arguments|parameters)"\s*:\s*(?=[^\s])/;

/** Reads {"name": "f", "arguments": {...}} up to </tool_call>; arguments are passed on as they arrive. */
export class HermesCall implements CallReader {
  readonly #openTag: string;
  #buffer = "";
  #scanner: JsonScanner | undefined;
  /** Arguments written as a JSON string are unwrapped once complete. */
  #quoted: string | undefined;
  rejected: string | undefined;

  constructor(openTag: string) {
    this.#openTag = openTag;
  }

  push(text: string, emit: Emit): string | undefined {
    this.#buffer += text;
    if (this.#scanner === undefined && !this.#begin(emit)) return this.#readWhole(emit);
    return this.#continue(emit);
  }

  /** True once the name is known. */
  #begin(emit: Emit): boolean {
    const head = HEAD.exec(this.#buffer);
    const name = head === null ? undefined : parseJson(head[1] as string);
    if (head === null || typeof name !== "string") return false;
    emit({ name });
    this.#buffer = this.#buffer.slice(head[0].length);
    this.#scanner = new JsonScanner();
    if (this.#buffer.startsWith('"')) this.#quoted = "";
    return true;
  }

  #continue(emit: Emit): string | undefined {
    const scanner = this.#scanner as JsonScanner;
    if (!scanner.isDone) {
      const n = scanner.push(this.#buffer);
      const part = this.#buffer.slice(0, n);
      this.#buffer = this.#buffer.slice(n);
      if (this.#quoted !== undefined) this.#quoted += part;
      else if (part !== "") emit({ arguments: part });
      if (!scanner.isDone) return undefined;
      if (this.#quoted !== undefined) emit({ arguments: unquote(this.#quoted) });
    }
    const at = this.#buffer.indexOf(CLOSE);
    return at < 0 ? undefined : this.#buffer.slice(at + CLOSE.length);
  }

  #readWhole(emit: Emit): string | undefined {
    const at = this.#buffer.indexOf(CLOSE);
    if (at < 0) return undefined;
    const body = this.#buffer.slice(0, at);
    if (!emitWhole(body, emit)) this.rejected = this.#openTag + body + CLOSE;
    return this.#buffer.slice(at + CLOSE.length);
  }

  finish(emit: Emit): string {
    if (this.#scanner === undefined) return emitWhole(this.#buffer, emit) ? "" : this.#openTag + this.#buffer;
    if (this.#quoted !== undefined && !this.#scanner.isDone) emit({ arguments: this.#quoted });
    return "";
  }
}

function emitWhole(body: string, emit: Emit): boolean {
  const call = parseJson(body);
  if (typeof call !== "object" || call === null || !("name" in call) || typeof call.name !== "string") return false;
  const given = "arguments" in call ? call.arguments : "parameters" in call ? call.parameters : {};
  emit({ name: call.name, arguments: typeof given === "string" ? given : JSON.stringify(given) });
  return true;
}

function parseJson(text: string): unknown {
  try {
    return JSON.parse(text);
  } catch {
    return undefined;
  }
}

function unquote(text: string): string {
  const value = parseJson(text);
  return typeof value === "string" ? value : text;
}
