/** Every grammar that the server writes must be one that libllama's parser takes; its sampler must agree with the recognizer. */
import { afterAll, beforeAll, describe, expect, test } from "vitest";
import { createGrammar } from "../../src/llama/grammar.ts";
import { loadVocab, type Vocab } from "../../src/llama/vocab.ts";
import { grammarOf } from "../../src/server/grammar-of.ts";
import { chatRequest } from "../../src/server/schemas.ts";
import { toolsInUse } from "../../src/server/tools-in-use.ts";
import { tinyTrunk } from "../llama/tiny-model.ts";
import { matchesGbnf } from "./gbnf-matcher.ts";
import { loadLlama } from "../../src/llama/library.ts";

let vocab: Vocab;
beforeAll(async () => {
  vocab = loadVocab(await tinyTrunk());
});
afterAll(() => vocab.close());

/** Feeds the tokens of the text; true when all are allowed and the end of generation is too. */
function accepts(grammarText: string, text: string): boolean {
  const grammar = createGrammar(vocab, loadLlama({}).api, grammarText);
  try {
    for (const token of vocab.tokenize(text)) {
      if (!grammar.allows(token)) return false;
      grammar.accept(token);
    }
    return grammar.allows(vocab.endOfGenerationTokens()[0] as number);
  } finally {
    grammar.close();
  }
}

const chat = (more: object) => chatRequest.parse({ messages: [{ role: "user", content: "q" }], ...more });

describe("grammars on libllama", () => {
  test.each([
    [{}, ['{"a": 1}', "[1, 2]", '"x\\n"'], ["{", "nul"]],
    [{ type: "object", properties: { name: { type: "string", maxLength: 20 }, n: { type: "integer", minimum: -5, maximum: 1234 } }, required: ["n"] }, ['{"name":"é🙂","n":1234}', '{"n": -5}'], ['{"n":1235}', '{"name":"a"}', "{}"]],
    [{ type: "object", properties: { id: { type: "string", pattern: "^[A-Z]{2}-\\d+$" } }, required: ["id"] }, ['{"id":"AB-12"}'], ['{"id":"A-1"}']],
    [{ type: "object", properties: { a: {} }, additionalProperties: { type: "boolean" } }, ['{"a":[],"b":true}'], ['{"b":1}']],
    [{ enum: ["red", "green"] }, ['"red"'], ['"blue"']],
    [{ type: "array", items: { type: "string", format: "date-time" }, minItems: 1, maxItems: 3 }, ['["2026-01-31T10:00:00Z"]'], ["[]"]],
    [{ $defs: { t: { type: "object", properties: { v: { type: "null" }, t: { $ref: "#/$defs/t" } } } }, $ref: "#/$defs/t" }, ['{"v":null,"t":{"t":{}}}'], ['{"t":[]}']],
    [{ anyOf: [{ type: "number" }, { const: null }] }, ["-1.5e3", "null"], ["true"]],
  ] as const)("schema %j", (schema, good, bad) => {
    const grammar = grammarOf(chat({ response_format: { type: "json_schema", json_schema: { name: "s", schema } } })) as string;
    for (const [texts, wanted] of [[good, true], [bad, false]] as const)
      for (const text of texts) {
        expect(accepts(grammar, text), text).toBe(wanted);
        expect(matchesGbnf(grammar, text), text).toBe(wanted);
      }
  });

  test("with tools and a schema, the model may call or answer in JSON", () => {
    const request = chat({ tools, response_format: { type: "json_schema", json_schema: { name: "s", schema: { enum: ["yes"] } } } });
    const grammar = grammarOf(request, { tools: toolsInUse(request, "hermes") }) as string;
    for (const text of ['"yes"', '<tool_call>\n{"name": "clock", "arguments": {}}\n</tool_call>']) expect(accepts(grammar, text), text).toBe(true);
    for (const text of ['"no"', "yes"]) expect(accepts(grammar, text), text).toBe(false);
  });

  const tool = (name: string, parameters: object) => ({ type: "function", function: { name, parameters } });
  const tools = [tool("weather", { type: "object", properties: { city: { type: "string" }, days: { type: "integer" } }, required: ["city"] }), tool("clock", { type: "object", properties: {} })];

  test.each([
    ["hermes", '<tool_call>\n{"name": "weather", "arguments": {"city": "Köln"}}\n</tool_call>', '<tool_call>\n{"name": "rain", "arguments": {}}\n</tool_call>'],
    ["hermes", '<tool_call>\n{"name": "clock", "arguments": {}}\n</tool_call>', "It is noon."],
    ["xml", "<tool_call>\n<function=weather>\n<parameter=city>\nKöln\n</parameter>\n<parameter=days>\n3\n</parameter>\n</function>\n</tool_call>", "<tool_call>\n<function=weather>\n</function>\n</tool_call>"],
    ["xml", "<tool_call>\n<function=clock>\n</function>\n</tool_call>", "<tool_call>\n<function=weather>\n<parameter=days>\nx"],
  ] as const)("a forced call, %s", (style, good, bad) => {
    const request = chat({ tools, tool_choice: "required" });
    const grammar = grammarOf(request, { tools: toolsInUse(request, style) }) as string;
    expect(accepts(grammar, good)).toBe(true);
    expect(accepts(grammar, bad)).toBe(false);
    const afterThinking = grammarOf(request, { tools: toolsInUse(request, style), isReasoning: true }) as string;
    expect(accepts(afterThinking, `a < b, so </i>\n</think>\n\n${good}`)).toBe(true);
    expect(accepts(afterThinking, good)).toBe(false);
  });
});
