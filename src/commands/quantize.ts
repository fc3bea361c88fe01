import * as z from "zod";
import { llamaDir } from "../config/common.ts";
import { defineCommand } from "../config/command.ts";
import { quantizeFile, type QuantizeReport } from "../llama/quantize.ts";
import { fileTypeChoices, findFileType, parseFileType, parseTensorRule, parseTensorType, readTensorRules } from "../llama/quantize-types.ts";
import { usageError } from "../util/errors.ts";
import { refuseOverwrite } from "../util/files.ts";
import { formatDuration, formatFixed, formatMiB } from "../util/format.ts";
import { createProgress } from "../util/progress.ts";

const options = z.strictObject({
  input: z.string().meta({ description: "GGUF file; of a split set its first file" }),
  output: z.string().optional().meta({ description: "GGUF file to write; left out with --dry-run" }),
  type: z.string().optional().meta({ description: `type of the file: ${fileTypeChoices.join(", ")}` }),
  threads: z.int().min(0).max(512).default(0).meta({ description: "threads; 0 measures a safe number", placeholder: "N" }),
  tensorType: z.array(z.string()).default([]).meta({ description: "PATTERN=TYPE: tensors whose name the expression is found in get this type; copy keeps the type they have; the first rule that matches wins", placeholder: "RULE" }),
  tensorTypeFile: z.array(z.string()).default([]).meta({ description: "rules from a file, after those of --tensor-type", placeholder: "FILE" }),
  allowUnmatched: z.boolean().default(false).meta({ description: "go on when a rule matches no tensor" }),
  allowRequantize: z.boolean().default(false).meta({ description: "quantize what is quantized already; costs quality" }),
  imatrix: z.string().optional().meta({ description: "importance matrix made by llama-imatrix", placeholder: "FILE" }),
  outputTensorType: z.string().optional().meta({ description: "type of output.weight", placeholder: "TYPE" }),
  tokenEmbeddingType: z.string().optional().meta({ description: "type of token_embd.weight", placeholder: "TYPE" }),
  leaveOutputTensor: z.boolean().default(false).meta({ description: "leave output.weight as it is" }),
  pure: z.boolean().default(false).meta({ description: "one type for all tensors, no mixture" }),
  dryRun: z.boolean().default(false).meta({ description: "say what would come out, write nothing" }),
  maxBufferSize: z.int().min(1).default(8192).meta({ description: "MiB of tensor rows kept in memory at once", placeholder: "MIB" }),
  force: z.boolean().default(false).meta({ description: "replace an output file that exists" }),
  llamaDir,
});

export const command = defineCommand({
  name: "quantize",
  summary: "a GGUF file with smaller tensors, through libllama",
  details: "Names and meanings are llama-quantize's. `quantize IN OUT COPY` copies; `--tensor-type 'blk\\.40\\.=copy'` keeps a grafted head bit for bit.",
  options,
  positionals: ["input", "output", "type", "threads"],
  async run(given, io) {
    const { output, typeName } = outputAndType(given);
    const type = parseFileType(typeName);
    if (output !== undefined && !given.dryRun) refuseOverwrite(output, given.force);
    const progress = createProgress(`quantize ${type.name}`);
    const report = await quantizeFile({
      input: given.input,
      output,
      type,
      threads: given.threads,
      rules: [...given.tensorType.map((rule) => parseTensorRule(rule, "--tensor-type")), ...given.tensorTypeFile.flatMap((file) => readTensorRules(file))],
      allowUnmatched: given.allowUnmatched,
      allowRequantize: given.allowRequantize,
      imatrix: given.imatrix,
      outputType: given.outputTensorType === undefined ? undefined : parseTensorType(given.outputTensorType, "--output-tensor-type"),
      embeddingType: given.tokenEmbeddingType === undefined ? undefined : parseTensorType(given.tokenEmbeddingType, "--token-embedding-type"),
      leaveOutput: given.leaveOutputTensor,
      pure: given.pure,
      dryRun: given.dryRun,
      maxBufferBytes: given.maxBufferSize * 2 ** 20,
      llamaDir: given.llamaDir,
      signal: io.signal,
      onTensor(index, count, tensor) {
        progress.setTotal(count);
        progress.update(index, tensor);
      },
    });
    progress.end();
    if (io.json) io.out(JSON.stringify(report));
    else for (const line of describeReport(report)) io.out(line);
  },
});

/** `IN TYPE --dry-run` as well as `IN OUT TYPE`. */
function outputAndType({ output, type, dryRun }: z.output<typeof options>): { output: string | undefined; typeName: string } {
  if (type !== undefined) return { output, typeName: type };
  if (output === undefined) throw usageError("<type> is needed: quantize IN OUT TYPE");
  if (dryRun) return { output: undefined, typeName: output };
  if (findFileType(output) !== undefined) throw usageError(`<output> is needed: quantize IN OUT ${output}`);
  throw usageError(`<type> is needed: quantize IN ${output} TYPE`);
}

function describeReport(report: QuantizeReport): string[] {
  const size = ({ sizeBytes, bpw }: { sizeBytes: number; bpw: number }): string => `${formatMiB(sizeBytes)} MiB / ${formatFixed(bpw, 2)} BPW`;
  const lines = [`source ${size(report.source)}; ${report.isDryRun ? "would be" : "quantized"} ${size(report.result)}`];
  lines.push(`${report.nTensors} tensors: ${Object.entries(report.nByType).map(([name, n]) => `${n} ${name}`).join(", ")}`);
  for (const rule of report.rules) lines.push(`rule ${rule.pattern}=${rule.type.toLowerCase()}: ${rule.nMatched} matched, ${rule.nApplied} set${rule.nKept > 0 ? `, ${rule.nKept} stay as they are (norms, routers, vectors)` : ""}`);
  for (const fallback of report.fallbacks) lines.push(`fallback ${fallback.tensor}: rows of ${fallback.rowLength} do not fit ${fallback.wanted}, stored as ${fallback.got}`);
  if (report.withoutImatrix.length > 0) lines.push(`no importance rows for ${report.withoutImatrix.length} tensors: ${report.withoutImatrix.join(", ")}`);
  if (report.output !== undefined) lines.push(`${report.output}: ${report.type}, ${formatDuration(report.elapsedMs)} on ${report.nThreads} threads`);
  return lines;
}
