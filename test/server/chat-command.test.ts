import { expect, test } from "vitest";
import { command } from "../../src/commands/chat.ts";
import { parseArguments } from "../../src/config/options.ts";
import { startLocalServer } from "./scripted-server.ts";

async function chat(url: string, ...argv: string[]): Promise<{ out: string[]; notes: string[] }> {
  const out: string[] = [];
  const notes: string[] = [];
  const { options } = parseArguments(command.options, ["--base-url", url, ...argv], command.positionals);
  await command.run(options, { out: (text) => out.push(text), note: (text) => notes.push(text), json: true, signal: new AbortController().signal });
  return { out, notes };
}

test("one question, answered with its speed", async () => {
  const server = await startLocalServer({ settings: { apiKeys: ["k"] } });
  const { out, notes } = await chat(server.url, "--api-key", "k", "--system", "Be kind.", "@@say Hello 🙂, the end");
  expect(JSON.parse(out[0] as string)).toMatchObject({ answer: "Hello 🙂, the end", usage: { completion_tokens: expect.any(Number) as number } });
  expect(notes[0]).toMatch(/^\d+ tokens, [\d.]+ tok\/s, \d+ of \d+ drafts accepted$/);
  const plain = await chat(`${server.url}/v1`, "--api-key", "k", "--no-drafts", "@@say Hello 🙂, the end");
  expect(JSON.parse(plain.out[0] as string)).toMatchObject({ answer: "Hello 🙂, the end" });
  expect(plain.notes[0]).not.toMatch(/drafts/);
  await server.close();
});

test("errors are one line that says what to do", async () => {
  const server = await startLocalServer({ settings: { apiKeys: ["k"] } });
  await expect(chat(server.url, "hi")).rejects.toThrow(/answers 401: an API key is needed/);
  await expect(chat(server.url, "--api-key", "k", "@@error")).rejects.toThrow("the server ended the answer: the script says so");
  await server.close();
  await expect(chat(server.url, "hi")).rejects.toThrow(/nobody answers at .*; start a server with foretoken serve/);
});
