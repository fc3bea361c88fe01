import { badRequest } from "./api-error.ts";
import type { ChatRequest, ChatTool } from "./schemas.ts";
import type { ToolCallStyle } from "./tool-call-parser.ts";

/** The tools that the model may call in this request. */
export interface ToolsInUse {
  readonly list: readonly ChatTool[];
  readonly style: ToolCallStyle;
  /** auto: the model decides. required: it must call; `list` is then what it may call. */
  readonly choice: "auto" | "required";
  /** False: at most one call. */
  readonly isParallel: boolean;
}

/** Undefined when there are no tools, or none may be called. @throws {ApiError} 400 for a choice that names no tool. */
export function toolsInUse(request: ChatRequest, style: ToolCallStyle): ToolsInUse | undefined {
  const { tools = [], tool_choice: choice = "auto", parallel_tool_calls: isParallel = true } = request;
  if (tools.length === 0) {
    if (choice === "required" || typeof choice === "object") throw badRequest("tool_choice asks for a call, but there are no tools", "tool_choice");
    return undefined;
  }
  if (choice === "none") return undefined;
  if (choice === "auto" || choice === "required") return { list: tools, style, choice, isParallel };
  const named = tools.filter((tool) => tool.function.name === choice.function.name);
  if (named.length === 0) throw badRequest(`tool_choice names "${choice.function.name}", which is none of the tools`, "tool_choice");
  return { list: named, style, choice: "required", isParallel: false };
}
