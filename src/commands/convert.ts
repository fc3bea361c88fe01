import * as z from "zod";
import { defineCommand } from "../config/command.ts";
import { forceOverwrite } from "../config/common.ts";
import { convertCheckpoint } from "../hf/convert.ts";
import { usageError } from "../util/errors.ts";
import { refuseOverwrite } from "../util/files.ts";
import { formatBytes } from "../util/format.ts";
import { createProgress } from "../util/progress.ts";

const floatTypes = { bf16: "BF16", f16: "F16", f32: "F32" } as const;

export const command = defineCommand({
  name: "convert",
  summary: "a Hugging Face checkpoint (qwen3_5, qwen3_5_moe) as a GGUF file",
  details: "Without --mtp and --no-mtp the file holds the trunk and the MTP head. --mtp writes the head with embeddings and output alone, a draft model beside its target.",
  options: z.strictObject({
    checkpoint: z.string().meta({ description: "folder with config.json and *.safetensors" }),
    output: z.string().meta({ short: "o", aliases: ["outfile"], description: "the GGUF file to write", placeholder: "FILE" }),
    outtype: z.enum(["bf16", "f16", "f32"]).default("bf16").meta({ description: "type of the large tensors; norms and routers stay f32" }),
    mtp: z.boolean().optional().meta({ description: "on: the MTP head alone; off (--no-mtp): the trunk alone; not given: both" }),
    name: z.string().optional().meta({ aliases: ["model-name"], description: "general.name; default: from the folder's name" }),
    force: forceOverwrite,
  }),
  positionals: ["checkpoint"],
  async run(options, io) {
    if (!options.output.endsWith(".gguf")) throw usageError(`--output ${options.output} should end in .gguf`);
    refuseOverwrite(options.output, options.force);
    const progress = createProgress("convert", { format: formatBytes });
    const result = await convertCheckpoint({
      checkpoint: options.checkpoint,
      output: options.output,
      outType: floatTypes[options.outtype],
      mtp: options.mtp === undefined ? "both" : options.mtp ? "mtp" : "trunk",
      name: options.name,
      signal: io.signal,
      onBytes(nBytes, totalBytes) {
        progress.setTotal(totalBytes);
        progress.update(nBytes);
      },
    });
    progress.end();
    for (const note of result.notes) io.note(note);
    io.out(io.json ? JSON.stringify(result) : `${result.output}: ${result.architecture}, ${result.nTensors} tensors, ${result.nNextnLayers === 0 ? "no MTP head" : "with MTP head"}, ${formatBytes(result.sizeBytes)}`);
  },
});
