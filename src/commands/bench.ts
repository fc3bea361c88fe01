import * as z from "zod";
import { localConditions, serverProps } from "../bench/conditions.ts";
import { loadShape } from "../bench/options.ts";
import { describeResult } from "../bench/print.ts";
import { runBench, writeRaw } from "../bench/run.ts";
import { defineCommand } from "../config/command.ts";
import { target } from "../config/target.ts";

export const command = defineCommand({
  name: "bench",
  summary: "load-test any OpenAI-compatible server: throughput, latencies, draft acceptance",
  details: "Tokens are counted from the server's usage, never from chunks. The warm-up is discarded. With --output the raw file has a line per request.",
  options: z.strictObject({
    ...target,
    ...loadShape,
    output: z.string().optional().meta({ short: "o", description: "raw JSONL: conditions, a line per request, draft counts", placeholder: "F" }),
  }),
  async run(options, io) {
    const { baseUrl, model, apiKey, output, ...load } = options;
    const where = { baseUrl, model, apiKey };
    const result = await runBench(where, load, { signal: io.signal });
    if (output !== undefined) await writeRaw(output, { ...localConditions(), baseUrl, model, load, server: await serverProps(where) }, result);
    const { records: _records, ...rest } = result;
    io.out(io.json ? JSON.stringify({ ...rest, load, ...(output === undefined ? {} : { output }) }) : describeResult(result));
    return result.summary.failed === result.summary.requests ? 1 : 0;
  },
});
