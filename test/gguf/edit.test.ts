import * as fs from "node:fs";
import * as path from "node:path";
import { beforeAll, describe, expect, test } from "vitest";
import { extractHead, graftHead, repairKeys, stripHead } from "../../src/gguf/edit.ts";
import { headOfGguf } from "../../src/gguf/head-source.ts";
import { countKey, stringKey } from "../../src/gguf/keys.ts";
import { arrayEntry, u32Entry } from "../../src/gguf/kv.ts";
import { readGguf } from "../../src/gguf/split.ts";
import { mtpStatus } from "../../src/gguf/mtp-status.ts";
import { rewriteFile, sha256, splitFile, synthSmall, temporaryFolder, tensorFacts, type Rewrite } from "./files.ts";

const folder = temporaryFolder("edit");
const at = (name: string): string => path.join(folder, `${name}.gguf`);
const hashOf = (file: string): string => sha256(fs.readFileSync(file));
const isOfHead = (name: string): boolean => name.startsWith("blk.2.");

let whole: string;
let trunk: string;

beforeAll(async () => {
  whole = await synthSmall(at("whole"));
  trunk = await synthSmall(at("trunk"), { nNextnLayers: 0 }, 2);
});

async function graft(target: string, donor: string, output: string): ReturnType<typeof graftHead> {
  return graftHead({ input: target, output }, headOfGguf(readGguf(donor)));
}

describe("graft", () => {
  test("appends the head, sets the keys, and says where it came from", async () => {
    const result = await graft(trunk, whole, at("grafted"));
    const model = readGguf(at("grafted"));
    expect(mtpStatus(model)).toMatchObject({ verdict: "complete", blocks: [2], nTrunkLayers: 2, nAdvertised: 1 });
    expect(countKey(model, "qwen35moe.block_count")).toBe(3);
    const recurrent = model.entries.get("qwen35moe.attention.recurrent_layers");
    expect(recurrent?.kind === "array" && recurrent.values).toEqual([true, false, false]);
    expect(tensorFacts(at("grafted"))).toEqual([...tensorFacts(trunk), ...tensorFacts(whole).filter(isOfHead)]);
    expect(stringKey(model, "foretoken.graft.donor")).toBe("whole.gguf");
    expect(countKey(model, "foretoken.graft.donor_block")).toBe(2);
    expect(stringKey(model, "foretoken.graft.head_sha256")).toBe(result.headSha256);
  });

  test("strip is its inverse, to the byte", async () => {
    await graft(trunk, whole, at("to-strip"));
    await stripHead({ input: at("to-strip"), output: at("stripped") });
    expect(hashOf(at("stripped"))).toBe(hashOf(trunk));
  });

  test("strip then graft gives the same tensors", async () => {
    await stripHead({ input: whole, output: at("bare") });
    await graft(at("bare"), whole, at("again"));
    expect(tensorFacts(at("again"))).toEqual(tensorFacts(whole));
  });

  test("takes the head of an MTP-only file", async () => {
    await extractHead({ input: whole, output: at("head") });
    const head = readGguf(at("head"));
    expect(head.tensors.filter((t) => !isOfHead(t.name)).map((t) => t.name)).toEqual(["token_embd.weight", "output_norm.weight", "output.weight"]);
    expect(countKey(head, "qwen35moe.block_count")).toBe(3);
    expect(mtpStatus(head)).toMatchObject({ verdict: "complete", isHeadOnly: true, nTrunkLayers: 2 });
    await graft(trunk, at("head"), at("from-head"));
    expect(tensorFacts(at("from-head")).filter(isOfHead)).toEqual(tensorFacts(whole).filter(isOfHead));
  });

  test("a split set is a target and a donor like any other", async () => {
    const parts = await splitFile(trunk, path.join(folder, "trunk-set"), 3);
    const donor = await splitFile(whole, path.join(folder, "whole-set"), 2);
    await graft(parts[1] as string, donor[0] as string, at("from-sets"));
    expect(tensorFacts(at("from-sets"))).toEqual([...tensorFacts(trunk), ...tensorFacts(whole).filter(isOfHead)]);
    expect([...readGguf(at("from-sets")).entries.keys()].filter((key) => key.startsWith("split."))).toEqual([]);
  });

  test("a target that has a head keeps it", async () => {
    await expect(graft(whole, whole, at("twice"))).rejects.toThrow("holds an MTP head already (blk.2); foretoken strip removes it first");
    expect(fs.existsSync(at("twice"))).toBe(false);
  });

  test.each([
    ["width", { embeddingLength: 96 }, "embedding length 96, the target has 64"],
    ["vocabulary", { vocabSize: 400 }, "vocabulary size 400, the target has 300"],
    ["experts", { experts: { count: 4, usedCount: 1, feedForward: 32, sharedFeedForward: 32 } }, "feed-forward 4 experts"],
    ["depth", { nLayers: 3, isRecurrent: [true, false, true] }, "trunk layers 3, the target has 2"],
    ["heads", { nHeads: 4 }, "heads 4 (1 for keys), the target has 2 (1 for keys)"],
    ["architecture", { architecture: "qwen35" as const, experts: undefined, feedForward: 64 }, "architecture qwen35, the target's is qwen35moe"],
  ])("a head of another %s is refused", async (name, shape, message) => {
    const donor = await synthSmall(at(`donor-${name}`), shape);
    await expect(graft(trunk, donor, at(`out-${name}`))).rejects.toThrow(message);
    expect(fs.existsSync(at(`out-${name}`))).toBe(false);
  });

  test("a head with another tokenizer is refused", async () => {
    const tokens = Array.from({ length: 300 }, (_, i) => `t${i}`);
    await rewriteFile(whole, at("other-tokens"), { entries: { "tokenizer.ggml.tokens": arrayEntry("tokenizer.ggml.tokens", "string", tokens) } });
    await expect(graft(trunk, at("other-tokens"), at("out-tokens"))).rejects.toThrow("another token list");
  });

  test("an incomplete head is refused with the names of what it lacks", async () => {
    await rewriteFile(whole, at("lacking"), { rename: (name) => (name === "blk.2.nextn.hnorm.weight" ? undefined : name) });
    await expect(graft(trunk, at("lacking"), at("out-lacking"))).rejects.toThrow("lacks 1 tensor, or has them in another shape: blk.2.nextn.hnorm.weight");
  });

  test("the input is never the output", async () => {
    await expect(graft(trunk, whole, trunk)).rejects.toThrow("is the input itself");
  });
});

