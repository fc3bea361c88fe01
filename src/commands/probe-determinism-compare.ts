import * as fs from "node:fs";
import * as z from "zod";
import { defineCommand } from "../config/command.ts";
import type { Capture } from "../probe/capture.ts";
import { certificateTable } from "../probe/certificate-table.ts";
import { certify } from "../probe/certificate.ts";
import { compareCaptures } from "../probe/compare.ts";
import { usageError } from "../util/errors.ts";
import { statFile } from "../util/files.ts";
import { renderText } from "../util/table.ts";

export const command = defineCommand({
  name: "probe determinism compare",
  summary: "where captures part from a reference, and how near a tie it was there",
  details: "Exit code 1 when an output differs.",
  options: z.strictObject({
    reference: z.string().meta({ description: "capture to compare with" }),
    others: z.array(z.string()).min(1).meta({ description: "captures to compare" }),
    forks: z.boolean().default(false).meta({ description: "list each fork" }),
  }),
  positionals: ["reference", "others..."],
  async run(options, io) {
    const reference = readCapture(options.reference);
    const comparisons = options.others.map((file) => compareCaptures(reference, readCapture(file)));
    const certificate = certify("comparison", reference.name, reference.maxTokens, comparisons.map((comparison) => ({ comparison, note: null, isPlain: false })));
    if (io.json) io.out(JSON.stringify({ comparisons, report: certificate }));
    else {
      io.out(renderText(certificateTable(certificate.rows)));
      for (const c of options.forks ? comparisons : []) for (const f of c.forks) io.out(`${c.mode}: ${f.id} parts at ${f.atToken === null ? `character ${f.atChar}` : `token ${f.atToken}`}${f.margin === null ? "" : `, margin ${f.rival === null ? "at least " : ""}${f.margin.toFixed(4)} nats${f.rival === null ? "" : `, took ${JSON.stringify(f.rival)}`}`}`);
      io.out(`\n${certificate.verdict}`);
    }
    return comparisons.every((c) => c.exact === c.prompts) ? 0 : 1;
  },
});

function readCapture(file: string): Capture {
  statFile(file, "capture");
  try {
    const value = JSON.parse(fs.readFileSync(file, "utf8")) as Capture;
    if (value.kind === "capture") return value;
  } catch {
    // The message below says both.
  }
  throw usageError(`${file} is no capture; make one with probe determinism capture`);
}
