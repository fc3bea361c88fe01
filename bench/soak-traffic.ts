/**
 * The kinds of requests of a soak: each sends one request, checks its answer and returns the body that holds its usage.
 * Lengths, prompts, temperatures and draft lengths are drawn from a seeded generator.
 */
import assert from "node:assert/strict";
import type { Rng } from "../src/util/rng.ts";
import { abandon, call, finishReasonOf, stream, type Json, type Target } from "../test/conformance/client.ts";

export type Traffic = Readonly<Record<string, () => Promise<Json>>>;

const COMPLETIONS = "/v1/completions";
const CHAT = "/v1/chat/completions";

const questions = ["Write a Python function that adds two numbers.", "Reverse a string in Python.", "Sum a list.", "Write a class for a stack with push and pop.", "Check whether a number is prime."];
const prompts = ["def fibonacci(n):\n", "class Stack:\n    def __init__(self):\n", "import os\n\ndef list_files(path):\n", "# Sort a list of numbers\n"];
const schema = { type: "object", properties: { kind: { enum: ["a", "b"] }, n: { type: "integer", minimum: 0, maximum: 9 } }, required: ["kind", "n"] };
const weather = { type: "function", function: { name: "weather", parameters: { type: "object", properties: { city: { enum: ["Ulm", "Köln"] } }, required: ["city"] } } };

/** `nMax`: the most draft tokens of every request; undefined mixes the server's own, 0, 1 and 2. */
export function createTraffic(target: Target, rng: Rng, { nMax, hasTools }: { readonly nMax: number | undefined; readonly hasTools: boolean }): Traffic {
  const pick = <T>(items: readonly T[]): T => items[rng.below(items.length)] as T;
  const draftLength = (): object => {
    if (nMax !== undefined) return { speculative: { n_max: nMax } };
    return rng.below(2) === 0 ? {} : { speculative: { n_max: rng.below(3) } };
  };
  const common = (): object => ({
    model: target.model,
    max_tokens: 8 + rng.below(200),
    temperature: rng.below(2) * 0.8,
    ...draftLength(),
  });
  const prompted = (more: object): object => ({ ...common(), prompt: pick(prompts), ...more });
  const asked = (more: object): object => ({ ...common(), messages: [{ role: "user", content: pick(questions) }], ...more });

  const whole = async (path: string, body: object): Promise<Json> => {
    const { status, json, text } = await call(target, path, body);
    assert.equal(status, 200, text);
    assert.ok(json.usage.completion_tokens <= (body as { max_tokens: number }).max_tokens * (json.choices.length as number));
    return json;
  };
  const streamed = async (path: string, body: object): Promise<Json> => {
    const { chunks, isDone } = await stream(target, path, { ...body, stream_options: { include_usage: true } });
    assert.ok(isDone);
    assert.ok(["stop", "length", "tool_calls"].includes(finishReasonOf(chunks)));
    return chunks.at(-1);
  };
  const refused = async (path: string, body: object): Promise<Json> => {
    assert.equal((await call(target, path, body)).status, 400);
    return {};
  };

  const toolCalls: Traffic = {
    "tool call": async () => {
      const json = await whole(CHAT, asked({ max_tokens: 120, tools: [weather], tool_choice: "required" }));
      const [first] = json.choices[0].message.tool_calls ?? [];
      if (json.choices[0].finish_reason === "tool_calls") assert.ok(["Ulm", "Köln"].includes(JSON.parse(first.function.arguments).city));
      return json;
    },
    "tool call, streamed": async () => streamed(CHAT, asked({ max_tokens: 120, tools: [weather], tool_choice: "required" })),
  };

  return {
    completion: async () => whole(COMPLETIONS, prompted({})),
    "completion, streamed": async () => streamed(COMPLETIONS, prompted({})),
    chat: async () => whole(CHAT, asked({})),
    "chat, streamed": async () => streamed(CHAT, asked({})),
    long: async () => whole(COMPLETIONS, prompted({ max_tokens: 600, ignore_eos: true })),
    penalties: async () => whole(COMPLETIONS, prompted({ repeat_penalty: 1.1, frequency_penalty: 0.2, top_k: 0 })),
    logprobs: async () => whole(COMPLETIONS, prompted({ logprobs: 2 })),
    choices: async () => whole(COMPLETIONS, prompted({ n: 3, temperature: 0.8 })),
    "long prompt": async () => whole(COMPLETIONS, prompted({ prompt: pick(prompts).repeat(20 + rng.below(40)) })),
    stop: async () => {
      const json = await whole(COMPLETIONS, prompted({ stop: ["\n\n", "return", "é"] }));
      assert.doesNotMatch(json.choices[0].text, /\n\n|return|é/);
      return json;
    },
    "JSON schema": async () => {
      const json = await whole(CHAT, asked({ max_tokens: 80, response_format: { type: "json_schema", json_schema: { name: "s", schema } } }));
      if (json.choices[0].finish_reason === "stop") assert.ok(["a", "b"].includes(JSON.parse(json.choices[0].message.content).kind));
      return json;
    },
    ...(hasTools ? toolCalls : {}),
    "leaves a stream": async () => {
      const nChunks = rng.below(20);
      await abandon(target, COMPLETIONS, prompted({ max_tokens: 1000, ignore_eos: true }), (text) => text.split("\n\n").length > nChunks);
      return {};
    },
    "leaves while waiting": async () => {
      const signal = AbortSignal.timeout(1 + rng.below(500));
      const body = JSON.stringify(prompted({ max_tokens: 1000, ignore_eos: true }));
      await assert.rejects(fetch(target.baseUrl + COMPLETIONS, { method: "POST", body, signal }).then(async (response) => response.text()));
      return {};
    },
    "wrong field": async () => refused(COMPLETIONS, prompted({ temperature: -1 })),
    "too long": async () => refused(COMPLETIONS, prompted({ prompt: "word ".repeat(20_000) })),
  };
}