const noHead = (name: string): string | undefined => (isOfHead(name) ? undefined : name);

/** What was found wild: [file, verdict, what it becomes]. */
const broken: [string, Rewrite, string, string][] = [
  ["promised, block counted, absent", { rename: noHead }, "advertised-but-absent", "none"],
  ["promised, block not counted, absent", { rename: noHead, entries: { "qwen35moe.block_count": u32Entry("qwen35moe.block_count", 2) } }, "advertised-but-absent", "none"],
  ["counted, not promised, absent", { rename: noHead, entries: { "qwen35moe.nextn_predict_layers": undefined } }, "keys-disagree", "none"],
  ["present, key missing", { entries: { "qwen35moe.nextn_predict_layers": undefined } }, "present-but-not-advertised", "complete"],
  ["present, key zero, not counted", { entries: { "qwen35moe.nextn_predict_layers": u32Entry("qwen35moe.nextn_predict_layers", 0), "qwen35moe.block_count": u32Entry("qwen35moe.block_count", 2) } }, "present-but-not-advertised", "complete"],
  ["present, counted wrongly", { entries: { "qwen35moe.block_count": u32Entry("qwen35moe.block_count", 2) } }, "keys-disagree", "complete"],
];

describe("repair", () => {
  test.each(broken)("%s", async (name, change, verdict, becomes) => {
    const input = await rewriteFile(whole, at(`broken ${name}`), change);
    const before = mtpStatus(readGguf(input));
    expect(before.verdict).toBe(verdict);
    expect(before.advice).toContain(`foretoken repair ${input} -o OUT`);
    const result = await repairKeys({ input, output: at(`repaired ${name}`) });
    expect(result?.found).toBe(verdict);
    const model = readGguf(at(`repaired ${name}`));
    expect(mtpStatus(model).verdict).toBe(becomes);
    const nNextn = becomes === "complete" ? 1 : 0;
    expect(countKey(model, "qwen35moe.nextn_predict_layers")).toBe(nNextn);
    expect(countKey(model, "qwen35moe.block_count")).toBe(2 + nNextn);
    const recurrent = model.entries.get("qwen35moe.attention.recurrent_layers");
    expect(recurrent?.kind === "array" && recurrent.length).toBe(2 + nNextn);
    expect(tensorFacts(at(`repaired ${name}`))).toEqual(tensorFacts(input));
  });

  test("a head under a later number gets the number after the trunk", async () => {
    const input = await rewriteFile(whole, at("later"), { rename: (name) => name.replace(/^blk\.2\./, "blk.7.") });
    expect(mtpStatus(readGguf(input)).verdict).toBe("keys-disagree");
    await repairKeys({ input, output: at("later-repaired") });
    expect(tensorFacts(at("later-repaired"))).toEqual(tensorFacts(whole));
  });

  test("nothing to repair, nothing written", async () => {
    for (const input of [whole, trunk]) expect(await repairKeys({ input, output: at("untouched") })).toBeUndefined();
    expect(fs.existsSync(at("untouched"))).toBe(false);
  });
});

test("strip takes back a promise without tensors, and says when there is nothing to strip", async () => {
  const input = await rewriteFile(whole, at("promise"), { rename: noHead });
  await stripHead({ input, output: at("promise-stripped") });
  expect(mtpStatus(readGguf(at("promise-stripped"))).verdict).toBe("none");
  await expect(stripHead({ input: trunk, output: at("x") })).rejects.toThrow("holds no MTP head and promises none");
});

test("nothing half-written is left in the folder", () => {
  expect(fs.readdirSync(folder).filter((name) => name.includes(".tmp"))).toEqual([]);
});
