/** Grammar of an answer that must call a tool, in the way of writing of the model's template. */
import { literal, type Grammar } from "./gbnf.ts";
import { addSchema } from "./json-schema-grammar.ts";
import type { ChatTool } from "./schemas.ts";
import type { ToolsInUse } from "./tools-in-use.ts";

/** Returns the body of a rule: one or more calls. @throws {SchemaError} */
export function addToolCalls(grammar: Grammar, tools: ToolsInUse): string {
  const calls = tools.list.map((tool) => (tools.style === "hermes" ? hermesCall(grammar, tool) : xmlCall(grammar, tool)));
  const call = grammar.add("call", calls.join(" | "));
  return tools.isParallel ? `${call} ("\\n" ${call})*` : call;
}

function hermesCall(grammar: Grammar, tool: ChatTool): string {
  const { name, parameters, strict } = tool.function;
  const value = addSchema(grammar, parameters ?? { type: "object" }, { name: `args-${name}`, strict: strict ?? false });
  return grammar.add(`call-${name}`, `"<tool_call>\\n{\\"name\\": " ${literal(JSON.stringify(name))} ", \\"arguments\\": " ${value} "}\\n</tool_call>"`);
}

/** Parameters in the order of the schema; text values end at their closing tag, others are JSON. */
function xmlCall(grammar: Grammar, tool: ChatTool): string {
  const { name, parameters, strict } = tool.function;
  const properties = Object.entries((parameters?.["properties"] as Record<string, unknown> | undefined) ?? {});
  const required = new Set((parameters?.["required"] as unknown[] | undefined) ?? []);
  const items = properties.map(([key, schema]) => {
    const isText = typeof schema === "object" && schema !== null && (schema as { type?: unknown }).type === "string" && !("enum" in schema);
    // The definitions of the whole schema go along, so that references resolve.
    const whole = { $defs: parameters?.["$defs"], definitions: parameters?.["definitions"], ...(schema as object) };
    const value = isText ? xmlText(grammar) : addSchema(grammar, whole, { name: `arg-${name}-${key}`, strict: strict ?? false });
    const parameter = `${literal(`<parameter=${key}>\n`)} ${value} "\\n</parameter>\\n"`;
    return required.has(key) ? parameter : `(${parameter})?`;
  });
  return grammar.add(`call-${name}`, `${literal(`<tool_call>\n<function=${name}>\n`)} ${items.join(" ")} "</function>\\n</tool_call>"`);
}

/** Text without "\n</": its end is the closing tag. */
function xmlText(grammar: Grammar): string {
  return grammar.add("xml-text", `([^\\n] | "\\n" [^<] | "\\n<" [^/])*`);
}
