import * as fs from "node:fs";
import * as os from "node:os";
import * as path from "node:path";
import * as z from "zod";
import { llamaDir } from "../config/common.ts";
import { defineCommand } from "../config/command.ts";
import { convertCheckpoint } from "../hf/convert.ts";
import { diagnose, type Diagnosis } from "../llama/diagnosis.ts";
import { tryModel, type TryModelResult } from "../llama/try-model.ts";
import { UserError } from "../util/errors.ts";
import { formatBytes, formatFixed } from "../util/format.ts";
import { embeddedCheckpoint, packageVersion } from "../util/paths.ts";
import { renderText } from "../util/table.ts";

const prompt = "def add(a, b):\n    return";
const expected = " a + b";

export const command = defineCommand({
  name: "doctor",
  summary: "what this machine can run, and what to install for more",
  options: z.strictObject({
    llamaDir,
    model: z.boolean().default(true).meta({ description: "convert the embedded model, load it and let it speak" }),
  }),
  async run(options, io) {
    const diagnosis = diagnose({ llamaDir: options.llamaDir });
    const model = options.model && diagnosis.library !== undefined ? await tryEmbeddedModel(options.llamaDir) : undefined;
    if (io.json) io.out(JSON.stringify({ foretoken: packageVersion, ...diagnosis, model }));
    else for (const line of [...describe(diagnosis), ...describeModel(model)]) io.out(line);
    return diagnosis.library === undefined || !diagnosis.isNodeSupported || model?.isGood === false ? 1 : 0;
  },
});

type ModelCheck = ({ readonly isGood: boolean } & TryModelResult) | { readonly isGood: false; readonly error: string };

async function tryEmbeddedModel(directory: string | undefined): Promise<ModelCheck> {
  const folder = fs.mkdtempSync(path.join(os.tmpdir(), "foretoken-doctor-"));
  try {
    const output = path.join(folder, "tiny-ornith.gguf");
    await convertCheckpoint({ checkpoint: embeddedCheckpoint, output, outType: "BF16", mtp: "trunk" });
    const result = await tryModel({ modelPath: output, prompt, nTokens: 8, llamaDir: directory });
    return { isGood: result.text.startsWith(expected), ...result };
  } catch (error) {
    if (error instanceof UserError) return { isGood: false, error: error.message };
    throw error;
  } finally {
    fs.rmSync(folder, { recursive: true, force: true });
  }
}

function describe(d: Diagnosis): string[] {
  const { machine } = d;
  const cores = machine.nCores === undefined ? `${machine.nCpus} CPUs` : `${machine.nCores} cores, ${machine.nCpus} CPUs`;
  const lines = [
    `foretoken ${packageVersion}, ${d.platform}, Node ${d.node}${d.isNodeSupported ? "" : " (too old)"}`,
    `${cores}${machine.quota < machine.nCpus ? `, quota ${machine.quota}` : ""}, load ${formatFixed(machine.load, 1)}: --threads 0 takes ${d.nThreads} now`,
    d.library === undefined ? `libraries: ${d.libraryError ?? "none"}` : `libraries: llama.cpp ${d.library.version} (ggml ${d.library.ggmlVersion}) in ${d.library.folder}`,
  ];
  if (d.packages.length > 0) lines.push("", renderText({ columns: [{ title: "package" }, { title: "installed" }], rows: d.packages.map((p) => [p.name, p.isInstalled ? (p.version ?? "yes") : "no"]) }));
  if (d.devices.length > 0)
    lines.push(
      "",
      renderText({
        columns: [{ title: "device" }, { title: "is" }, { title: "free", align: "right" }, { title: "total", align: "right" }],
        rows: d.devices.map((device) => [device.name, device.description, formatBytes(device.freeBytes), formatBytes(device.totalBytes)]),
      }),
    );
  if (d.advice.length > 0) lines.push("", ...d.advice.map((text) => `- ${text}`));
  return lines;
}

function describeModel(model: ModelCheck | undefined): string[] {
  if (model === undefined) return [];
  if ("error" in model) return ["", `embedded model: ${model.error}`];
  const verdict = model.isGood ? "works" : `speaks wrongly (${JSON.stringify(expected)} was expected)`;
  return ["", `embedded model: ${verdict}: ${JSON.stringify(prompt)} -> ${JSON.stringify(model.text)}, ${formatFixed(model.decodeMs, 2)} ms a token on ${model.device}`];
}
