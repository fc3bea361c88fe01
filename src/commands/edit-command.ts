/** What strip, extract and repair have in common: a GGUF file in, a GGUF file out. */
import * as z from "zod";
import type { Io } from "../config/command.ts";
import { forceOverwrite } from "../config/common.ts";
import type { EditOptions, EditResult } from "../gguf/edit.ts";
import { refuseOverwrite } from "../util/files.ts";
import { formatBytes } from "../util/format.ts";
import { createProgress } from "../util/progress.ts";

export const editOptions = z.strictObject({
  input: z.string().meta({ description: "GGUF file (any file of a split set)" }),
  output: z.string().meta({ short: "o", description: "the GGUF file to write", placeholder: "FILE" }),
  force: forceOverwrite,
});

/** Runs an edit with a progress line; the result of the edit is what it returns. */
export async function runEdit<R>(label: string, options: z.output<typeof editOptions>, io: Io, edit: (options: EditOptions) => Promise<R>): Promise<R> {
  refuseOverwrite(options.output, options.force);
  const progress = createProgress(label, { format: formatBytes });
  const result = await edit({
    input: options.input,
    output: options.output,
    signal: io.signal,
    onBytes(nBytes, totalBytes) {
      progress.setTotal(totalBytes);
      progress.update(nBytes);
    },
  });
  progress.end();
  return result;
}

export function describeEdit(result: EditResult): string {
  return `${result.output}: ${result.nTensors} tensors, block_count ${result.blockCount}, nextn_predict_layers ${result.nNextnLayers}, ${formatBytes(result.sizeBytes)}`;
}
