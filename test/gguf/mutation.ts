/**
 * The mutation campaign by hand: `npx tsx test/gguf/mutation.ts COUNT [SEED] [OFFERED]` damages COUNT headers and
 * prints what became of them. OFFERED files of each verdict are then given to libllama, in children, and the two
 * verdicts compared.
 */
import { fork } from "node:child_process";
import * as fs from "node:fs";
import { createRequire } from "node:module";
import * as os from "node:os";
import * as path from "node:path";
import { fileURLToPath } from "node:url";
import { Rng } from "../../src/util/rng.ts";
import { smallShape } from "./small-shape.ts";
import { synthesize } from "../../src/gguf/synth/synthesize.ts";
import { classOf, runCampaign, type CampaignOptions } from "./campaign.ts";
import type { OfferAnswer } from "./offer-child.ts";

interface Offered {
  readonly file: string;
  /** The class of the refusal, or of the remarks. */
  readonly ours: string;
}

const [nFiles = 1000, seed = 1, nOffered = 0] = process.argv.slice(2).map(Number);
const folder = fs.mkdtempSync(path.join(os.tmpdir(), "mutation-"));
const sources = [path.join(folder, "moe.gguf"), path.join(folder, "dense.gguf")];
await synthesize({ shape: smallShape, type: "Q8_0", headType: "Q8_0", output: sources[0] as string, seed: 1 });
await synthesize({ shape: { ...smallShape, architecture: "qwen35", experts: undefined, feedForward: 64, nNextnLayers: 0 }, type: "F16", headType: "F16", output: sources[1] as string, seed: 2 });

const rng = new Rng(seed + 1);
const kept: Record<"accepted" | "refused", Offered[]> = { accepted: [], refused: [] };
const seen = { accepted: 0, refused: 0 };

/** Keeps a uniform sample of `nOffered` files of each verdict. */
const sample: CampaignOptions["onVerdict"] = (file, judged) => {
  const verdict = "remarks" in judged ? "accepted" : "refused";
  seen[verdict]++;
  const place = kept[verdict].length < nOffered ? kept[verdict].length : rng.below(seen[verdict]);
  if (place >= nOffered) return;
  const copy = path.join(folder, `${verdict}-${place}.gguf`);
  fs.copyFileSync(file, copy);
  kept[verdict][place] = { file: copy, ours: "remarks" in judged ? judged.remarks.map(classOf).join("; ") || "no remark" : classOf(judged.error.message) };
};

const startMs = performance.now();
const result = runCampaign({ sources, folder, nFiles, seed, onVerdict: sample });
console.log(JSON.stringify({ ...result, refusals: Object.fromEntries([...result.refusals].toSorted((a, b) => b[1] - a[1])), seconds: (performance.now() - startMs) / 1000 }, null, 1));

for (const verdict of ["accepted", "refused"] as const) {
  const tally = new Map<string, number>();
  for (const [i, answer] of (await offerAll(kept[verdict].map((o) => o.file))).entries()) {
    const line = `libllama: ${answer} | ours: ${kept[verdict][i]?.ours}`;
    tally.set(line, (tally.get(line) ?? 0) + 1);
  }
  if (kept[verdict].length > 0) console.log(`\n${kept[verdict].length} files that we ${verdict === "accepted" ? "accept" : "refuse"}:`);
  for (const [line, n] of [...tally].toSorted((a, b) => b[1] - a[1])) console.log(`${String(n).padStart(5)}  ${line}`);
}
fs.rmSync(folder, { recursive: true });

/** One child takes files until one kills it; the next goes on after that. */
async function offerAll(files: readonly string[]): Promise<string[]> {
  const answers: string[] = [];
  while (answers.length < files.length) {
    const before = answers.length;
    const death = await offerSome(files.slice(before), (answer) => answers.push(answer.verdict));
    if (answers.length < files.length) answers.push(`died (${death})`);
  }
  return answers;
}

function offerSome(files: readonly string[], onAnswer: (answer: OfferAnswer) => void): Promise<string> {
  const entry = path.join(path.dirname(fileURLToPath(import.meta.url)), "offer-child.ts");
  const child = fork(entry, [], { stdio: ["ignore", "ignore", "pipe", "ipc"], execArgv: ["--import", createRequire(import.meta.url).resolve("tsx")] });
  let tail = "";
  child.stderr?.on("data", (text: Buffer) => (tail = (tail + text.toString()).slice(-4000)));
  child.on("message", (answer) => onAnswer(answer as OfferAnswer));
  child.send(files);
  return new Promise((resolve) =>
    child.once("close", (code, signal) => {
      const assertion = tail.split("\n").findLast((line) => /GGML_ASSERT|terminate called|what\(\)/.test(line));
      resolve(assertion?.trim().replace(/^.*\//, "") ?? signal ?? `exit ${code}`);
    }),
  );
}
