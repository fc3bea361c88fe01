import * as z from "zod";
import { localConditions } from "../bench/conditions.ts";
import { defineCommand } from "../config/command.ts";
import { target } from "../config/target.ts";
import { probeCorrectness, type CorrectnessCase } from "../probe/correctness.ts";
import { writeTextAtomic } from "../util/files.ts";

export const command = defineCommand({
  name: "probe correctness",
  summary: "the gate: the server lists the model and both endpoints answer coherently with what is expected",
  details: "A pattern is text, or a regular expression between slashes. Exit code 1 when a check fails.",
  options: z.strictObject({
    ...target,
    chatPrompt: z.string().default("Write a Python function to add two numbers.").meta({ description: "sent to /v1/chat/completions", placeholder: "TEXT" }),
    chatExpect: z.array(z.string()).default(["def add(", "/return \\w+ \\+ \\w+/"]).meta({ description: "must be in the chat answer", placeholder: "PATTERN" }),
    completionPrompt: z.string().default("def add(a, b):\n    return").meta({ description: "sent to /v1/completions", placeholder: "TEXT" }),
    completionExpect: z.array(z.string()).default(["a + b"]).meta({ description: "must be in the completion", placeholder: "PATTERN" }),
    maxTokens: z.int().min(1).default(96).meta({ description: "new tokens of an answer at most", placeholder: "T" }),
    timeout: z.number().positive().default(120).meta({ description: "seconds for one answer", placeholder: "S" }),
    output: z.string().optional().meta({ short: "o", description: "JSON file with checks and answers", placeholder: "F" }),
  }),
  async run(options, io) {
    const { baseUrl, model, apiKey, maxTokens } = options;
    const cases: CorrectnessCase[] = [
      { name: "chat", endpoint: "chat", prompt: options.chatPrompt, maxTokens, expect: options.chatExpect },
      { name: "completion", endpoint: "completions", prompt: options.completionPrompt, maxTokens, expect: options.completionExpect },
    ];
    const report = await probeCorrectness({ baseUrl, model, apiKey }, cases, { timeoutMs: options.timeout * 1000, signal: io.signal });
    if (options.output !== undefined) await writeTextAtomic(options.output, `${JSON.stringify({ ...localConditions(), baseUrl, model, cases, ...report }, null, 2)}\n`);
    if (io.json) io.out(JSON.stringify(report));
    else for (const check of report.checks) io.out(`${check.ok ? "ok  " : "FAIL"}  ${check.name}: ${check.detail}`);
    return report.ok ? 0 : 1;
  },
});
