/** The grammar that an answer must follow: given as it is, or made from response_format, json_schema or forced tools. */
import { badRequest } from "./api-error.ts";
import { Grammar } from "./gbnf.ts";
import { addSchema, SchemaError } from "./json-schema-grammar.ts";
import type { ChatRequest, CompletionRequest } from "./schemas.ts";
import { addToolCalls } from "./tool-grammar.ts";
import type { ToolsInUse } from "./tools-in-use.ts";

/** Text up to </think>, for an answer whose prompt ended inside <think>: the grammar begins after it. */
const REASONING = `([^<] | "<" [^/] | "</" [^t])* "</think>" [\\n]{0,2}`;

export interface GrammarContext {
  readonly tools?: ToolsInUse | undefined;
  /** The answer begins inside <think>. */
  readonly isReasoning?: boolean;
}

/** @throws {ApiError} 400 for a schema that no grammar can follow, and for two grammars at once. */
export function grammarOf(request: CompletionRequest | ChatRequest, context: GrammarContext = {}): string | undefined {
  const { tools } = context;
  const schema = schemaOf(request);
  const isForced = tools !== undefined && tools.choice !== "auto";
  if (request.grammar !== undefined && (schema !== undefined || isForced)) throw badRequest("grammar cannot be combined with response_format, json_schema or a forced tool_choice", "grammar");
  if (request.grammar !== undefined) return request.grammar;
  if (schema === undefined && !isForced) return undefined;
  const grammar = new Grammar();
  try {
    // With tools that may be called the model decides: the JSON that was asked for, or calls.
    const branches = [
      ...(schema === undefined || isForced ? [] : [addSchema(grammar, schema.schema, { name: "answer", strict: schema.strict })]),
      ...(tools === undefined ? [] : [addToolCalls(grammar, tools)]),
    ];
    const answer = grammar.add("reply", branches.join(" | "));
    return grammar.toString(context.isReasoning === true ? `${REASONING} ${answer}` : answer);
  } catch (error) {
    if (error instanceof SchemaError || error instanceof RangeError) throw badRequest(error.message, isForced ? "tools" : "response_format", "invalid_schema");
    throw error;
  }
}

interface Wanted {
  readonly schema: unknown;
  readonly strict: boolean;
}

function schemaOf(request: CompletionRequest | ChatRequest): Wanted | undefined {
  const format = request.response_format;
  if (request.json_schema !== undefined) return { schema: request.json_schema, strict: false };
  if (format === undefined || format.type === "text") return undefined;
  if (format.type === "json_object") return { schema: format.schema ?? { type: "object" }, strict: false };
  const schema = format.json_schema?.schema ?? format.schema;
  if (schema === undefined) throw badRequest("response_format: json_schema needs a schema", "response_format.json_schema.schema", "invalid_schema");
  return { schema, strict: format.json_schema?.strict ?? false };
}
