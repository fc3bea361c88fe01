/**
 * Tool calls out of model text, as it arrives. Two ways to write a call, by the model's own template:
 *
 *   hermes (Qwen 2.5, Qwen 3): <tool_call>{"name": "f", "arguments": {...}}</tool_call>
 *   xml (Qwen3-Coder, Qwen 3.5): <tool_call><function=f><parameter=p>value</parameter></function></tool_call>
 *
 * Text that looked like a call and is none comes back as content. Arguments are streamed as JSON text.
 */
import { HermesCall } from "./tool-call-hermes.ts";
import { SpaceHolder, splitAtTag } from "./tag-scanner.ts";
import { XmlCall } from "./tool-call-xml.ts";
import type { ChatTool } from "./schemas.ts";

export type ToolCallStyle = "hermes" | "xml";

export interface ToolCallDelta {
  /** Of the call in the message. */
  readonly index: number;
  /** With the first delta of a call only. */
  readonly name?: string;
  readonly arguments?: string;
}

/** A call being read. `push` takes text after the opening tag and returns what is left once the call is over. */
export interface CallReader {
  push(text: string, emit: (delta: { name?: string; arguments?: string }) => void): string | undefined;
  /** The text ended inside the call. Returns the text that must be shown instead when it was none. */
  finish(emit: (delta: { name?: string; arguments?: string }) => void): string;
  /** Set when the text turned out to be no call: show it. */
  readonly rejected: string | undefined;
}

export interface ToolDelta {
  readonly content: string;
  readonly toolCalls: readonly ToolCallDelta[];
}

const OPEN = "<tool_call>";
const OPEN_FUNCTION = "<function=";

export class ToolCallParser {
  readonly #style: ToolCallStyle;
  readonly #tools: readonly ChatTool[];
  readonly #space = new SpaceHolder(false);
  #pending = "";
  #reader: CallReader | undefined;
  #nCalls = 0;

  constructor(style: ToolCallStyle, tools: readonly ChatTool[]) {
    this.#style = style;
    this.#tools = tools;
  }

  get nCalls(): number {
    return this.#nCalls;
  }

  push(text: string): ToolDelta {
    let content = "";
    const toolCalls: ToolCallDelta[] = [];
    this.#pending += text;
    for (;;) {
      if (this.#reader === undefined) {
        const { before, tag, rest } = splitAtTag(this.#pending, this.#style === "xml" ? [OPEN, OPEN_FUNCTION] : [OPEN]);
        content += this.#space.push(before);
        this.#pending = rest;
        if (tag === undefined) break;
        this.#reader = this.#open(tag);
      }
      const rest = this.#reader.push(this.#pending, this.#emitTo(toolCalls));
      this.#pending = "";
      if (rest === undefined) break;
      content += this.#close(this.#reader);
      this.#pending = rest;
    }
    return { content, toolCalls };
  }

  finish(): ToolDelta {
    const toolCalls: ToolCallDelta[] = [];
    let content = "";
    if (this.#reader !== undefined) {
      const text = this.#reader.finish(this.#emitTo(toolCalls));
      if (text !== "") content += this.#space.push(text);
      this.#reader = undefined;
    }
    content += this.#space.push(this.#pending);
    this.#pending = "";
    if (this.#nCalls === 0) content += this.#space.flush();
    return { content, toolCalls };
  }

  #open(tag: string): CallReader {
    if (this.#style === "hermes") return new HermesCall(tag);
    return new XmlCall(tag, this.#tools);
  }

  /** After a call, white space up to the next visible text is layout. */
  #close(reader: CallReader): string {
    this.#reader = undefined;
    if (reader.rejected !== undefined) return this.#space.push(reader.rejected);
    this.#space.drop();
    return "";
  }

  #emitTo(out: ToolCallDelta[]): (delta: { name?: string; arguments?: string }) => void {
    return (delta) => {
      if (delta.name !== undefined) this.#nCalls++;
      out.push({ index: this.#nCalls - 1, ...delta });
    };
  }
}
