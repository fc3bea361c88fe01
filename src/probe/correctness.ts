/**
 * The gate that a server passes before its speed means anything: it lists the model, both endpoints answer with coherent
 * text, and the answers hold what was expected. Prompts and patterns are data, since every model words its code its own way.
 */
import { createClient, serverRoot } from "../bench/client.ts";
import { getText } from "../bench/http.ts";
import type { Target } from "../bench/run.ts";

export interface CorrectnessCase {
  readonly name: string;
  readonly endpoint: "chat" | "completions";
  readonly prompt: string;
  readonly maxTokens: number;
  /** All must be in the answer: text, or a regular expression between slashes. */
  readonly expect: readonly string[];
}

export interface Check {
  readonly name: string;
  readonly ok: boolean;
  /** Why not, or what was found. */
  readonly detail: string;
  readonly text?: string;
}

export interface CorrectnessReport {
  readonly ok: boolean;
  readonly checks: readonly Check[];
}

/** An answer "matches" when every pattern is found in it. */
export function missingPatterns(text: string, patterns: readonly string[]): string[] {
  return patterns.filter((pattern) => {
    const regex = /^\/(.*)\/([imsu]*)$/s.exec(pattern);
    return regex === null ? !text.includes(pattern) : !new RegExp(regex[1] as string, regex[2]).test(text);
  });
}

/** What makes a text incoherent without knowing what it should say; undefined when nothing does. */
export function incoherence(text: string): string | undefined {
  if (text.trim() === "") return "the answer is empty";
  if (text.includes("\uFFFD")) return "the answer has a broken character (U+FFFD)";
  // oxlint-disable-next-line no-control-regex
  if (/[\u0000-\u0008\u000e-\u001f]/.test(text)) return "the answer has control characters";
  const words = text.trim().split(/\s+/);
  const most = Math.max(...Array.from(new Set(words), (word) => words.filter((w) => w === word).length));
  if (words.length >= 12 && most > words.length / 2) return `one word makes up ${most} of ${words.length}`;
  if (/(.{1,40}?)\1{9,}/s.test(text.replace(/ +/g, " "))) return "the answer repeats itself";
  return undefined;
}

export async function probeCorrectness(target: Target, cases: readonly CorrectnessCase[], options: { timeoutMs: number; signal?: AbortSignal }): Promise<CorrectnessReport> {
  const checks: Check[] = [await checkModelList(target)];
  const client = createClient({
    ...target,
    isStream: false,
    temperature: 0,
    topP: 1,
    seed: 1,
    ignoreEos: false,
    timeoutMs: options.timeoutMs,
    keepAlive: false,
    saveText: true,
    ...(options.signal === undefined ? {} : { signal: options.signal }),
    now: () => performance.now(),
  });
  for (const one of cases) {
    const { name, prompt, maxTokens } = one;
    const record = await client.send(one.endpoint === "chat" ? { id: name, maxTokens, messages: [{ role: "user", content: prompt }] } : { id: name, maxTokens, prompt }, 0);
    checks.push(judge(one, record.text ?? "", record.failure?.message));
  }
  client.close();
  return { ok: checks.every((c) => c.ok), checks };
}

export function judge(one: CorrectnessCase, text: string, failure: string | undefined): Check {
  const name = `${one.name} (/v1/${one.endpoint === "chat" ? "chat/completions" : "completions"})`;
  if (failure !== undefined) return { name, ok: false, detail: failure };
  const wrong = incoherence(text);
  if (wrong !== undefined) return { name, ok: false, detail: wrong, text };
  const missing = missingPatterns(text, one.expect);
  if (missing.length > 0) return { name, ok: false, detail: `not in the answer: ${missing.join(", ")}`, text };
  return { name, ok: true, detail: `coherent${one.expect.length > 0 ? `, has ${one.expect.join(" and ")}` : ""}`, text };
}

async function checkModelList(target: Target): Promise<Check> {
  const name = "/v1/models lists the model";
  const text = await getText(`${serverRoot(target.baseUrl)}/v1/models`, target.apiKey === undefined ? {} : { headers: { authorization: `Bearer ${target.apiKey}` } });
  if (text === undefined) return { name, ok: false, detail: "no answer" };
  try {
    const ids = (JSON.parse(text) as { data: { id: string }[] }).data.map((m) => m.id);
    return { name, ok: ids.includes(target.model), detail: ids.includes(target.model) ? target.model : `${target.model} is not among ${ids.join(", ")}` };
  } catch {
    return { name, ok: false, detail: `not a model list: ${text.slice(0, 120)}` };
  }
}
