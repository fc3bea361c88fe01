import { describe, expect, test } from "vitest";
import * as z from "zod";
import { parseArguments } from "../../src/config/options.ts";
import { UserError } from "../../src/util/errors.ts";

const schema = z.strictObject({
  input: z.string(),
  files: z.array(z.string()).default([]),
  specDraftNMax: z.int().min(0).max(16).default(3).meta({ aliases: ["draft-max"] }),
  model: z.string().optional().meta({ short: "m", aliases: ["md"] }),
  kvUnified: z.boolean().default(true),
  rates: z.array(z.number()).default([]),
  mode: z.enum(["fixed", "adaptive"]).default("fixed"),
});
const parse = (...argv: string[]) => parseArguments(schema, argv, ["input", "files..."]).options;

describe("parseArguments", () => {
  test("reads kebab-case flags, aliases, short names, = and repeated values", () => {
    expect(parse("in.gguf", "--spec-draft-n-max=2", "-m", "a", "--no-kv-unified", "--rates", "0.9", "--rates", "0.5", "b", "c")).toEqual({
      input: "in.gguf",
      files: ["b", "c"],
      specDraftNMax: 2,
      model: "a",
      kvUnified: false,
      rates: [0.9, 0.5],
      mode: "fixed",
    });
    expect(parse("x", "-md", "h.gguf", "--draft-max", "1", "--kv-unified", "off")).toMatchObject({ model: "h.gguf", specDraftNMax: 1, kvUnified: false });
  });

  test.each([
    [["x", "--spec-draft-n-mxa", "7"], "unknown flag --spec-draft-n-mxa; did you mean --spec-draft-n-max?"],
    [["x", "--spec-draft-n-max", "many"], '--spec-draft-n-max needs a number, not "many"'],
    [["x", "--spec-draft-n-max", "17"], "--spec-draft-n-max 17:"],
    [["x", "--spec-draft-n-max", "1.5"], "--spec-draft-n-max 1.5:"],
    [["x", "--mode"], "--mode needs a value: fixed, adaptive"],
    [["x", "--mode", "other"], '--mode "other":'],
    [[], "<input> is needed"],
  ])("%j is a usage error", (argv, message) => {
    const run = (): unknown => parse(...argv);
    expect(run).toThrow(message);
    try {
      run();
    } catch (error) {
      expect((error as UserError).exitCode).toBe(2);
    }
  });
});
