import * as z from "zod";
import { defineCommand } from "../config/command.ts";
import { bootstrapHead } from "../hf/bootstrap.ts";
import { formatBytes } from "../util/format.ts";
import { createProgress } from "../util/progress.ts";

const dtypes = { bfloat16: "BF16", float16: "F16", float32: "F32" } as const;

export const command = defineCommand({
  name: "bootstrap",
  summary: "an MTP head from one trunk layer: a checkpoint with mtp.* tensors, where training begins",
  options: z.strictObject({
    checkpoint: z.string().meta({ description: "Hugging Face checkpoint of the trunk" }),
    output: z.string().meta({ short: "o", description: "folder of the MTP-only checkpoint", placeholder: "DIR" }),
    sourceLayer: z.int().min(0).optional().meta({ description: "full-attention layer to copy; default: the last one", placeholder: "N" }),
    ehProjInit: z.enum(["hidden", "embedding", "mean"]).default("hidden").meta({ description: "what the projection of [embedding, hidden] passes at first" }),
    dtype: z.enum(["bfloat16", "float16", "float32"]).default("bfloat16").meta({ description: "type of the tensors" }),
    force: z.boolean().default(false).meta({ description: "replace an output folder that holds a checkpoint" }),
  }),
  positionals: ["checkpoint"],
  async run(options, io) {
    const progress = createProgress("bootstrap", { format: formatBytes });
    const result = await bootstrapHead({
      ...options,
      dtype: dtypes[options.dtype],
      signal: io.signal,
      onBytes(nBytes, totalBytes) {
        progress.setTotal(totalBytes);
        progress.update(nBytes);
      },
    });
    progress.end();
    io.out(io.json ? JSON.stringify(result) : `${result.output}: MTP head from layer ${result.sourceLayer}, ${result.nTensors} tensors, ${formatBytes(result.sizeBytes)}`);
    io.note(`next: foretoken convert ${result.output} --mtp -o HEAD.gguf`);
  },
});
