import assert from "node:assert/strict";
import { anyCase, ownCase, scriptedCase } from "./case.ts";
import { NOT_DONE, choicesOf, fails, finishReasonOf, ok, stream, textOf, type Json, type Target } from "./client.ts";

const PATH = "/v1/chat/completions";

const question = (target: Target): string => (target.kind === "scripted" ? "@@say The answer is forty-two.\n\nNothing more to say, the end." : "Write a Python function that adds two numbers.");
const user = (content: unknown): object => ({ role: "user", content });
const chat = (target: Target, more: object = {}): object => ({ model: target.model, messages: [user(question(target))], temperature: 0, max_tokens: 24, ...more });
const say = (target: Target, text: string, more: object = {}): object => ({ model: target.model, messages: [user(`@@say ${text}`)], ...more });

const weather = {
  type: "function",
  function: { name: "weather", parameters: { type: "object", properties: { city: { type: "string" }, days: { type: "integer" } }, required: ["city"] } },
};

/** The message that the deltas of a stream build up. */
function messageOf(chunks: readonly Json[]): Json {
  const calls: Json[] = [];
  let reasoning = "";
  for (const { delta } of choicesOf(chunks)) {
    reasoning += delta.reasoning_content ?? "";
    for (const call of delta.tool_calls ?? []) {
      if (call.id !== undefined) {
        assert.equal(call.type, "function");
        assert.match(call.id, /^call_/);
        calls[call.index] = { name: call.function.name, arguments: "" };
      }
      calls[call.index].arguments += call.function.arguments;
    }
  }
  return { content: textOf(chunks), reasoning, calls };
}

