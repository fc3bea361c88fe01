import * as fc from "fast-check";
import { afterAll, beforeAll, expect, test } from "vitest";
import { call, parseEvents, type Target } from "../conformance/client.ts";
import { scriptedModel, startLocalServer } from "./scripted-server.ts";

let server: Awaited<ReturnType<typeof startLocalServer>>;
let target: Target;
beforeAll(async () => {
  server = await startLocalServer({ settings: { timeoutMs: 5000 } });
  target = { baseUrl: server.url, model: scriptedModel, kind: "scripted" };
});
afterAll(async () => server.close());

const junk = fc.oneof(fc.jsonValue({ maxDepth: 2 }), fc.constantFrom(-1, 0, 1, 0.5, 2, 1e9, -1e9, "", "x", true, null, [], {}));
/** Mostly what belongs there, now and then anything else. */
const mostly = (good: fc.Arbitrary<unknown>) => fc.oneof({ weight: 30, arbitrary: good }, { weight: 1, arbitrary: junk });
const maybe = (good: fc.Arbitrary<unknown>) => fc.option(mostly(good), { nil: undefined, freq: 1 });

const schema = fc.letrec((tie) => ({
  any: fc.oneof(
    { depthSize: "small" },
    fc.constantFrom<unknown>({}, true, { type: "string" }, { type: "integer", minimum: -3 }, { enum: ["a", 1] }, { $ref: "#" }, { type: "string", pattern: "^a+$" }, { not: {} }, { type: "nope" }),
    fc.record({ type: fc.constant("object"), properties: fc.dictionary(fc.string({ maxLength: 4 }), tie("any"), { maxKeys: 3 }), additionalProperties: fc.boolean() }),
    fc.record({ type: fc.constant("array"), items: tie("any"), minItems: fc.nat(3) }),
    fc.record({ anyOf: fc.array(tie("any"), { minLength: 1, maxLength: 3 }) }),
    fc.record({ allOf: fc.array(tie("any"), { minLength: 1, maxLength: 2 }) }),
    fc.record({ $defs: fc.record({ a: tie("any") }), $ref: fc.constantFrom("#/$defs/a", "#/$defs/b", "#/", "other.json") }),
    fc.record({ type: fc.constant("array"), prefixItems: fc.array(tie("any"), { maxLength: 2 }), maxItems: fc.nat(4) }),
    fc.record({ type: fc.constant("string"), pattern: fc.oneof(fc.string({ maxLength: 8 }), fc.constantFrom("[a", "(?=a)", "a{2,1}", "\\p{L}+", "(a|b)*c")), minLength: fc.nat(3), maxLength: fc.nat(3) }),
    fc.record({ type: fc.constantFrom("integer", "number"), minimum: fc.oneof(fc.integer(), fc.double()), maximum: fc.oneof(fc.integer(), fc.double()) }),
    fc.record({ type: fc.constantFrom("string", ["string", "null"], []), format: fc.constantFrom("date", "uuid", "e-mail", "") }),
  ),
})).any;

const shared = {
  stream: maybe(fc.boolean()),
  n: maybe(fc.integer({ min: 1, max: 3 })),
  max_tokens: maybe(fc.integer({ min: 1, max: 40 })),
  stop: maybe(fc.array(fc.string({ minLength: 1, maxLength: 3 }), { maxLength: 3 })),
  temperature: maybe(fc.double({ min: 0, max: 2, noNaN: true })),
  seed: maybe(fc.nat()),
  logit_bias: maybe(fc.dictionary(fc.constantFrom("65", "300", "abc"), fc.integer({ min: -100, max: 100 }))),
  stream_options: maybe(fc.record({ include_usage: fc.boolean() })),
  response_format: maybe(fc.oneof(fc.constant({ type: "json_object" }), fc.record({ type: fc.constant("json_schema"), json_schema: fc.record({ schema, strict: fc.boolean() }) }))),
  speculative: maybe(fc.record({ n_max: fc.nat(4) })),
  top_k: maybe(fc.integer({ min: 0, max: 300 })),
  min_p: maybe(fc.double({ min: 0, max: 1, noNaN: true })),
  repeat_penalty: maybe(fc.double({ min: 0.5, max: 2, noNaN: true })),
  presence_penalty: maybe(fc.double({ min: -2, max: 2, noNaN: true })),
  ignore_eos: maybe(fc.boolean()),
  grammar: maybe(fc.oneof(fc.constantFrom('root ::= "a"', 'root ::= root "a"', "root ::=", 'root ::= [a-z]+ | "é"', "no rule"), fc.string({ maxLength: 12 }))),
};
const text = fc.oneof(fc.string({ maxLength: 20 }), fc.constantFrom("@@say <think>a</think>b", '@@say <tool_call>{"name": "f", "arguments": {}}</tool_call>', "@@say 🙂 END. stops", "@@error", "@@repeat 30 ab "));
const tool = fc.record({ type: fc.constant("function"), function: fc.record({ name: fc.constantFrom("f", "g.h"), parameters: schema }) });

