/**
 * Model text to the parts of a chat message, as it arrives: reasoning between <think> and </think>, then content and
 * tool calls. White space next to the tags is layout and is dropped.
 */
import type { ChatTool } from "./schemas.ts";
import { SpaceHolder, splitAtTag } from "./tag-scanner.ts";
import { ToolCallParser, type ToolCallDelta, type ToolCallStyle, type ToolDelta } from "./tool-call-parser.ts";

export interface ChatDelta {
  readonly reasoning: string;
  readonly content: string;
  readonly toolCalls: readonly ToolCallDelta[];
}

export interface ChatParserOptions {
  /** no: text is content. closed: the answer may begin with <think>. open: the prompt ended inside <think>. */
  readonly reasoning: "no" | "closed" | "open";
  /** Undefined: no tools were offered, tags are content. */
  readonly tools: { readonly style: ToolCallStyle; readonly list: readonly ChatTool[] } | undefined;
}

const THINK = "<think>";
const THINK_END = "</think>";

type State = "start" | "reasoning" | "content";

export class ChatParser {
  readonly #tools: ToolCallParser | undefined;
  readonly #reasoningSpace = new SpaceHolder(true);
  #state: State;
  #pending = "";
  /** After reasoning, white space before the answer is dropped. */
  #isAfterReasoning = false;

  constructor({ reasoning, tools }: ChatParserOptions) {
    this.#tools = tools === undefined ? undefined : new ToolCallParser(tools.style, tools.list);
    this.#state = reasoning === "no" ? "content" : reasoning === "open" ? "reasoning" : "start";
  }

  get nToolCalls(): number {
    return this.#tools?.nCalls ?? 0;
  }

  push(text: string): ChatDelta {
    if (this.#state === "content") return contentDelta(this.#content(text), "");
    this.#pending += text;
    if (this.#state === "start" && !this.#decideStart()) return contentDelta({ content: "", toolCalls: [] }, "");
    return this.#advance();
  }

  finish(): ChatDelta {
    const last = this.#takePending();
    if (this.#state === "reasoning") return contentDelta({ content: "", toolCalls: [] }, this.#reasoningSpace.push(last));
    const before = this.#content(last);
    const after = this.#tools?.finish() ?? { content: "", toolCalls: [] };
    return contentDelta({ content: before.content + after.content, toolCalls: [...before.toolCalls, ...after.toolCalls] }, "");
  }

  /** False while the text so far may still become the opening tag. */
  #decideStart(): boolean {
    const text = this.#pending.trimStart();
    if (text.startsWith(THINK)) {
      this.#pending = text.slice(THINK.length);
      this.#state = "reasoning";
      return true;
    }
    if (THINK.startsWith(text)) return false;
    this.#state = "content";
    return true;
  }

  #advance(): ChatDelta {
    if (this.#state === "content") return contentDelta(this.#content(this.#takePending()), "");
    const { before, tag, rest } = splitAtTag(this.#pending, [THINK_END]);
    const reasoning = this.#reasoningSpace.push(before);
    this.#pending = rest;
    if (tag === undefined) return contentDelta({ content: "", toolCalls: [] }, reasoning);
    this.#state = "content";
    this.#isAfterReasoning = true;
    return contentDelta(this.#content(this.#takePending()), reasoning);
  }

  #content(text: string): ToolDelta {
    const visible = this.#isAfterReasoning ? text.trimStart() : text;
    if (visible !== "") this.#isAfterReasoning = false;
    return this.#tools?.push(visible) ?? { content: visible, toolCalls: [] };
  }

  #takePending(): string {
    const pending = this.#pending;
    this.#pending = "";
    return pending;
  }
}

function contentDelta({ content, toolCalls }: ToolDelta, reasoning: string): ChatDelta {
  return { reasoning, content, toolCalls: mergeCalls(toolCalls) };
}

/** Adjacent deltas of one call become one: clients get as few chunks as steps. */
function mergeCalls(deltas: readonly ToolCallDelta[]): readonly ToolCallDelta[] {
  if (deltas.length < 2) return deltas;
  const merged: ToolCallDelta[] = [];
  for (const delta of deltas) {
    const last = merged.at(-1);
    if (last === undefined || last.index !== delta.index) merged.push(delta);
    else merged[merged.length - 1] = { ...last, ...delta, arguments: (last.arguments ?? "") + (delta.arguments ?? "") };
  }
  return merged;
}
