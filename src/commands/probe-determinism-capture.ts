import * as z from "zod";
import { localConditions, serverProps } from "../bench/conditions.ts";
import { parseExtraBody } from "../bench/options.ts";
import { createWorkload } from "../bench/workload.ts";
import { defineCommand } from "../config/command.ts";
import { target } from "../config/target.ts";
import { capture } from "../probe/capture.ts";
import { writeTextAtomic } from "../util/files.ts";

export const command = defineCommand({
  name: "probe determinism capture",
  summary: "greedy outputs of a server, kept to be compared",
  options: z.strictObject({
    ...target,
    output: z.string().meta({ short: "o", description: "JSON file to write", placeholder: "F" }),
    name: z.string().optional().meta({ description: "what the capture is called in comparisons; default: the model", placeholder: "TEXT" }),
    prompts: z.int().min(1).default(64).meta({ description: "prompts", placeholder: "N" }),
    promptFile: z.string().optional().meta({ description: "JSONL of prompts instead of the built-in code tasks", placeholder: "F" }),
    endpoint: z.enum(["auto", "chat", "completions"]).default("auto").meta({ description: "endpoint; auto: what the prompts are" }),
    maxTokens: z.int().min(1).default(300).meta({ description: "new tokens of an output at most", placeholder: "T" }),
    ignoreEos: z.boolean().default(false).meta({ description: "write max-tokens past the end of the answer" }),
    concurrency: z.int().min(1).default(1).meta({ short: "c", description: "requests in flight", placeholder: "C" }),
    margins: z.boolean().default(true).meta({ description: "ask for log probabilities, to know how near a tie each token was" }),
    seed: z.int().min(0).default(1).meta({ description: "of the order of prompts", placeholder: "N" }),
    extraBody: z.string().optional().meta({ description: "JSON object merged into each request's body", placeholder: "JSON" }),
    timeout: z.number().positive().default(600).meta({ description: "seconds for one request", placeholder: "S" }),
  }),
  async run(options, io) {
    const { baseUrl, model, apiKey } = options;
    const where = { baseUrl, model, apiKey };
    const workload = createWorkload({ ...options, n: options.prompts, nWarmup: 0, randomRangeRatio: 0, randomVocab: 4000, sharedPrefixLen: 0 });
    const made = await capture(where, {
      name: options.name ?? model,
      prompts: workload.measured.map((p, i) => ({ ...p, id: `${i}:${p.id}` })),
      concurrency: options.concurrency,
      maxTokens: options.maxTokens,
      ignoreEos: options.ignoreEos,
      margins: options.margins,
      extraBody: parseExtraBody(options.extraBody),
      timeoutMs: options.timeout * 1000,
      signal: io.signal,
    });
    await writeTextAtomic(options.output, `${JSON.stringify({ conditions: localConditions(), baseUrl, props: await serverProps(where), ...made })}\n`);
    const nTokens = made.outputs.reduce((sum, o) => sum + o.nOutput, 0);
    io.out(io.json ? JSON.stringify({ output: options.output, outputs: made.outputs.length, tokens: nTokens }) : `${options.output}: ${made.outputs.length} outputs, ${nTokens} tokens`);
  },
});
