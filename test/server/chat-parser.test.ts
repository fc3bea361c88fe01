import * as fc from "fast-check";
import { describe, expect, test } from "vitest";
import { ChatParser, type ChatParserOptions } from "../../src/server/chat-parser.ts";
import type { ChatTool } from "../../src/server/schemas.ts";
import type { ToolCallStyle } from "../../src/server/tool-call-parser.ts";

const tools: readonly ChatTool[] = [
  {
    type: "function",
    function: {
      name: "weather",
      parameters: { type: "object", properties: { city: { type: "string" }, days: { type: "integer" }, units: {}, options: { type: "object" } } },
    },
  },
];

interface Message {
  readonly reasoning: string;
  readonly content: string;
  readonly calls: readonly { readonly name: string; readonly arguments: string }[];
}

/** Feeds the text in pieces of the given sizes and joins the deltas, as a client does. */
function parse(text: string, sizes: readonly number[], options: ChatParserOptions): Message {
  const parser = new ChatParser(options);
  let reasoning = "";
  let content = "";
  const calls: { name: string; arguments: string }[] = [];
  const add = (delta: ReturnType<ChatParser["push"]>): void => {
    reasoning += delta.reasoning;
    content += delta.content;
    for (const call of delta.toolCalls) {
      if (call.name !== undefined) calls[call.index] = { name: call.name, arguments: "" };
      (calls[call.index] as { arguments: string }).arguments += call.arguments ?? "";
    }
  };
  for (let at = 0, i = 0; at < text.length; i++) {
    const n = sizes[i % sizes.length] as number;
    add(parser.push(text.slice(at, at + n)));
    at += n;
  }
  add(parser.finish());
  return { reasoning, content, calls };
}

const sizes = fc.array(fc.integer({ min: 1, max: 9 }), { minLength: 1, maxLength: 8 });
const withTools = (style: ToolCallStyle): ChatParserOptions => ({ reasoning: "no", tools: { style, list: tools } });

/** Every case must give the same message however the text is cut. */
function expectMessage(text: string, options: ChatParserOptions, wanted: Partial<Message>): void {
  fc.assert(
    fc.property(sizes, (n) => {
      expect(parse(text, n, options)).toEqual({ reasoning: "", content: "", calls: [], ...wanted });
    }),
    { numRuns: 60 },
  );
}

describe("reasoning", () => {
  test.each([
    ["closed", "<think>\nwhy\n</think>\n\nanswer", { reasoning: "why", content: "answer" }],
    ["closed", "\n<think>a < b</think>c", { reasoning: "a < b", content: "c" }],
    ["closed", "no tags, <thin", { content: "no tags, <thin" }],
    ["closed", "<thi", { content: "<thi" }],
    ["closed", "<think></think>x", { content: "x" }],
    ["open", "why\n\n</think>\n\nanswer <think>", { reasoning: "why", content: "answer <think>" }],
    ["open", "never ends </thin", { reasoning: "never ends </thin" }],
    ["no", "<think>x</think>", { content: "<think>x</think>" }],
  ] as const)("%s: %j", (reasoning, text, wanted) => expectMessage(text, { reasoning, tools: undefined }, wanted));

  test("white space inside reasoning and content is kept", () => {
    expectMessage("a\n\n b</think> c \n d\n", { reasoning: "open", tools: undefined }, { reasoning: "a\n\n b", content: "c \n d\n" });
  });
});

