import { describe, expect, test } from "vitest";
import { checkEngineOptions, engineOptions, graphEditNames } from "../../src/config/engine-options.ts";
import { checkServeOptions, serveOptions } from "../../src/config/server-options.ts";
import { flagsOf, parseArguments } from "../../src/config/options.ts";

const parse = (...argv: string[]) => parseArguments(engineOptions, ["-m", "f.gguf", ...argv]).options;

describe("engine options", () => {
  test("llama-server's short spellings mean the same", () => {
    const options = parse(
      ..."-c 8192 -np 16 -b 1024 -ub 256 -t 1 -ngl 7 -fa on -ctk q8_0 -ctv bf16 -kvu off -md a.gguf -md b.gguf --spec-type draft-mtp".split(" "),
    );
    expect(options).toMatchObject({
      ctxSize: 8192, parallel: 16, batchSize: 1024, ubatchSize: 256, threads: 1, gpuLayers: 7, flashAttn: "on",
      cacheTypeK: "q8_0", cacheTypeV: "bf16", kvUnified: false, specDraftModel: ["a.gguf", "b.gguf"], specType: "draft-mtp",
    });
    expect(() => checkEngineOptions(options)).not.toThrow();
  });

  test("every flag has a description and no two share a spelling", () => {
    const spellings = flagsOf(serveOptions).flatMap((f) => [f.name, ...(f.aliases ?? []), ...(f.short === undefined ? [] : [f.short])]);
    expect(new Set(spellings).size).toBe(spellings.length);
    for (const flag of flagsOf(serveOptions)) expect(flag.description, flag.name).toBeTruthy();
  });

  test.each([
    ["-md a.gguf", /--spec-type is none/],
    ["--spec-type draft-mtp --spec-draft-n-min 4", /n-min 4 is above .*n-max 3/],
    ["-np 64 --spec-type draft-mtp --spec-draft-n-max 7 -b 256 -ub 256", /a step of 64 sequences takes 512 rows, --batch-size is 256/],
    ["-ub 4096", /--ubatch-size 4096 is above --batch-size 2048/],
    ["--spec-type draft-mtp --spec-synth-rates 0.9", /has 1 rates/],
    ["--spec-synth-rates 0.9,0.8,0.7", /needs drafts/],
    ["--graph-edits bf16-copies --sampling host", /--graph-edits bf16-copies needs slots that are sampled on the device/],
    ["--spec-type draft-mtp --device-draft CUDA1", /needs a head in a file of its own/],
  ])("refuses %s", (line, message) => {
    expect(() => checkEngineOptions(parse(...line.split(" ")))).toThrow(message);
  });

  test("synthetic rates are numbers that never rise", () => {
    expect(parse("--spec-synth-rates", "0.95,0.81,0.65").specSynthRates).toEqual([0.95, 0.81, 0.65]);
    for (const bad of ["0.5,0.6", "1.2", "a", "0.5,", "-0.1"]) expect(() => parse(`--spec-synth-rates=${bad}`)).toThrow(/spec-synth-rates/);
  });

  test("graph edits are auto, all, none, or some by name", () => {
    expect(parse().graphEdits).toBe("auto");
    expect(parse("--graph-edits", "none").graphEdits).toEqual([]);
    expect(parse("--graph-edits", "all").graphEdits).toEqual(graphEditNames);
    expect(parse("--graph-edits", "contiguous-conv,bf16-copies").graphEdits).toEqual(["bf16-copies", "contiguous-conv"]);
    for (const bad of ["", "all,none", "none,bf16-copies", "bf16-copies,bf16-copies"]) expect(() => parse(`--graph-edits=${bad}`)).toThrow(/graph-edits.*auto, all, none, or some of bf16-copies,bf16-head/s);
  });
});

describe("server options", () => {
  const serve = (...argv: string[]) => parseArguments(serveOptions, ["-m", "f.gguf", ...argv]).options;

  test("listens on loopback, without CORS and without a key, by default", () => {
    expect(serve()).toMatchObject({ host: "127.0.0.1", apiKey: [] });
    expect(serve().corsOrigins).toBeUndefined();
  });

  test("a key that a header cannot carry is refused", () => {
    expect(() => checkServeOptions(serve("--api-key", "two words"))).toThrow(/printable ASCII/);
  });

  test("template variables are a JSON object", () => {
    expect(serve("--chat-template-kwargs", '{"enable_thinking":false}').chatTemplateKwargs).toEqual({ enable_thinking: false });
    expect(() => serve("--chat-template-kwargs", "[1]")).toThrow(/JSON object/);
  });
});
