/** OpenAI's own client for Node, as programs use it. */
import OpenAI, { AuthenticationError, BadRequestError, NotFoundError } from "openai";
import { afterAll, beforeAll, describe, expect, test } from "vitest";
import { scriptedModel, startScriptedServer, type ScriptedServer } from "./scripted-server.ts";

describe.each([0, 3])("the official client, K = %i", (nMax) => {
  let server: ScriptedServer;
  let client: OpenAI;
  beforeAll(async () => {
    server = await startScriptedServer({ engine: { nMax }, settings: { apiKeys: ["the-key"] } });
    client = new OpenAI({ baseURL: `${server.url}/v1`, apiKey: "the-key", maxRetries: 0 });
  });
  afterAll(async () => server.close());

  const user = (content: string) => [{ role: "user" as const, content }];
  const weather = { type: "function" as const, function: { name: "weather", parameters: { type: "object", properties: { city: { type: "string" } }, required: ["city"] } } };

  test("lists and gets the model", async () => {
    const models = await client.models.list();
    expect(models.data.map((model) => model.id)).toEqual([scriptedModel]);
    expect((await client.models.retrieve(scriptedModel)).owned_by).toBe("foretoken");
  });

  test("chats, whole and streaming", async () => {
    const whole = await client.chat.completions.create({ model: scriptedModel, messages: user("@@say Hello 🙂.") });
    expect(whole.choices[0]?.message.content).toBe("Hello 🙂.");
    const stream = client.chat.completions.stream({ model: scriptedModel, messages: user("@@say Hello 🙂."), stream_options: { include_usage: true } });
    let text = "";
    stream.on("content", (delta) => {
      text += delta;
    });
    const final = await stream.finalChatCompletion();
    expect(text).toBe("Hello 🙂.");
    expect(final.choices[0]?.message.content).toBe("Hello 🙂.");
    expect(final.choices[0]?.finish_reason).toBe("stop");
    expect(final.usage).toMatchObject({ completion_tokens: whole.usage?.completion_tokens });
  });

  test("assembles streamed tool calls", async () => {
    const script = '@@say <tool_call>\n{"name": "weather", "arguments": {"city": "Köln"}}\n</tool_call>';
    const final = await client.chat.completions.stream({ model: scriptedModel, messages: user(script), tools: [weather] }).finalChatCompletion();
    const call = final.choices[0]?.message.tool_calls?.[0];
    expect(final.choices[0]?.finish_reason).toBe("tool_calls");
    expect(call?.type === "function" ? [call.function.name, call.function.arguments] : undefined).toEqual(["weather", '{"city": "Köln"}']);
  });

  test("runs a tool and sends its result back", async () => {
    const cities: string[] = [];
    const answer = (given: unknown): string => {
      const { city } = given as { city: string };
      cities.push(city);
      return `@@say sunny in ${city}`;
    };
    const run = client.chat.completions.runTools({
      model: scriptedModel,
      messages: user('@@say <tool_call>{"name": "weather", "arguments": {"city": "Ulm"}}</tool_call>'),
      tools: [{ type: "function", function: { ...weather.function, description: "the weather of a city", parse: (text: string): unknown => JSON.parse(text), function: answer } }],
    });
    expect(await run.finalContent()).toBe("sunny in Ulm");
    expect(cities).toEqual(["Ulm"]);
  });

  test("parses JSON of a schema", async () => {
    const parsed = await client.chat.completions.parse({
      model: scriptedModel,
      messages: user('@@say {"a": 1}'),
      response_format: { type: "json_schema", json_schema: { name: "a", strict: true, schema: { type: "object", properties: { a: { type: "integer" } }, required: ["a"], additionalProperties: false } } },
    });
    expect(JSON.parse(parsed.choices[0]?.message.content ?? "")).toEqual({ a: 1 });
  });

  test("completes text with log probabilities", async () => {
    const { choices, usage } = await client.completions.create({ model: scriptedModel, prompt: "@@say abc", logprobs: 2 });
    expect(choices[0]?.text).toBe("abc");
    expect(choices[0]?.logprobs?.tokens).toEqual(["a", "b", "c"]);
    expect(usage?.completion_tokens).toBe(3);
  });

  test("leaves a stream early", async () => {
    const stream = await client.chat.completions.create({ model: scriptedModel, messages: user("@@forever tick "), stream: true });
    let n = 0;
    for await (const _chunk of stream) if (++n === 5) break;
    while (server.engine.snapshot().slots.some((slot) => slot.phase !== "idle")) await new Promise((resolve) => setTimeout(resolve, 5));
    expect(n).toBe(5);
  });

  test("gets errors as its own classes", async () => {
    const bad = client.chat.completions.create({ model: scriptedModel, messages: user("a"), temperature: -1 });
    await expect(bad).rejects.toBeInstanceOf(BadRequestError);
    await expect(bad).rejects.toMatchObject({ status: 400, param: "temperature", type: "invalid_request_error" });
    const long = client.completions.create({ model: scriptedModel, prompt: "x".repeat(10_000) });
    await expect(long).rejects.toMatchObject({ status: 400, code: "context_length_exceeded" });
    const stranger = new OpenAI({ baseURL: `${server.url}/v1`, apiKey: "wrong", maxRetries: 0 });
    await expect(stranger.models.list()).rejects.toBeInstanceOf(AuthenticationError);
    await expect(client.models.retrieve("none")).rejects.toBeInstanceOf(NotFoundError);
    const midway = await client.chat.completions.create({ model: scriptedModel, messages: user("@@error"), stream: true });
    const read = async (): Promise<void> => {
      for await (const _chunk of midway);
    };
    await expect(read()).rejects.toThrow(/the script says so/);
  });
});
