/**
 * The suite on libllama with the embedded model: plain, and with an untrained head that drafts three tokens a step and
 * is verified sequentially, the mode that promises the text of plain decoding.
 */
import OpenAI from "openai";
import { afterAll, beforeAll, describe, expect, test } from "vitest";
import { parseArguments } from "../../src/config/options.ts";
import { engineOptions } from "../../src/config/engine-options.ts";
import { startEngineProcess, type EngineProcess } from "../../src/server/engine-process.ts";
import { createApp } from "../../src/server/app.ts";
import { listen, type HttpServer } from "../../src/server/http-server.ts";
import { readModelText } from "../../src/commands/model-text.ts";
import { silentLogger } from "../../src/util/log.ts";
import { tinyTrunk, tinyWithHead } from "../llama/tiny-model.ts";
import { defaultSettings } from "../server/scripted-server.ts";
import { applies } from "./case.ts";
import type { Target } from "./client.ts";
import { suite } from "./suite.ts";

const speculative = "--spec-type draft-mtp --spec-gate fixed --spec-verify sequential --no-kv-unified".split(" ");

describe.each([
  ["plain", async () => [await tinyTrunk()]],
  ["K = 3, sequential", async () => [await tinyWithHead(), ...speculative]],
] as const)("tiny-ornith, %s", (_, argumentsOf) => {
  let engine: EngineProcess;
  let server: HttpServer;
  let target: Target;
  beforeAll(async () => {
    const { options } = parseArguments(engineOptions, ["-m", ...(await argumentsOf()), "--threads", "1", "--ctx-size", "4096"]);
    engine = startEngineProcess({ entry: new URL("../../src/commands/engine-child.ts", import.meta.url), options: { engine: options, maxQueue: 64 } });
    const text = readModelText(options.model, {});
    server = await listen(createApp({ settings: { ...defaultSettings, modelName: "tiny-ornith" }, engine, text: () => text, logger: silentLogger }), { host: "127.0.0.1", port: 0 });
    await engine.ready;
    target = { baseUrl: server.url, model: "tiny-ornith", kind: "foretoken" };
  });
  afterAll(async () => {
    await engine.close(0);
    await server.close(100);
  });

  test("the official client chats and streams", async () => {
    const client = new OpenAI({ baseURL: `${server.url}/v1`, apiKey: "none", maxRetries: 0 });
    const messages = [{ role: "user" as const, content: "Write a Python function that adds two numbers." }];
    const whole = await client.chat.completions.create({ model: "tiny-ornith", messages, temperature: 0, max_tokens: 40 });
    const streamed = await client.chat.completions.stream({ model: "tiny-ornith", messages, temperature: 0, max_tokens: 40 }).finalChatCompletion();
    expect(whole.choices[0]?.message.content).toMatch(/def add\(/);
    expect(streamed.choices[0]?.message.content).toBe(whole.choices[0]?.message.content);
  });

  for (const entry of suite.filter((c) => applies(c, { kind: "foretoken" }))) test(entry.name, async () => entry.run(target));
});
