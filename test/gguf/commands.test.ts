/** The verbs that move files: flags in, one result out. */
import * as fs from "node:fs";
import * as path from "node:path";
import { beforeAll, expect, test } from "vitest";
import type { Command, Io } from "../../src/config/command.ts";
import { parseArguments } from "../../src/config/options.ts";
import { verbs } from "../../src/commands/verbs.ts";
import { stringEntry } from "../../src/gguf/kv.ts";
import { UserError } from "../../src/util/errors.ts";
import { embeddedCheckpoint } from "../../src/util/paths.ts";
import { rewriteFile, synthSmall, temporaryFolder } from "./files.ts";

const folder = temporaryFolder("commands");
const at = (name: string): string => path.join(folder, name);

interface Run {
  readonly out: string;
  readonly notes: string;
  readonly json: Record<string, unknown>;
}

async function run(...argv: string[]): Promise<Run> {
  const [name = "", ...rest] = argv;
  const command: Command = (await verbs[name]?.load()) ?? expect.fail(`no verb ${name}`);
  const json = rest.includes("--json");
  const { options } = parseArguments(command.options, rest.filter((a) => a !== "--json"), command.positionals);
  const lines = { out: [] as string[], notes: [] as string[] };
  const io: Io = { out: (text) => void lines.out.push(text), note: (text) => void lines.notes.push(text), json, signal: new AbortController().signal };
  await command.run(options, io);
  const out = lines.out.join("\n");
  if (json) expect(lines.out.length).toBe(1);
  return { out, notes: lines.notes.join("\n"), json: json ? (JSON.parse(out) as Record<string, unknown>) : {} };
}

beforeAll(async () => {
  await synthSmall(at("whole.gguf"));
  await synthSmall(at("trunk.gguf"), { nNextnLayers: 0 }, 2);
});

test("graft, inspect, strip, extract and repair, one after the other", async () => {
  expect((await run("graft", at("trunk.gguf"), at("whole.gguf"), "-o", at("grafted.gguf"))).out).toMatch(/^\S+grafted\.gguf: 20 tensors of the head \([\d.]+ MiB\) as blk\.2, \d+ tensors, .* head sha256 [0-9a-f]{16}, read back$/);
  const inspected = await run("inspect", at("grafted.gguf"), "--json", "--tensors", "nextn", "--hash");
  expect(inspected.json).toMatchObject({ architecture: "qwen35moe", mtp: { verdict: "complete", blocks: [2] }, problems: [], remarks: [] });
  expect(inspected.json["tensors"]).toHaveLength(4);
  expect((inspected.json["tensors"] as { sha256: string }[]).every((t) => /^[0-9a-f]{64}$/.test(t.sha256))).toBe(true);
  expect((inspected.json["keys"] as Record<string, unknown>)["tokenizer.ggml.tokens"]).toEqual({ elementType: "string", length: 300 });
  expect((await run("strip", at("grafted.gguf"), "-o", at("stripped.gguf"), "--json")).json).toMatchObject({ blockCount: 2, nNextnLayers: 0 });
  expect((await run("inspect", at("stripped.gguf"), at("trunk.gguf"), "--hash", "--json")).json).toMatchObject({ same: true, keys: [], tensors: [], data: [] });
  expect((await run("extract", at("grafted.gguf"), "-o", at("head.gguf"))).out).toContain("23 tensors, block_count 3, nextn_predict_layers 1");
  await rewriteFile(at("grafted.gguf"), at("unsaid.gguf"), { entries: { "qwen35moe.nextn_predict_layers": undefined } });
  expect((await run("repair", at("unsaid.gguf"), "-o", at("said.gguf"))).out).toContain("(was: present-but-not-advertised)");
  expect((await run("repair", at("said.gguf"), "-o", at("again.gguf"))).out).toContain("nothing to repair, nothing written");
});

test("inspect prints what people need first", async () => {
  const { out } = await run("inspect", at("whole.gguf"));
  expect(out.split("\n").slice(0, 3)).toEqual([expect.stringMatching(/qwen35moe, Q8_0, 0\.2 M parameters/), expect.stringMatching(/^GGUF version 3, 38 keys, \d+ tensors, .* bits per weight$/), expect.stringMatching(/^MTP: MTP head present and complete \(blk\.2\)/)]);
  expect(out).toMatch(/tokenizer\.ggml\.tokens +300 x string/);
  expect((await run("inspect", embeddedCheckpoint)).out).toContain("MTP: config.json promises 1 MTP layer");
});