/** A message that says what was called before. */
const called = fc.record({ role: fc.constant("assistant"), content: fc.constantFrom(null, ""), reasoning_content: fc.option(text), tool_calls: fc.array(fc.record({ id: fc.string({ maxLength: 4 }), type: fc.constant("function"), function: fc.record({ name: fc.constantFrom("f", ""), arguments: fc.oneof(fc.json({ maxDepth: 1 }), fc.string({ maxLength: 6 })) }) }), { maxLength: 2 }) });

const completion = fc.record({ ...shared, prompt: mostly(fc.oneof(text, fc.array(text, { minLength: 1, maxLength: 3 }), fc.array(fc.nat(260), { minLength: 1, maxLength: 5 }))), logprobs: maybe(fc.nat(5)), echo: maybe(fc.boolean()) });
const chat = fc.record({
  ...shared,
  messages: mostly(fc.array(fc.oneof({ weight: 4, arbitrary: fc.record({ role: fc.constantFrom("system", "user", "assistant", "tool"), content: fc.oneof(text, fc.constant(null), fc.array(fc.record({ type: fc.constant("text"), text }), { maxLength: 2 })) }) }, { weight: 1, arbitrary: called }), { minLength: 1, maxLength: 3 })),
  logprobs: maybe(fc.boolean()),
  top_logprobs: maybe(fc.nat(5)),
  tools: maybe(fc.array(tool, { maxLength: 2 })),
  tool_choice: maybe(fc.constantFrom<unknown>("auto", "none", "required", { type: "function", function: { name: "f" } })),
  chat_template_kwargs: maybe(fc.dictionary(fc.constantFrom("enable_thinking", "range", "x"), fc.boolean())),
});

test.each([["/v1/completions", completion], ["/v1/chat/completions", chat]] as const)("%s: any body is answered or refused in OpenAI's shape, never 500", async (path, bodies) => {
  const seen = new Set<number>();
  await fc.assert(
    fc.asyncProperty(bodies, async (body) => {
      const answer = await call(target, path, body);
      seen.add(answer.status);
      if (answer.status === 200 && answer.headers.get("content-type")?.startsWith("text/event-stream") === true) {
        const { chunks, isDone } = parseEvents(answer.text);
        expect(isDone).toBe(chunks.at(-1)?.error === undefined);
      } else if (answer.status === 200) expect(answer.json.choices.length).toBeGreaterThan(0);
      else {
        expect([400, 503]).toContain(answer.status);
        expect(typeof answer.json.error.message).toBe("string");
      }
    }),
    { numRuns: 200 },
  );
  expect(seen.has(200) && seen.has(400)).toBe(true);
});

/** Bodies that no client library writes. */
const rawBody = fc.oneof(
  fc.string({ unit: "binary", maxLength: 40 }),
  fc.json({ maxDepth: 2 }),
  fc.constantFrom("", "{", "[]", "null", "{}{}", '{"prompt":"a","prompt":"b"}', '{"__proto__":{"prompt":"a"},"max_tokens":1}', '{"prompt":"\\ud800","max_tokens":1}', '{"prompt":1e999}', '{"prompt":"a","max_tokens":1e400}', '{"prompt":"a","n":9007199254740993}', "[".repeat(20_000), `{"a":${'{"a":'.repeat(5000)}`),
  fc.tuple(fc.constantFrom("content", "tokens", "messages", "prompt", "input"), fc.jsonValue({ maxDepth: 2 })).map(([key, value]) => JSON.stringify({ [key]: value })),
);
const paths = ["/v1/completions", "/v1/chat/completions", "/tokenize", "/detokenize", "/apply-template", "/v1/embeddings", "/completion", "/v1/%00", "/v1/models/%E0%A4%A", "/dashboard/../package.json", "/slots?x=%"];

test("any path with any bytes as a body is answered, never 500, and the server goes on", async () => {
  await fc.assert(
    fc.asyncProperty(fc.constantFrom(...paths), rawBody, async (path, body) => {
      const answer = await call(target, path, body);
      expect([200, 400, 404, 405, 501]).toContain(answer.status);
      if (answer.status !== 200) expect(typeof answer.json.error.message).toBe("string");
    }),
    { numRuns: 300 },
  );
  expect((await call(target, "/health")).status).toBe(200);
});
