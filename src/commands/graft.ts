import * as z from "zod";
import { defineCommand } from "../config/command.ts";
import { forceOverwrite } from "../config/common.ts";
import { graftHead } from "../gguf/edit.ts";
import { headOfGguf } from "../gguf/head-source.ts";
import { readGguf } from "../gguf/split.ts";
import { isCheckpoint } from "../hf/checkpoint.ts";
import { headOfCheckpoint } from "../hf/head-source.ts";
import { refuseOverwrite } from "../util/files.ts";
import { formatBytes, formatMiB } from "../util/format.ts";
import { createProgress } from "../util/progress.ts";

const floatTypes = { bf16: "BF16", f16: "F16", f32: "F32" } as const;

export const command = defineCommand({
  name: "graft",
  summary: "put the MTP head of a donor into a GGUF file, types and bytes kept",
  details: "DONOR is a GGUF file with an MTP head, an MTP-only GGUF file, or a checkpoint with mtp.* tensors. Architecture, sizes and tokenizer must agree. The head is read back from the result and compared before the file gets its name.",
  options: z.strictObject({
    target: z.string().meta({ description: "GGUF file without a head" }),
    donor: z.string().meta({ description: "GGUF file or checkpoint folder that holds the head" }),
    output: z.string().meta({ short: "o", description: "the GGUF file to write", placeholder: "FILE" }),
    outtype: z.enum(["bf16", "f16", "f32"]).default("bf16").meta({ description: "type of the head's matrices when the donor is a checkpoint" }),
    force: forceOverwrite,
  }),
  positionals: ["target", "donor"],
  async run(options, io) {
    refuseOverwrite(options.output, options.force);
    const head = isCheckpoint(options.donor) ? headOfCheckpoint(options.donor, floatTypes[options.outtype]) : headOfGguf(readGguf(options.donor));
    const progress = createProgress("graft", { format: formatBytes });
    const onBytes = (nBytes: number, totalBytes: number): void => {
      progress.setTotal(totalBytes);
      progress.update(nBytes);
    };
    const result = await graftHead({ input: options.target, output: options.output, signal: io.signal, onBytes }, head);
    progress.end();
    io.out(
      io.json
        ? JSON.stringify(result)
        : `${result.output}: ${result.nHeadTensors} tensors of the head (${formatMiB(result.headBytes)} MiB) as blk.${result.blockCount - 1}, ${result.nTensors} tensors, ${formatBytes(result.sizeBytes)}; head sha256 ${result.headSha256.slice(0, 16)}, read back`,
    );
  },
});
