import assert from "node:assert/strict";
import { anyCase, ownCase, scriptedCase } from "./case.ts";
import { NOT_DONE, call, choicesOf, finishReasonOf, ok, stream, textOf, type Json, type Target } from "./client.ts";

const PATH = "/v1/completions";

/** Text that the model continues for a while: a script for the scripted engine, code for a real one. */
export const promptOf = (target: Target): string =>
  target.kind === "scripted" ? "@@say one two three\nfour, five: six seven\n\neight nine ten eleven twelve" : "def fibonacci(n):\n    ";

const greedy = (target: Target, more: object = {}): object => ({ model: target.model, prompt: promptOf(target), temperature: 0, max_tokens: 24, ...more });

function checkUsage(usage: Json): void {
  assert.ok(Number.isInteger(usage.prompt_tokens) && usage.prompt_tokens > 0, `prompt_tokens ${usage.prompt_tokens}`);
  assert.ok(Number.isInteger(usage.completion_tokens), `completion_tokens ${usage.completion_tokens}`);
  assert.equal(usage.total_tokens, usage.prompt_tokens + usage.completion_tokens);
}

export const completionCases = [
  anyCase("completions: the shape of a reply", async (target) => {
    const body = await ok(target, PATH, greedy(target));
    assert.equal(body.object, "text_completion");
    assert.equal(typeof body.id, "string");
    assert.ok(Math.abs(body.created - Date.now() / 1000) < 600, `created ${body.created} is not now, in seconds`);
    assert.equal(typeof body.model, "string");
    assert.equal(body.choices.length, 1);
    assert.equal(body.choices[0].index, 0);
    assert.equal(typeof body.choices[0].text, "string");
    checkUsage(body.usage);
  }),

  anyCase("completions: max_tokens is exact for every number, also inside an accepted run", async (target) => {
    const whole = (await ok(target, PATH, greedy(target, { ignore_eos: true }))).choices[0].text as string;
    for (let n = 1; n <= 10; n++) {
      const body = await ok(target, PATH, greedy(target, { max_tokens: n, ignore_eos: true }));
      assert.equal(body.usage.completion_tokens, n);
      assert.equal(body.choices[0].finish_reason, "length");
      const text = (body.choices[0].text as string).replace(/�+$/, "");
      assert.ok(whole.startsWith(text), `max_tokens ${n}: ${JSON.stringify(text)} does not begin ${JSON.stringify(whole)}`);
    }
  }),

  anyCase("completions: a stream says what the whole reply says", async (target) => {
    const body = await ok(target, PATH, greedy(target));
    const { chunks, isDone } = await stream(target, PATH, greedy(target, { stream_options: { include_usage: true } }));
    assert.ok(isDone, NOT_DONE);
    assert.equal(textOf(chunks), body.choices[0].text);
    assert.equal(finishReasonOf(chunks), body.choices[0].finish_reason);
    const last = chunks.at(-1);
    assert.deepEqual(last.choices, []);
    checkUsage(last.usage);
    assert.equal(last.usage.completion_tokens, body.usage.completion_tokens);
    assert.equal(last.usage.prompt_tokens, body.usage.prompt_tokens);
    assert.equal(new Set(chunks.map((chunk) => chunk.id)).size, 1);
  }),

  anyCase("completions: usage comes in a stream only when it is asked for", async (target) => {
    const { chunks, isDone } = await stream(target, PATH, greedy(target));
    assert.ok(isDone, NOT_DONE);
    assert.ok(chunks.every((chunk) => chunk.usage === undefined || chunk.usage === null), "usage came although stream_options.include_usage was not set");
    assert.ok(chunks.every((chunk) => chunk.choices.length > 0), "a chunk without choices came although no usage was asked for");
  }),

  anyCase("completions: a stop string cuts the text, wherever it falls, streaming or not", async (target) => {
    const whole = (await ok(target, PATH, greedy(target))).choices[0].text as string;
    const nCases = target.kind === "scripted" ? whole.length - 2 : 8;
    for (let i = 1; i <= nCases; i++) {
      const at = Math.floor((i * (whole.length - 2)) / (nCases + 1));
      const stop = whole.slice(at, at + 1 + (i % 5));
      if (stop === "") continue;
      const wanted = whole.slice(0, whole.indexOf(stop));
      const body = await ok(target, PATH, greedy(target, { stop: [stop] }));
      assert.equal(body.choices[0].text, wanted, `stop ${JSON.stringify(stop)}`);
      assert.equal(body.choices[0].finish_reason, "stop");
      const { chunks } = await stream(target, PATH, greedy(target, { stop }));
      assert.equal(textOf(chunks), wanted, `stop ${JSON.stringify(stop)}, streaming`);
      assert.equal(finishReasonOf(chunks), "stop");
    }
  }),

  anyCase("completions: of several stops the first in the text ends it", async (target) => {
    const whole = (await ok(target, PATH, greedy(target))).choices[0].text as string;
    const [early, late] = [whole.slice(2, 4), whole.slice(9, 11)];
    const body = await ok(target, PATH, greedy(target, { stop: ["\u0001none", late, early] }));
    assert.equal(body.choices[0].text, whole.slice(0, Math.min(whole.indexOf(early), whole.indexOf(late))));
  }),

  anyCase("completions: a stop that never comes changes nothing", async (target) => {
    const body = await ok(target, PATH, greedy(target));
    const stopped = await ok(target, PATH, greedy(target, { stop: ["\u0001\u0002"] }));
    assert.equal(stopped.choices[0].text, body.choices[0].text);
    assert.equal(stopped.usage.completion_tokens, body.usage.completion_tokens);
  }),

  anyCase("completions: ignore_eos goes on to max_tokens", async (target) => {
    const body = await ok(target, PATH, greedy(target, { ignore_eos: true, max_tokens: 150 }));
    assert.equal(body.usage.completion_tokens, 150);
    assert.equal(body.choices[0].finish_reason, "length");
  }),

  anyCase("completions: n choices and several prompts, each with its index", async (target) => {
    const prompt = promptOf(target);
    const body = await ok(target, PATH, greedy(target, { prompt: [prompt, prompt], n: 2, max_tokens: 6 }));
    assert.deepEqual(body.choices.map((choice: Json) => choice.index).toSorted(), [0, 1, 2, 3]);
    assert.equal(new Set(body.choices.map((choice: Json) => choice.text)).size, 1);
    const { chunks, isDone } = await stream(target, PATH, greedy(target, { n: 2, max_tokens: 6 }));
    assert.ok(isDone, NOT_DONE);
    for (const index of [0, 1]) {
      assert.equal(textOf(chunks, index), body.choices[0].text);
      assert.equal(finishReasonOf(chunks, index), "length");
    }
  }),

  anyCase("completions: a prompt of token ids is the prompt of its text", async (target) => {
    const { tokens } = await ok(target, "/tokenize", { content: promptOf(target), add_special: true, parse_special: true });
    const byText = await ok(target, PATH, greedy(target));
    const byTokens = await ok(target, PATH, greedy(target, { prompt: tokens }));
    assert.equal(byTokens.choices[0].text, byText.choices[0].text);
    assert.equal(byTokens.usage.prompt_tokens, tokens.length);
  }),

  anyCase("completions: a seed gives the same text again", async (target) => {
    const request = greedy(target, { temperature: 1.2, seed: 7, top_p: 1, top_k: 0, min_p: 0 });
    const [first, second] = [await ok(target, PATH, request), await ok(target, PATH, request)];
    assert.equal(first.choices[0].text, second.choices[0].text);
  }),

  ownCase("completions: log probabilities of the verifier, one for each token, in the older shape", async (target) => {
    const body = await ok(target, PATH, greedy(target, { logprobs: 3, ignore_eos: true, max_tokens: 20 }));
    const { tokens, token_logprobs: values, top_logprobs: top, text_offset: offsets } = body.choices[0].logprobs;
    assert.equal(tokens.length, 20);
    assert.equal(values.length, 20);
    for (const [i, value] of values.entries()) {
      assert.ok(value < 0, `token ${i} has log probability ${value}`);
      assert.equal(top[i][tokens[i]], value, "greedy: the chosen token is among the best, with the same value");
      assert.equal(Math.max(...Object.values<number>(top[i])), value);
    }
    assert.equal(offsets[0], 0);
    const { chunks } = await stream(target, PATH, greedy(target, { logprobs: 3, ignore_eos: true, max_tokens: 20 }));
    const streamed = choicesOf(chunks).flatMap((choice) => choice.logprobs?.token_logprobs ?? []);
    assert.deepEqual(streamed, values);
  }),

  ownCase("completions: speculation can be turned off for a request", async (target) => {
    const body = await ok(target, PATH, greedy(target, { speculative: { n_max: 0 } }));
    assert.equal(body.timings.draft_n, undefined);
    const normal = await ok(target, PATH, greedy(target));
    assert.equal(body.choices[0].text, normal.choices[0].text);
  }),

  ownCase("completions: log probabilities with drafts are those without", async (target) => {
    const request = greedy(target, { logprobs: 1, ignore_eos: true, max_tokens: 24 });
    const drafted = (await ok(target, PATH, request)).choices[0].logprobs;
    const plain = (await ok(target, PATH, { ...request, speculative: { n_max: 0 } })).choices[0].logprobs;
    for (const [i, value] of (plain.token_logprobs as number[]).entries()) {
      // Kernels differ a little by the number of rows; once a token differs the texts are not comparable.
      if (plain.tokens[i] !== drafted.tokens[i]) break;
      assert.ok(Math.abs(value - drafted.token_logprobs[i]) < 0.1, `token ${i}: ${value} plain, ${drafted.token_logprobs[i]} with drafts`);
    }
    assert.equal(plain.tokens[0], drafted.tokens[0]);
  }),

  ownCase("completions: timings and draft counts add up", async (target) => {
    const { timings, usage } = await ok(target, PATH, greedy(target));
    assert.equal(timings.predicted_n, usage.completion_tokens);
    assert.equal(timings.prompt_n + timings.cache_n, usage.prompt_tokens);
    if (timings.draft_n === undefined) return;
    assert.ok(timings.draft_n_accepted <= timings.draft_n, `${timings.draft_n_accepted} of ${timings.draft_n} accepted`);
    assert.ok(timings.draft_n_accepted < usage.completion_tokens, "the first token and bonus tokens are not accepted drafts");
    assert.equal(timings.draft_accepted_at.reduce((a: number, b: number) => a + b, 0), timings.draft_n_accepted);
    assert.equal(timings.draft_reached_at[0], timings.draft_n_drafts);
  }),

  ownCase("completions: echo puts the prompt before the answer", async (target) => {
    const body = await ok(target, PATH, greedy(target));
    const echoed = await ok(target, PATH, greedy(target, { echo: true }));
    assert.equal(echoed.choices[0].text, promptOf(target) + body.choices[0].text);
  }),

  scriptedCase("completions: every sampling field reaches the engine under its name", async (target) => {
    const body = await ok(target, PATH, {
      model: target.model, prompt: "@@request", temperature: 0.5, top_p: 0.75, top_k: 11, min_p: 0.125, seed: 99, repeat_penalty: 1.5, repeat_last_n: 32,
      presence_penalty: 0.25, frequency_penalty: -0.5, logit_bias: { 65: -100, 66: 1.5 }, stop: ["never\u0001"], ignore_eos: false, max_completion_tokens: 2000,
      speculative: { n_max: 2 }, cache_prompt: true, grammar: "root ::= [a-z]+",
    });
    const request = JSON.parse(body.choices[0].text);
    assert.deepEqual(request.sampling, {
      temperature: 0.5, topK: 11, topP: 0.75, minP: 0.125, seed: 99, repeatPenalty: 1.5, repeatLastN: 32, presencePenalty: 0.25, frequencyPenalty: -0.5,
      logitBias: [[65, null], [66, 1.5]],
    });
    assert.equal(request.maxTokens, 2000);
    assert.equal(request.nMax, 2);
    assert.equal(request.cachePrompt, true);
    assert.equal(request.grammar, "root ::= [a-z]+");
    assert.deepEqual(request.stop, ["never\u0001"]);
  }),

  scriptedCase("completions: characters of several tokens are never split", async (target) => {
    const text = "né 🙂🙃 日本語 e\u0301 👩‍👩‍👧 ok";
    for (const max_tokens of [1000, 6]) {
      const { chunks } = await stream(target, PATH, { model: target.model, prompt: `@@say ${text}`, max_tokens });
      const parts = choicesOf(chunks).map((choice) => choice.text as string);
      const joined = parts.join("");
      if (max_tokens === 1000) {
        assert.equal(joined, text);
        for (const part of parts) assert.ok(!part.includes("�"), JSON.stringify(part));
      } else {
        // Six tokens end inside the first emoji: the broken character is shown once, at the end.
        assert.equal(joined, "né �");
        for (const part of parts.slice(0, -2)) assert.ok(!part.includes("�"), JSON.stringify(part));
      }
    }
  }),

  scriptedCase("completions: a stop over the border of characters, tokens and steps", async (target) => {
    const stop = "🙂END";
    const { chunks } = await stream(target, PATH, { model: target.model, prompt: "@@say a 🙂EN b 🙂END. c", stop });
    assert.equal(textOf(chunks), "a 🙂EN b ");
    assert.equal(finishReasonOf(chunks), "stop");
  }),

  scriptedCase("completions: n choices have seeds of their own", async (target) => {
    const body = await ok(target, PATH, { model: target.model, prompt: "@@request", seed: 5, n: 3, max_tokens: 2000 });
    assert.deepEqual(body.choices.map((choice: Json) => JSON.parse(choice.text).sampling.seed), [5, 6, 7]);
    assert.equal(body.usage.prompt_tokens, "@@request".length);
  }),

  scriptedCase("completions: an error in the middle of a stream is an event, and there is no [DONE]", async (target) => {
    const { chunks, isDone } = await stream(target, PATH, { model: target.model, prompt: "@@error" });
    assert.ok(!isDone, "[DONE] after an error");
    const last = chunks.at(-1);
    assert.equal(last.error.message, "the script says so");
    assert.equal(textOf(chunks.slice(0, -1)), "partial");
    const answer = await call(target, PATH, { model: target.model, prompt: "@@error" });
    assert.equal(answer.status, 503);
    assert.equal(answer.json.error.message, "the script says so");
  }),
];
