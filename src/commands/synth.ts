import * as fs from "node:fs";
import * as path from "node:path";
import * as z from "zod";
import { defineCommand } from "../config/command.ts";
import { forceOverwrite } from "../config/common.ts";
import type { ModelShape } from "../gguf/model-shape.ts";
import { synthFileTypes } from "../gguf/synth/quantize-choice.ts";
import { namedShapes, ShapeFile, shapeFromFile } from "../gguf/synth/shapes.ts";
import { synthesize, type SynthRule } from "../gguf/synth/synthesize.ts";
import { readModelConfig } from "../hf/config.ts";
import { compilePattern, parseTensorRule } from "../llama/quantize-types.ts";
import { UserError, errorMessage, hasErrorCode, usageError } from "../util/errors.ts";
import { refuseOverwrite } from "../util/files.ts";
import { formatBytes, formatFixed } from "../util/format.ts";
import { createProgress } from "../util/progress.ts";

const fileType = z.string().refine((name) => synthFileTypes.includes(name.toUpperCase()), `one of ${synthFileTypes.join(", ")}`);

export const command = defineCommand({
  name: "synth",
  summary: "a loadable GGUF file with a model's shape and random weights, for speed runs before a download",
  details: `The types of the tensors are those that llama-quantize chooses. Text of such a file means nothing. Types: ${synthFileTypes.join(", ")}.`,
  options: z.strictObject({
    shape: z.string().default("ornith-35b").meta({ description: `${[...namedShapes.keys()].join(", ")}, a JSON file of sizes, or a checkpoint's config.json`, placeholder: "NAME|FILE.json" }),
    type: fileType.default("IQ4_XS").meta({ description: "file type of the trunk", placeholder: "TYPE" }),
    headType: fileType.default("Q6_K").meta({ description: "type of the MTP head's matrices", placeholder: "TYPE" }),
    tensorType: z.array(z.string()).default([]).meta({ description: "PATTERN=TYPE: matrices whose name the expression is found in get this type; the first rule that matches wins", placeholder: "RULE" }),
    output: z.string().meta({ short: "o", description: "the GGUF file to write", placeholder: "FILE" }),
    seed: z.int().min(0).default(1).meta({ description: "equal seeds give equal files" }),
    force: forceOverwrite,
  }),
  async run(options, io) {
    const shape = readShape(options.shape);
    refuseOverwrite(options.output, options.force);
    const progress = createProgress("synth", { format: formatBytes });
    const startMs = performance.now();
    const result = await synthesize({
      ...options,
      shape,
      type: options.type.toUpperCase(),
      headType: options.headType.toUpperCase(),
      rules: options.tensorType.map(synthRule),
      signal: io.signal,
      onBytes(nBytes, totalBytes) {
        progress.setTotal(totalBytes);
        progress.update(nBytes);
      },
    });
    progress.end();
    const seconds = (performance.now() - startMs) / 1000;
    const bitsPerWeight = (result.sizeBytes * 8) / result.nParameters;
    if (io.json) io.out(JSON.stringify({ ...result, bitsPerWeight, seconds }));
    else io.out(`${result.output}: ${formatFixed(result.nParameters / 1e6, 1)} M parameters, ${result.nTensors} tensors, ${formatBytes(result.sizeBytes)}, ${bitsPerWeight.toFixed(2)} BPW, written in ${seconds.toFixed(1)} s`);
  },
});

function synthRule(text: string): SynthRule {
  const { pattern, type } = parseTensorRule(text, "--tensor-type");
  if (type === "copy") throw usageError(`--tensor-type ${text}: there is nothing to copy from; give a type`);
  return { pattern: compilePattern(pattern), type };
}

function readShape(name: string): ModelShape {
  const named = namedShapes.get(name);
  if (named !== undefined) return named;
  if (!name.endsWith(".json")) throw usageError(`--shape ${name} is none of ${[...namedShapes.keys()].join(", ")} and no .json file`);
  let json: unknown;
  try {
    json = JSON.parse(fs.readFileSync(name, "utf8"));
  } catch (error) {
    if (hasErrorCode(error, "ENOENT")) throw usageError(`--shape ${name} does not exist`);
    throw new UserError(`--shape ${name}: ${errorMessage(error)}`);
  }
  if (typeof json === "object" && json !== null && "model_type" in json) {
    const { shape, nMtpLayers } = readModelConfig({ folder: path.dirname(name), config: json, tensors: new Map() });
    return { ...shape, nNextnLayers: Math.min(1, nMtpLayers) };
  }
  const parsed = ShapeFile.safeParse(json);
  if (!parsed.success) throw usageError(`--shape ${name}: ${parsed.error.issues.map((issue) => `${issue.path.join(".")}: ${issue.message}`).join("; ")}`);
  return shapeFromFile(parsed.data);
}