describe("tool calls, hermes", () => {
  test.each([
    ['<tool_call>\n{"name": "weather", "arguments": {"city": "Köln", "n": [1, {"a": "}]"}]}}\n</tool_call>', { calls: [{ name: "weather", arguments: '{"city": "Köln", "n": [1, {"a": "}]"}]}' }] }],
    ['Let me see.\n\n<tool_call>{"name":"weather","arguments":{}}</tool_call>\n', { content: "Let me see.", calls: [{ name: "weather", arguments: "{}" }] }],
    ['<tool_call>{"name":"a","arguments":{"x":"</tool_call>"}}</tool_call>\n<tool_call>{"name":"b","arguments":{}}</tool_call>', { calls: [{ name: "a", arguments: '{"x":"</tool_call>"}' }, { name: "b", arguments: "{}" }] }],
    ['<tool_call>{"arguments": {"q": 1}, "name": "late"}</tool_call>', { calls: [{ name: "late", arguments: '{"q":1}' }] }],
    ['<tool_call>{"name":"s","arguments":"{\\"a\\": 1}"}</tool_call>', { calls: [{ name: "s", arguments: '{"a": 1}' }] }],
    ['<tool_call>{"name":"none"}</tool_call>', { calls: [{ name: "none", arguments: "{}" }] }],
    ["<tool_call>not json</tool_call> after", { content: "<tool_call>not json</tool_call> after" }],
    ["a < b <tool> c  ", { content: "a < b <tool> c  " }],
    ['<tool_call>{"name":"cut","arguments":{"a": "b', { calls: [{ name: "cut", arguments: '{"a": "b' }] }],
    ['<tool_call>{"name":"stopped","arguments":{"a":1}}\n', { calls: [{ name: "stopped", arguments: '{"a":1}' }] }],
  ] as const)("%j", (text, wanted) => expectMessage(text, withTools("hermes"), wanted));
});

describe("tool calls, xml", () => {
  const call = (body: string): string => `<tool_call>\n<function=weather>\n${body}</function>\n</tool_call>`;
  const parameter = (key: string, value: string): string => `<parameter=${key}>\n${value}\n</parameter>\n`;

  test.each([
    [call(parameter("city", 'a "b"\n\nKöln <x> </param') + parameter("days", "3")), '{"city": "a \\"b\\"\\n\\nKöln <x> </param", "days": 3}'],
    [call(""), "{}"],
    [call(parameter("city", "7")), '{"city": "7"}'],
    [call(parameter("days", "seven")), '{"days": "seven"}'],
    [call(parameter("options", '{"a": [1]}')), '{"options": {"a":[1]}}'],
    [call(parameter("units", "True")), '{"units": true}'],
    [call(parameter("units", '"quoted"')), '{"units": "\\"quoted\\""}'],
    [call("<parameter=city></parameter>"), '{"city": ""}'],
    [`<function=weather>${parameter("city", "x")}</function>`, '{"city": "x"}'],
  ])("%j", (text, wanted) => {
    expectMessage(text, withTools("xml"), { calls: [{ name: "weather", arguments: wanted }] });
    expect(() => JSON.parse(wanted) as unknown).not.toThrow();
  });

  test("text around calls stays, layout between calls goes", () => {
    expectMessage(`first\n${call(parameter("days", "1"))}\n${call(parameter("days", "2"))}\nlast`, withTools("xml"), {
      content: "firstlast",
      calls: [{ name: "weather", arguments: '{"days": 1}' }, { name: "weather", arguments: '{"days": 2}' }],
    });
  });

  test.each([
    ["<tool_call>hello</tool_call>", "<tool_call>hello</tool_call>"],
    ["<tool_call>\n<function=", "<tool_call>\n<function="],
    ["if a <function b", "if a <function b"],
  ])("no call: %j", (text, content) => expectMessage(text, withTools("xml"), { content }));

  test("a call that is cut off is closed as JSON", () => {
    const cut = `<tool_call>\n<function=weather>\n${parameter("days", "2")}<parameter=city>\nBer`;
    expectMessage(cut, withTools("xml"), { calls: [{ name: "weather", arguments: '{"days": 2, "city": "Ber"}' }] });
  });

  test("any text survives as a text argument", () => {
    fc.assert(
      fc.property(fc.string({ unit: fc.constantFrom("a", "<", "/", "\n", '"', "\\", "é", ">", "🙂"), maxLength: 20 }), sizes, (value, n) => {
        const { calls } = parse(call(parameter("city", value)), n, withTools("xml"));
        expect(JSON.parse((calls[0] as { arguments: string }).arguments)).toEqual({ city: value });
      }),
    );
  });
});

test("calls after reasoning", () => {
  expectMessage('<think>plan <tool_call></think>\n\n<tool_call>{"name":"f","arguments":{}}</tool_call>', { reasoning: "closed", tools: { style: "hermes", list: tools } }, { reasoning: "plan <tool_call>", calls: [{ name: "f", arguments: "{}" }] });
});
