import * as path from "node:path";
import * as z from "zod";
import { hashModelFiles } from "../bench/model-files.ts";
import { defineCommand } from "../config/command.ts";
import { loadCertifyPlan } from "../probe/certify-plan.ts";
import { captureConditions, certificateMarkdown } from "../probe/certificate-document.ts";
import { certificateTable } from "../probe/certificate-table.ts";
import { runCertificate } from "../probe/certify.ts";
import { writeTextAtomic } from "../util/files.ts";
import { renderText } from "../util/table.ts";

export const command = defineCommand({
  name: "probe determinism certify",
  summary: "run modes of a plan, compare their greedy outputs, write the certificate",
  details: "The plan names servers, modes and a reference. Captures that are there are not made again.",
  options: z.strictObject({
    plan: z.string().meta({ description: "plan file, YAML" }),
    output: z.string().optional().meta({ short: "o", description: "folder for captures, logs and the certificate; default runs/certificate-NAME", placeholder: "DIR" }),
    set: z.array(z.string()).default([]).meta({ description: "value for a {NAME} of the plan", placeholder: "NAME=VALUE" }),
    prompts: z.int().min(1).optional().meta({ description: "instead of the plan's", placeholder: "N" }),
    maxTokens: z.int().min(1).optional().meta({ description: "instead of the plan's", placeholder: "T" }),
    fresh: z.boolean().default(false).meta({ description: "capture everything again" }),
  }),
  positionals: ["plan"],
  async run(options, io) {
    const loaded = loadCertifyPlan(options.plan, options.set);
    const plan = { ...loaded, prompts: options.prompts ?? loaded.prompts, maxTokens: options.maxTokens ?? loaded.maxTokens };
    const folder = options.output ?? path.join("runs", `certificate-${plan.name}`);
    const certificate = await runCertificate(plan, folder, { signal: io.signal, note: (text) => io.note(text), fresh: options.fresh });
    const conditions = captureConditions(plan, folder);
    const models = await hashModelFiles(plan.servers.flatMap((server) => (Array.isArray(server.command) ? [server.command] : [])));
    await writeTextAtomic(path.join(folder, "certificate.json"), `${JSON.stringify({ plan, conditions, models, ...certificate }, null, 2)}\n`);
    await writeTextAtomic(path.join(folder, "certificate.md"), certificateMarkdown(plan, certificate, conditions, models));
    io.out(io.json ? JSON.stringify({ folder, report: certificate }) : `${renderText(certificateTable(certificate.rows))}\n\n${certificate.verdict}`);
  },
});