test("convert and bootstrap tell the next step", async () => {
  const built = await run("bootstrap", embeddedCheckpoint, "--output", at("boot"), "--eh-proj-init", "mean", "--dtype", "float32");
  expect(built.out).toContain("MTP head from layer 7, 44 tensors");
  expect(built.notes).toContain("convert");
  expect((await run("convert", at("boot"), "--mtp", "--outtype", "f16", "-o", at("boot.gguf"), "--json")).json).toMatchObject({ architecture: "qwen35moe", nTensors: 23, nNextnLayers: 1 });
});

test("synth reads a shape from JSON", async () => {
  fs.writeFileSync(at("shape.json"), JSON.stringify({ nLayers: 1, fullAttentionInterval: 1, embeddingLength: 64, vocabSize: 300, nHeads: 2, nKvHeads: 1, headDim: 32, ropeDimension: 8, experts: { count: 2, usedCount: 1, feedForward: 32, sharedFeedForward: 32 } }));
  const result = await run("synth", "--shape", at("shape.json"), "--type", "q8_0", "--head-type", "q8_0", "-o", at("shaped.gguf"), "--json");
  expect(result.json).toMatchObject({ nTensors: 3 + 16 + 20 });
  fs.writeFileSync(at("wrong.json"), JSON.stringify({ layers: 1 }));
  await expect(run("synth", "--shape", at("wrong.json"), "-o", at("x.gguf"))).rejects.toThrow(/--shape .*wrong\.json: .*layers/);
});

test("synth takes the sizes of a checkpoint", async () => {
  await run("synth", "--shape", path.join(embeddedCheckpoint, "config.json"), "--type", "Q4_0", "-o", at("as-checkpoint.gguf"));
  expect((await run("inspect", at("as-checkpoint.gguf"), "--json")).json).toMatchObject({ architecture: "qwen35moe", mtp: { verdict: "complete", nTrunkLayers: 8 }, problems: [] });
});

test("a file that is no model is shown as what it is", async () => {
  await rewriteFile(at("whole.gguf"), at("no-model.gguf"), { entries: { "general.architecture": undefined } });
  expect((await run("inspect", at("no-model.gguf"))).out).toMatch(/no model, Q8_0.*\n.*\nMTP: general\.architecture is missing: the file is no model\./);
});

test("names from a file neither break lines nor steer the terminal", async () => {
  await rewriteFile(at("whole.gguf"), at("escape.gguf"), { rename: (name) => (name === "blk.0.ssm_a" ? "blk.0\u001b[2J\nx" : name), added: [stringEntry("odd\u0007key", "value\u001b[0m")] });
  const { out } = await run("inspect", at("escape.gguf"), "--tensors", ".");
  // oxlint-disable-next-line no-control-regex
  expect(out).not.toMatch(/[\u0000-\u0009\u000b-\u001f\u007f-\u009f]/);
  expect(out).toContain("blk.0\\u001b[2J\\u000ax");
  expect(out).toContain("tensors that it does not ask for: blk.0\\u001b[2J\\u000ax");
});

test.each([
  [["inspect", "NOWHERE.gguf"], 1, "does not exist"],
  [["inspect"], 2, "<files>"],
  [["inspect", "a", "b", "c"], 2, "one file, or two to compare"],
  [["inspect", "WHOLE", "--tensors", "["], 2, "--tensors ["],
  [["inspect", "FOLDER"], 2, "is a folder without config.json"],
  [["graft", "TRUNK", "TRUNK", "-o", "OUT"], 1, "holds no MTP head"],
  [["graft", "TRUNK", "WHOLE", "-o", "WHOLE"], 2, "exists; give --force to replace it"],
  [["strip", "TRUNK", "-o", "OUT"], 1, "there is nothing to strip"],
  [["convert", "FOLDER", "-o", "OUT"], 1, "has no config.json"],
  [["convert", "FOLDER", "-o", "out.bin"], 2, "should end in .gguf"],
  [["synth", "--shape", "huge", "-o", "OUT"], 2, "--shape huge is none of ornith-35b, tiny"],
  [["synth", "--type", "IQ9", "-o", "OUT"], 2, "--type"],
  [["pull", "nonsense"], 2, "write owner/name"],
] as [string[], number, string][])("%j is refused", async (argv, exitCode, message) => {
  const names: Record<string, string> = { WHOLE: at("whole.gguf"), TRUNK: at("trunk.gguf"), FOLDER: folder, OUT: at("out.gguf") };
  const error = await run(...argv.map((a) => names[a] ?? a)).then(
    () => expect.fail("it was accepted"),
    (e: unknown) => e,
  );
  expect(error).toBeInstanceOf(UserError);
  expect(error).toMatchObject({ exitCode, message: expect.stringContaining(message) as unknown });
  expect(fs.existsSync(at("out.gguf"))).toBe(false);
});
