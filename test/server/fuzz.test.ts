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
};
const text = fc.oneof(fc.string({ maxLength: 20 }), fc.constantFrom("@@say <think>a</think>b", '@@say <tool_call>{"name": "f", "arguments": {}}</tool_call>', "@@say 🙂 END. stops", "@@error", "@@repeat 30 ab "));
const tool = fc.record({ type: fc.constant("function"), function: fc.record({ name: fc.constantFrom("f", "g.h"), parameters: schema }) });

const completion = fc.record({ ...shared, prompt: mostly(fc.oneof(text, fc.array(text, { minLength: 1, maxLength: 3 }), fc.array(fc.nat(260), { minLength: 1, maxLength: 5 }))), logprobs: maybe(fc.nat(5)), echo: maybe(fc.boolean()) });
const chat = fc.record({
  ...shared,
  messages: mostly(fc.array(fc.record({ role: fc.constantFrom("system", "user", "assistant", "tool"), content: fc.oneof(text, fc.constant(null), fc.array(fc.record({ type: fc.constant("text"), text }), { maxLength: 2 })) }), { minLength: 1, maxLength: 3 })),
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
