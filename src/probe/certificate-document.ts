/** The certificate as files: what was compared, under which conditions, with which files and command lines. */
import * as fs from "node:fs";
import type { Conditions } from "../bench/conditions.ts";
import type { ModelFile } from "../bench/model-files.ts";
import { renderMarkdown } from "../util/table.ts";
import { certificateTable } from "./certificate-table.ts";
import type { Certificate } from "./certificate.ts";
import { captureFile } from "./certify.ts";
import type { CertifyPlan } from "./certify-plan.ts";

/** Of all captures together: a certificate that was stopped and went on may have several commits. */
export interface CaptureConditions {
  readonly from: string;
  readonly to: string;
  readonly commits: readonly string[];
  readonly machines: readonly string[];
  readonly nodes: readonly string[];
  readonly libraries: readonly string[];
  readonly devices: readonly string[];
}

interface StoredCapture {
  readonly conditions: Conditions;
  readonly props?: { readonly library?: string; readonly build_info?: string; readonly device?: string };
}

export function captureConditions(plan: CertifyPlan, folder: string): CaptureConditions {
  const stored = plan.modes.map((mode) => JSON.parse(fs.readFileSync(captureFile(folder, mode), "utf8")) as StoredCapture);
  const distinct = (pick: (c: StoredCapture) => string | undefined): string[] => [...new Set(stored.map(pick).filter((v) => v !== undefined))];
  const dates = distinct((c) => c.conditions.date).sort();
  return {
    from: dates[0] ?? "",
    to: dates.at(-1) ?? "",
    commits: distinct((c) => c.conditions.commit),
    machines: distinct((c) => c.conditions.machine),
    nodes: distinct((c) => c.conditions.node),
    libraries: distinct((c) => c.props?.library ?? c.props?.build_info),
    devices: distinct((c) => c.props?.device),
  };
}

export function certificateMarkdown(plan: CertifyPlan, certificate: Certificate, conditions: CaptureConditions, models: readonly ModelFile[]): string {
  const { from, to, commits, machines, nodes, libraries, devices } = conditions;
  const servers = plan.servers.map((s) => `- ${s.name}: \`${Array.isArray(s.command) ? s.command.join(" ") : (s.url ?? "")}\``);
  return `${[
    `# ${certificate.title}`,
    `Reference: ${certificate.reference}. ${plan.prompts} prompts (${plan.promptFile ?? "built-in code tasks"}, seed ${plan.seed}), at most ${plan.maxTokens} new tokens${plan.ignoreEos ? ", written past the end of the answer" : ""}, temperature 0.`,
    renderMarkdown(certificateTable(certificate.rows)),
    certificate.verdict,
    "*Equal*: the same text and the same reason to end. *Rate*: with Wilson's 95% interval. *First fork* and *median*: token of the reference where the outputs part. *Margin*: log probability of the reference's token there minus that of the token taken instead, in nats (where that is none of the reference's five best: minus that of the fifth).",
    "## Conditions",
    [`- captured ${from} to ${to}`, `- Foretoken commit ${commits.join(", ") || "unknown"}`, `- ${libraries.join(", ") || "library unknown"}, ${devices.join(", ") || "device unknown"}`, `- ${machines.join("; ")}, Node ${nodes.join(", ")}`, ...models.map((m) => `- ${m.file}: sha256 ${m.sha256}`)].join("\n"),
    "## Servers",
    servers.join("\n"),
  ].join("\n\n")}\n`;
}
