import type { ChatTool } from "./schemas.ts";
import { splitAtTag } from "./tag-scanner.ts";
import type { CallReader } from "./tool-call-parser.ts";

type Emit = Parameters<CallReader["push"]>[1];
type State = "function" | "between" | "value" | "end";

const FUNCTION = "<function=";
const PARAMETER = "<parameter=";
const PARAMETER_END = "</parameter>";
const FUNCTION_END = "</function>";
const CALL_END = "</tool_call>";

/**
 * Reads <function=f><parameter=p>value</parameter>...</function></tool_call>. A value is text; the tool's schema says
 * what it stands for: a string is streamed as it arrives, anything else is read whole and written as JSON.
 */
export class XmlCall implements CallReader {
  readonly #tools: readonly ChatTool[];
  readonly #openTag: string;
  #buffer = "";
  #state: State = "function";
  #seen = "";
  #name = "";
  #key = "";
  #value = "";
  #isText = false;
  #isFirstPiece = true;
  #nParameters = 0;
  rejected: string | undefined;

  constructor(openTag: string, tools: readonly ChatTool[]) {
    this.#openTag = openTag;
    this.#tools = tools;
    // A call without its wrapper began with "<function=" itself.
    if (openTag === FUNCTION) this.#buffer = FUNCTION;
  }

  push(text: string, emit: Emit): string | undefined {
    this.#buffer += text;
    if (this.#state === "function") this.#seen += text;
    for (;;) {
      const before = `${this.#state} ${this.#buffer.length}`;
      const rest = this.#read(emit);
      if (rest !== undefined) return rest;
      if (before === `${this.#state} ${this.#buffer.length}`) return undefined;
    }
  }

  #read(emit: Emit): string | undefined {
    switch (this.#state) {
      case "function":
        return this.#readFunction(emit);
      case "between":
        this.#readBetween(emit);
        return undefined;
      case "value":
        this.#readValue(emit);
        return undefined;
      case "end":
        return this.#readEnd();
      default:
        return this.#state satisfies never;
    }
  }

  #readFunction(emit: Emit): string | undefined {
    const text = this.#buffer.trimStart();
    const end = text.indexOf(">");
    if (!text.startsWith(FUNCTION.slice(0, text.length)) || (text.startsWith(FUNCTION) && /[\n<]/.test(text.slice(1, end < 0 ? undefined : end)))) {
      this.rejected = this.#openTag;
      return this.#seen;
    }
    if (!text.startsWith(FUNCTION) || end < 0) return undefined;
    this.#name = text.slice(FUNCTION.length, end);
    this.#buffer = text.slice(end + 1);
    this.#state = "between";
    emit({ name: this.#name });
    emit({ arguments: "{" });
    return undefined;
  }

  #readBetween(emit: Emit): void {
    const { tag, rest } = splitAtTag(this.#buffer, [PARAMETER, FUNCTION_END, CALL_END]);
    if (tag === undefined) {
      this.#buffer = rest;
      return;
    }
    if (tag !== PARAMETER) {
      emit({ arguments: "}" });
      this.#state = "end";
      this.#buffer = tag === CALL_END ? CALL_END + rest : rest;
      return;
    }
    const end = rest.indexOf(">");
    if (end < 0) return;
    this.#key = rest.slice(0, end);
    this.#buffer = rest.slice(end + 1);
    this.#beginValue(emit);
  }

  #beginValue(emit: Emit): void {
    this.#state = "value";
    this.#value = "";
    this.#isFirstPiece = true;
    this.#isText = typeOf(this.#tools, this.#name, this.#key) === "string";
    emit({ arguments: `${this.#nParameters++ === 0 ? "" : ", "}${JSON.stringify(this.#key)}: ${this.#isText ? '"' : ""}` });
  }

  #readValue(emit: Emit): void {
    // One line break at each end belongs to the layout.
    if (this.#isFirstPiece && this.#buffer === "") return;
    if (this.#isFirstPiece && this.#buffer.startsWith("\n") && !this.#buffer.startsWith(`\n${PARAMETER_END}`)) {
      if (`\n${PARAMETER_END}`.startsWith(this.#buffer)) return;
      this.#buffer = this.#buffer.slice(1);
    }
    this.#isFirstPiece = false;
    const { before, tag, rest } = splitAtTag(this.#buffer, [`\n${PARAMETER_END}`, PARAMETER_END]);
    this.#buffer = rest;
    if (this.#isText && before !== "") emit({ arguments: JSON.stringify(before).slice(1, -1) });
    else this.#value += before;
    if (tag === undefined) return;
    this.#state = "between";
    emit({ arguments: this.#isText ? '"' : jsonOf(this.#value, typeOf(this.#tools, this.#name, this.#key)) });
  }

  /** A call without its wrapper has no closing tag: visible text ends it too. */
  #readEnd(): string | undefined {
    const text = this.#buffer.trimStart();
    if (text.startsWith(CALL_END)) return text.slice(CALL_END.length);
    return CALL_END.startsWith(text) ? undefined : text;
  }

  finish(emit: Emit): string {
    if (this.#state === "function") return this.#openTag + this.#seen;
    if (this.#state === "value") {
      if (this.#isText) emit({ arguments: `${JSON.stringify(this.#buffer).slice(1, -1)}"` });
      else emit({ arguments: jsonOf(this.#value + this.#buffer, undefined) });
    }
    if (this.#state !== "end") emit({ arguments: "}" });
    return "";
  }
}

/** The schema's type of a parameter; undefined when it names none or several. */
function typeOf(tools: readonly ChatTool[], name: string, key: string): string | undefined {
  const parameters = tools.find((tool) => tool.function.name === name)?.function.parameters as { properties?: Record<string, { type?: unknown }> } | undefined;
  const type = parameters?.properties?.[key]?.type;
  return typeof type === "string" ? type : undefined;
}

const pythonWords: Readonly<Record<string, string>> = { True: "true", False: "false", None: "null" };

function jsonOf(text: string, type: string | undefined): string {
  const trimmed = text.trim();
  const json = pythonWords[trimmed] ?? trimmed;
  try {
    const value: unknown = JSON.parse(json);
    // Without a schema a quoted text is meant as it stands.
    if (type !== undefined || typeof value !== "string") return JSON.stringify(value);
  } catch {
    // Not JSON: a string.
  }
  return JSON.stringify(text);
}
