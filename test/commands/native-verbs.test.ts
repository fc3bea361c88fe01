import { describe, expect, test } from "vitest";
import type { Command, Io } from "../../src/config/command.ts";
import { parseArguments } from "../../src/config/options.ts";
import { command as doctor } from "../../src/commands/doctor.ts";
import { command as quantize } from "../../src/commands/quantize.ts";
import { smallWithHead } from "../llama/tiny-model.ts";

async function run(command: unknown, argv: readonly string[], json = false): Promise<{ code: number; out: string[] }> {
  const verb = command as Command;
  const out: string[] = [];
  const io: Io = { out: (text) => void out.push(text), note: () => {}, json, signal: new AbortController().signal };
  const code = (await verb.run(parseArguments(verb.options, argv, verb.positionals).options, io)) ?? 0;
  return { code, out };
}

describe("quantize", () => {
  test("IN TYPE --dry-run reports sizes as the reports give them, and each rule's matches", async () => {
    const model = await smallWithHead();
    const { out } = await run(quantize, [model, "q8_0", "--dry-run", "--tensor-type", "blk\\.8\\.=copy"]);
    expect(out[0]).toMatch(/^source [\d.]+ MiB \/ \d+\.\d\d BPW; would be [\d.]+ MiB \/ \d+\.\d\d BPW$/);
    expect(out[1]).toMatch(/^\d+ tensors: \d+ BF16, \d+ F32, \d+ Q8_0$/);
    expect(out[2]).toBe("rule blk\\.8\\.=copy: 19 matched, 11 set, 8 stay as they are (norms, routers, vectors)");
    const json = await run(quantize, [model, "q8_0", "--dry-run"], true);
    expect(JSON.parse(json.out[0] as string)).toMatchObject({ type: "Q8_0", isDryRun: true, nTensors: 32 });
    expect(json.out.length).toBe(1);
  });

  test.each([
    [["in.gguf"], "<type> is needed"],
    [["in.gguf", "Q4_K_M"], "<output> is needed: quantize IN OUT Q4_K_M"],
    [["in.gguf", "out.gguf"], "<type> is needed: quantize IN out.gguf TYPE"],
    [["in.gguf", "out.gguf", "Q4_K_Z"], "did you mean"],
    [["nowhere.gguf", "out.gguf", "Q8_0"], "nowhere.gguf does not exist"],
    [["package.json", "out.gguf", "Q8_0"], "package.json"],
    [["package.json", "package.json", "Q8_0"], "exists; give --force"],
  ])("%j is a one-line error", async (argv, message) => {
    await expect(run(quantize, argv)).rejects.toThrow(message);
  });
});

describe("doctor", () => {
  test("says platform, library and devices, as text and as one JSON line", async () => {
    const { code, out } = await run(doctor, ["--no-model"]);
    expect(code).toBe(0);
    const text = out.join("\n");
    expect(text).toContain(`${process.platform}-${process.arch}, Node ${process.versions.node}`);
    expect(text).toMatch(/libraries: llama\.cpp 0\.5\.0/);
    const json = await run(doctor, ["--no-model"], true);
    expect(json.out.length).toBe(1);
    expect(JSON.parse(json.out[0] as string)).toMatchObject({ isNodeSupported: true, library: { version: expect.stringMatching(/^0\.5\.0/) as string } });
  });

  test("the embedded model works here", async () => {
    const { code, out } = await run(doctor, []);
    expect(out.at(-1)).toContain("embedded model: works");
    expect(code).toBe(0);
  });
});
