/** `inspect` on a Hugging Face checkpoint. */
import type { Io } from "../config/command.ts";
import { auditCheckpoint } from "../hf/audit.ts";
import { isCheckpoint } from "../hf/checkpoint.ts";
import { usageError } from "../util/errors.ts";
import { formatBytes, formatFixed, formatMiB } from "../util/format.ts";
import { renderText } from "../util/table.ts";

export function inspectCheckpoint(folder: string, io: Io): void {
  if (!isCheckpoint(folder)) throw usageError(`${folder} is a folder without config.json; inspect takes GGUF files and Hugging Face checkpoints`);
  const audit = auditCheckpoint(folder);
  if (io.json) {
    io.out(JSON.stringify(audit));
    return;
  }
  io.out(`${audit.folder}: ${audit.architecture} checkpoint, ${audit.nTrunkLayers} layers, ${formatFixed(audit.nParameters / 1e6, 1)} M parameters, ${audit.nTensors} tensors, ${formatBytes(audit.tensorBytes)}`);
  io.out(`MTP: ${audit.mtp.advice}`);
  io.out(`\n${renderText({ columns: [{ title: "dtype" }, { title: "tensors", align: "right" }, { title: "MiB", align: "right" }], rows: audit.dtypes.map((d) => [d.dtype, String(d.nTensors), formatMiB(d.sizeBytes)]) })}`);
}
