/** The chat box: one conversation, streamed, with what the server says about its speed below each answer. */
import { call } from "./api.js";

const element = (selector) => document.querySelector(selector);
const history = [];
let running;

export function startChat() {
  element("#chat").addEventListener("submit", (event) => {
    event.preventDefault();
    if (running === undefined) void send();
    else running.abort();
  });
  element("#prompt").addEventListener("keydown", (event) => {
    if (event.key !== "Enter" || event.shiftKey || event.isComposing) return;
    event.preventDefault();
    if (running === undefined) void send();
  });
  element("#clear").addEventListener("click", () => {
    running?.abort();
    history.length = 0;
    element("#log").replaceChildren();
  });
}

function addMessage(kind, text = "") {
  const message = document.createElement("div");
  message.className = `message ${kind}`;
  message.textContent = text;
  element("#log").append(message);
  scrollDown();
  return message;
}

function scrollDown() {
  const log = element("#log");
  log.scrollTop = log.scrollHeight;
}

async function send() {
  const input = element("#prompt");
  const text = input.value.trim();
  if (text === "") return;
  input.value = "";
  history.push({ role: "user", content: text });
  addMessage("user", text);
  running = new AbortController();
  element("#send").textContent = "Stop";
  try {
    await answer(running.signal);
  } catch (error) {
    if (error.name !== "AbortError") addMessage("error", error.message);
  } finally {
    running = undefined;
    element("#send").textContent = "Send";
  }
}

async function answer(signal) {
  const request = {
    messages: history,
    stream: true,
    stream_options: { include_usage: true },
    temperature: Number(element("#temperature").value),
    max_tokens: Number(element("#max-tokens").value),
    ...(element("#drafts").checked ? {} : { speculative: { n_max: 0 } }),
  };
  const response = await call("/v1/chat/completions", request, signal);
  if (!response.ok) throw new Error((await response.json()).error.message);
  const message = addMessage("assistant");
  const reasoning = document.createElement("span");
  reasoning.className = "reasoning";
  const content = document.createElement("span");
  message.append(content);
  let whole = "";
  for await (const chunk of events(response.body)) {
    if (chunk.error !== undefined) throw new Error(chunk.error.message);
    const delta = chunk.choices[0]?.delta ?? {};
    if (delta.reasoning_content !== undefined) {
      if (!reasoning.isConnected) message.prepend(reasoning);
      reasoning.textContent += delta.reasoning_content;
    }
    if (delta.content) {
      whole += delta.content;
      content.textContent = whole;
    }
    if (chunk.choices.length === 0 && chunk.timings !== undefined) message.append(facts(chunk));
    scrollDown();
  }
  history.push({ role: "assistant", content: whole });
}

function facts({ usage, timings }) {
  const line = document.createElement("span");
  line.className = "facts";
  const parts = [`${usage.completion_tokens} tokens`];
  if (timings.predicted_per_second > 0) parts.push(`${timings.predicted_per_second.toFixed(1)} tok/s`);
  parts.push(`first after ${(timings.queue_ms + timings.prompt_ms).toFixed(0)} ms`);
  if (timings.draft_n !== undefined) parts.push(`${timings.draft_n_accepted} of ${timings.draft_n} drafts accepted`);
  line.textContent = parts.join(" · ");
  return line;
}

async function* events(body) {
  const reader = body.pipeThrough(new TextDecoderStream()).getReader();
  let text = "";
  for (let part = await reader.read(); !part.done; part = await reader.read()) {
    text += part.value;
    const whole = text.split("\n\n");
    text = whole.pop();
    for (const event of whole) if (event.startsWith("data: ") && event !== "data: [DONE]") yield JSON.parse(event.slice(6));
  }
}