export const chatCases = [
  anyCase("chat: the shape of a reply", async (target) => {
    const body = await ok(target, PATH, chat(target));
    assert.equal(body.object, "chat.completion");
    assert.equal(body.choices[0].message.role, "assistant");
    assert.equal(typeof body.choices[0].message.content, "string");
    assert.ok(["stop", "length"].includes(body.choices[0].finish_reason), `finish_reason ${body.choices[0].finish_reason}`);
    assert.equal(body.usage.total_tokens, body.usage.prompt_tokens + body.usage.completion_tokens);
  }),

  anyCase("chat: a stream says what the whole reply says", async (target) => {
    const body = await ok(target, PATH, chat(target));
    const { chunks, isDone } = await stream(target, PATH, chat(target, { stream_options: { include_usage: true } }));
    assert.ok(isDone, NOT_DONE);
    assert.equal(chunks[0].object, "chat.completion.chunk");
    assert.equal(choicesOf(chunks)[0].delta.role, "assistant");
    assert.equal(textOf(chunks), body.choices[0].message.content);
    assert.equal(finishReasonOf(chunks), body.choices[0].finish_reason);
    assert.deepEqual(chunks.at(-1).choices, []);
    assert.equal(chunks.at(-1).usage.completion_tokens, body.usage.completion_tokens);
  }),

  anyCase("chat: max_completion_tokens means what max_tokens means", async (target) => {
    const { max_tokens: _max, ...request } = chat(target, { ignore_eos: true }) as Record<string, unknown>;
    const body = await ok(target, PATH, { ...request, max_completion_tokens: 5 });
    assert.equal(body.usage.completion_tokens, 5);
    assert.equal(body.choices[0].finish_reason, "length");
  }),

  anyCase("chat: content in parts is the text of its parts", async (target) => {
    const whole = await ok(target, PATH, chat(target));
    const parts = await ok(target, PATH, chat(target, { messages: [user([{ type: "text", text: question(target) }])] }));
    assert.equal(parts.choices[0].message.content, whole.choices[0].message.content);
  }),

  anyCase("chat: log probabilities, one for each token delivered, sorted, with the bytes of the text", async (target) => {
    const body = await ok(target, PATH, chat(target, { logprobs: true, top_logprobs: 3, ignore_eos: true, max_tokens: 16 }));
    const content = body.choices[0].logprobs.content as Json[];
    assert.equal(content.length, body.usage.completion_tokens);
    for (const entry of content) {
      assert.ok(entry.logprob <= 0, `a log probability of ${entry.logprob}`);
      assert.equal(entry.top_logprobs.length, 3);
      const values = entry.top_logprobs.map((top: Json) => top.logprob);
      assert.deepEqual(values, values.toSorted((a: number, b: number) => b - a));
      assert.equal(values[0], entry.logprob, "greedy: the chosen token is the best");
    }
    assert.equal(Buffer.from(content.flatMap((entry) => entry.bytes)).toString(), body.choices[0].message.content);
    const { chunks } = await stream(target, PATH, chat(target, { logprobs: true, top_logprobs: 3, ignore_eos: true, max_tokens: 16 }));
    const streamed = choicesOf(chunks).flatMap((choice) => choice.logprobs?.content ?? []);
    assert.deepEqual(streamed.map((entry) => entry.token), content.map((entry) => entry.token));
  }),

  anyCase("chat: logit_bias -100 bans a token", async (target) => {
    const normal = await ok(target, PATH, chat(target, { max_tokens: 1 }));
    const first = normal.choices[0].message.content as string;
    const { tokens } = await ok(target, "/tokenize", { content: first });
    if (target.kind === "scripted" || tokens.length !== 1) return;
    const banned = await ok(target, PATH, chat(target, { max_tokens: 1, logit_bias: { [tokens[0]]: -100 } }));
    assert.notEqual(banned.choices[0].message.content, first);
  }),

  anyCase("chat: an enum in a JSON schema leaves no other answer", async (target) => {
    const schema = { type: "object", properties: { colour: { enum: ["red", "green"] } }, required: ["colour"], additionalProperties: false };
    const script = { messages: [user('@@say {"colour": "green"}')] };
    const request = chat(target, { max_tokens: 60, response_format: { type: "json_schema", json_schema: { name: "colour", schema, strict: true } }, ...(target.kind === "scripted" ? script : {}) });
    const body = await ok(target, PATH, request);
    assert.equal(body.choices[0].finish_reason, "stop");
    assert.ok(["red", "green"].includes(JSON.parse(body.choices[0].message.content).colour), body.choices[0].message.content);
  }),

  anyCase("chat: json_object gives JSON", async (target) => {
    const script = { messages: [user('@@say {"a": [1, null]}')] };
    const body = await ok(target, PATH, chat(target, { max_tokens: 120, response_format: { type: "json_object" }, ...(target.kind === "scripted" ? script : {}) }));
    const { content } = body.choices[0].message;
    assert.match(content, /^\s*\{/);
    if (body.choices[0].finish_reason === "stop") assert.equal(typeof JSON.parse(content), "object");
  }),

  ownCase("chat: a schema that no grammar can follow is refused before any header", async (target) => {
    for (const isStream of [false, true]) {
      const schema = { type: "object", properties: { a: { $ref: "#/$defs/none" } } };
      const error = await fails(target, PATH, chat(target, { stream: isStream, response_format: { type: "json_schema", json_schema: { name: "x", schema } } }), 400);
      assert.equal(error.code, "invalid_schema");
    }
  }),

  scriptedCase("chat: the schema reaches the engine as a grammar", async (target) => {
    const schema = { type: "object", properties: { colour: { enum: ["red"] } }, required: ["colour"] };
    const body = await ok(target, PATH, { model: target.model, messages: [user("@@request")], response_format: { type: "json_schema", json_schema: { name: "x", schema } } });
    const { grammar } = JSON.parse(body.choices[0].message.content);
    assert.match(grammar, /^root ::= /);
    assert.match(grammar, /\\"red\\"/);
  }),

  scriptedCase("chat: the template, its variables and roles make the prompt", async (target) => {
    const messages = [{ role: "developer", content: "Be short." }, user([{ type: "text", text: "a" }, { type: "text", text: "b" }]), { role: "assistant", content: "c" }, user("@@request")];
    const body = await ok(target, PATH, { model: target.model, messages, chat_template_kwargs: { enable_thinking: false } });
    const { prompt } = JSON.parse(body.choices[0].message.content);
    assert.equal(prompt, "|system\nBe short.|\n|user\na\nb|\n|assistant\nc|\n|user\n@@request|\n|assistant\n<think>\n\n</think>\n\n");
  }),

  scriptedCase("chat: a last message of the assistant is continued", async (target) => {
    const { prompt } = await ok(target, "/apply-template", { messages: [user("q"), { role: "assistant", content: "The ans" }] });
    assert.equal(prompt, "<|im_start|>user\nq<|im_end|>\n<|im_start|>assistant\nThe ans");
  }),

  scriptedCase("chat: reasoning is apart from the answer, streaming or not", async (target) => {
    const request = say(target, "<think>\nIt is\n simple.\n</think>\n\nFour <b>.");
    const { message } = (await ok(target, PATH, request)).choices[0];
    assert.equal(message.reasoning_content, "It is\n simple.");
    assert.equal(message.content, "Four <b>.");
    const { chunks } = await stream(target, PATH, request);
    assert.deepEqual(messageOf(chunks), { content: "Four <b>.", reasoning: "It is\n simple.", calls: [] });
  }),

  scriptedCase("chat: reasoning_format none leaves the text as it is", async (target) => {
    const { message } = (await ok(target, PATH, say(target, "<think>a</think>b", { reasoning_format: "none" }))).choices[0];
    assert.equal(message.content, "<think>a</think>b");
    assert.equal(message.reasoning_content, undefined);
  }),

  scriptedCase("chat: tool calls, with their arguments streamed", async (target) => {
    const text = 'One moment.\n<tool_call>\n{"name": "weather", "arguments": {"city": "Köln", "days": 3}}\n</tool_call>\n<tool_call>\n{"name": "weather", "arguments": {"city": "Bonn"}}\n</tool_call>';
    const request = say(target, text, { tools: [weather] });
    const choice = (await ok(target, PATH, request)).choices[0];
    assert.equal(choice.finish_reason, "tool_calls");
    assert.equal(choice.message.content, "One moment.");
    assert.deepEqual(choice.message.tool_calls.map((call: Json) => [call.type, call.function.name, JSON.parse(call.function.arguments)]), [
      ["function", "weather", { city: "Köln", days: 3 }],
      ["function", "weather", { city: "Bonn" }],
    ]);
    const { chunks } = await stream(target, PATH, request);
    assert.equal(finishReasonOf(chunks), "tool_calls");
    const { content, calls } = messageOf(chunks);
    assert.equal(content, "One moment.");
    assert.deepEqual(calls.map((call: Json) => [call.name, JSON.parse(call.arguments)]), [["weather", { city: "Köln", days: 3 }], ["weather", { city: "Bonn" }]]);
    const pieces = choicesOf(chunks).filter((c) => c.delta.tool_calls?.[0]?.index === 0);
    assert.ok(pieces.length > 2, `the arguments came in ${pieces.length} pieces`);
  }),

  scriptedCase("chat: a message that only calls has no content", async (target) => {
    const choice = (await ok(target, PATH, say(target, '<tool_call>{"name": "weather", "arguments": {"city": "Ulm"}}</tool_call>', { tools: [weather] }))).choices[0];
    assert.equal(choice.message.content, null);
    assert.equal(choice.message.tool_calls.length, 1);
  }),

  scriptedCase("chat: without tools, or with tool_choice none, tags are text", async (target) => {
    const text = '<tool_call>{"name": "weather", "arguments": {}}</tool_call>';
    for (const more of [{}, { tools: [weather], tool_choice: "none" }]) {
      const choice = (await ok(target, PATH, say(target, text, more))).choices[0];
      assert.equal(choice.message.content, text);
      assert.equal(choice.finish_reason, "stop");
    }
  }),

  scriptedCase("chat: parallel_tool_calls false ends after the first call", async (target) => {
    const one = '<tool_call>{"name": "weather", "arguments": {"city": "A"}}</tool_call>';
    const choice = (await ok(target, PATH, say(target, one + one, { tools: [weather], parallel_tool_calls: false }))).choices[0];
    assert.equal(choice.message.tool_calls.length, 1);
    assert.deepEqual(JSON.parse(choice.message.tool_calls[0].function.arguments), { city: "A" });
    assert.equal(choice.finish_reason, "tool_calls");
  }),

  scriptedCase("chat: a forced choice reaches the engine as a grammar of that tool", async (target) => {
    const other = { type: "function", function: { name: "clock" } };
    const named = { model: target.model, messages: [user("@@grammar")], tools: [weather, other], tool_choice: { type: "function", function: { name: "clock" } } };
    const grammar = async (more: object): Promise<string> => Buffer.from((await ok(target, PATH, { ...named, ...more })).choices[0].message.content, "base64").toString();
    assert.match(await grammar({}), /clock/);
    assert.doesNotMatch(await grammar({}), /weather/);
    assert.equal(await grammar({ tool_choice: "auto" }), "none");
    assert.match(await grammar({ tool_choice: "required" }), /clock[\s\S]*weather|weather[\s\S]*clock/);
  }),

  scriptedCase("chat: tools and earlier calls are in the prompt", async (target) => {
    const call = { id: "call_1", type: "function", function: { name: "weather", arguments: '{"city":"Ulm"}' } };
    const messages = [user("q"), { role: "assistant", content: null, tool_calls: [call] }, { role: "tool", tool_call_id: "call_1", content: "sunny" }];
    const { prompt } = await ok(target, "/apply-template", { messages, tools: [weather] });
    assert.match(prompt, /tools: \[\{"type": "function", "function": \{"name": "weather"/);
    assert.match(prompt, /"arguments": \{"city": "Ulm"\}/);
    assert.match(prompt, /<\|im_start\|>tool\nsunny<\|im_end\|>/);
  }),

  scriptedCase("chat: a stop inside a tool call or reasoning cuts like everywhere", async (target) => {
    const cut = (await ok(target, PATH, say(target, "<think>abc STOP def</think>ghi", { stop: " STOP" }))).choices[0];
    assert.equal(cut.message.reasoning_content, "abc");
    assert.equal(cut.message.content, "");
    assert.equal(cut.finish_reason, "stop");
  }),
];
