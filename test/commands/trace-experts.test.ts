import * as fc from "fast-check";
import { describe, expect, test } from "vitest";
import type { Command, Io } from "../../src/config/command.ts";
import { parseArguments } from "../../src/config/options.ts";
import { command as trace } from "../../src/commands/trace.ts";
import { ExpertTrace, renderExperts, uniformDistinct } from "../../src/commands/trace-experts.ts";
import type { RoutedForward } from "../../src/llama/expert-counter.ts";
import { tinyTrunk, tinyWithHead } from "../llama/tiny-model.ts";

async function run(argv: readonly string[], json = false): Promise<string[]> {
  const verb = trace as unknown as Command;
  const out: string[] = [];
  const io: Io = { out: (text) => void out.push(text), note: () => {}, json, signal: new AbortController().signal };
  await verb.run(parseArguments(verb.options, argv, verb.positionals).options, io);
  return out;
}

/** All ways to choose k of n. */
function subsets(n: number, k: number): number[][] {
  if (k === 0) return [[]];
  return Array.from({ length: n - k + 1 }, (_, i) => n - 1 - i).flatMap((last) => subsets(last, k - 1).map((rest) => [...rest, last]));
}

describe("uniformDistinct", () => {
  test("is the mean size of the union over all choices of all rows", () => {
    const sizes = fc.integer({ min: 1, max: 5 }).chain((nExperts) => fc.record({ nExperts: fc.constant(nExperts), nUsed: fc.integer({ min: 1, max: nExperts }), nRows: fc.integer({ min: 1, max: 3 }) }));
    fc.assert(
      fc.property(sizes, ({ nExperts, nUsed, nRows }) => {
        const one = subsets(nExperts, nUsed);
        let all: number[][] = [[]];
        for (let row = 0; row < nRows; row++) all = all.flatMap((union) => one.map((choice) => [...union, ...choice]));
        const mean = all.reduce((sum, union) => sum + new Set(union).size, 0) / all.length;
        expect(uniformDistinct(nExperts, nUsed, nRows)).toBeCloseTo(mean, 9);
      }),
      { numRuns: 60, seed: 5 },
    );
  });

  test("one row selects its own number; many rows select all; 8 of 256 by 48 rows", () => {
    expect(uniformDistinct(256, 8, 1)).toBeCloseTo(8, 9);
    expect(uniformDistinct(8, 2, 1000)).toBeCloseTo(8, 9);
    expect(uniformDistinct(256, 8, 48)).toBeCloseTo(256 - 256 * (31 / 32) ** 48, 9);
  });
});

describe("ExpertTrace", () => {
  const forward = (nRows: number, ...nDistinct: number[]): RoutedForward => nDistinct.map((n, layer) => ({ layer, nRows, nUsed: 2, nDistinct: n }));

  function traced(nExperts = 8): { trace: ExpertTrace; step: (record: Parameters<ExpertTrace["endStep"]>[0], ...forwards: RoutedForward[]) => void } {
    let pending: RoutedForward[] = [];
    const counter = {
      nExperts,
      isOn: false,
      take: (): RoutedForward[] => {
        const taken = pending;
        pending = [];
        return taken;
      },
    };
    const trace = new ExpertTrace(counter);
    return {
      trace,
      step: (record, ...forwards) => {
        pending = forwards;
        trace.endStep(record);
      },
    };
  }
  const decode = (nSeqs: number, nRowsEach: number, nRows = nSeqs * nRowsEach) => ({ kind: "decode", nSeqs, nRowsEach, nRows }) as const;

  test("means by layer over the forwards of a shape, then over layers; the most frequent shape first", () => {
    const { trace, step } = traced();
    trace.start();
    step(decode(1, 1), forward(1, 2, 2));
    step(decode(2, 3), forward(6, 4, 7));
    step(decode(2, 3), forward(6, 5, 8));
    const { shapes, nSkipped } = trace.summary();
    expect(nSkipped).toBe(0);
    expect(shapes.map((s) => [s.shape, s.nRows, s.nForwards, s.mean, s.lowest, s.highest])).toEqual([
      ["2 seq x 3 rows", 6, 2, 6, 4.5, 7.5],
      ["1 seq x 1 row", 1, 1, 2, 2, 2],
    ]);
    expect(shapes[0]?.layers).toEqual([
      { layer: 0, nUsed: 2, mean: 4.5, min: 4, max: 5 },
      { layer: 1, nUsed: 2, mean: 7.5, min: 7, max: 8 },
    ]);
    expect(shapes[0]?.uniform).toBeCloseTo(8 * (1 - 0.75 ** 6), 9);
  });

  test("a step verified in several forwards counts each by its own rows", () => {
    const { trace, step } = traced();
    trace.start();
    step(decode(2, 2), forward(2, 3), forward(2, 4));
    step(decode(2, 2, 3), forward(2, 3), forward(1, 2));
    expect(trace.summary().shapes.map((s) => [s.shape, s.nRows, s.nForwards])).toEqual([
      ["2 seq x 2 rows", 2, 3],
      ["2 seq x 2 rows", 1, 1],
    ]);
  });

  test("prefill is not counted; rows that are not the step's leave it out, and the text says so", () => {
    const { trace, step } = traced();
    trace.start();
    step({ kind: "prefill", nSeqs: 1, nRowsEach: 5, nRows: 5 }, forward(5, 8));
    step(decode(1, 1), forward(4, 8), forward(1, 2));
    step(decode(1, 1), forward(1, 2));
    const summary = trace.summary();
    expect(summary.nSkipped).toBe(1);
    expect(summary.shapes.map((s) => s.nForwards)).toEqual([1]);
    expect(renderExperts(summary)).toContain("a decode failed before them: 1");
  });

  test("only between start and stop, and start forgets", () => {
    const { trace, step } = traced();
    step(decode(1, 1), forward(1, 2));
    trace.start();
    step(decode(1, 1), forward(1, 2));
    trace.stop();
    step(decode(1, 1), forward(1, 2));
    expect(trace.summary().shapes[0]?.nForwards).toBe(1);
    trace.start();
    expect(trace.summary().shapes).toEqual([]);
  });
});

describe("trace --experts", () => {
  const load = ["--threads", "1", "--device", "cpu", "--parallel", "4", "-n", "4", "--prompt-len", "12", "--max-tokens", "7", "--ctx-size", "512", "--warmup", "0"];

  interface Run {
    readonly concurrency: number;
    readonly summary: { readonly steadyShape: string };
    readonly experts: { readonly nExperts: number; readonly shapes: readonly { readonly shape: string; readonly nRows: number; readonly nForwards: number; readonly mean: number; readonly layers: readonly unknown[] }[] };
  }

  test("one JSON line, with the experts of each layer by shape and without any time", async () => {
    const out = await run(["-m", await tinyTrunk(), "--experts", ...load], true);
    expect(out.length).toBe(1);
    expect(out[0]).not.toMatch(/ms"|PerSec|costTable/i);
    const [result] = JSON.parse(out[0] as string) as Run[];
    expect(result?.experts.nExperts).toBe(8);
    const shape = result?.experts.shapes[0];
    expect(shape).toMatchObject({ shape: "4 seq x 1 row", nRows: 4, nForwards: 6 });
    expect(shape?.layers.length).toBe(8);
    expect(shape?.mean).toBeGreaterThan(2);
    expect(shape?.mean).toBeLessThanOrEqual(8);
  });

  test("drafts widen the shape; the text has no times", async () => {
    const text = (await run(["-m", await tinyWithHead(), "--experts", ...load, "--spec-type", "draft-mtp", "--spec-gate", "fixed", "--spec-draft-n-max", "2"])).join("\n");
    expect(text).toMatch(/^4 seq x 3 rows +12 /m);
    expect(text).toContain("no times");
    expect(text).not.toMatch(/tok\/s|TTFT|\d ms/);
  });

  test("a run without it tells its times and has no experts", async () => {
    const [line] = await run(["-m", await tinyTrunk(), ...load], true);
    const [result] = JSON.parse(line as string) as Record<string, unknown>[];
    expect(result).toHaveProperty("tokPerSec");
    expect(result).not.toHaveProperty("experts");
  });

  test("options that are lists reach the engine as they were read", async () => {
    const lists = ["--spec-type", "draft-mtp", "--spec-gate", "fixed", "--spec-draft-n-max", "2", "--spec-synth-rates", "1,1", "--graph-edits", "contiguous-conv,bf16-copies", "--sampling", "device-greedy"];
    const text = (await run(["-m", await tinyWithHead(), ...load, ...lists])).join("\n");
    expect(text).toContain("unconditional by position (1.000, 1.000)");
    await expect(run(["-m", await tinyWithHead(), ...load, ...lists, "--sampling", "host"])).rejects.toThrow("--graph-edits bf16-copies,contiguous-conv needs slots that are sampled on the device");
    await expect(run(["-m", await tinyTrunk(), ...load, "--parallel", "16", "--graph-edits", "bf16-copies"])).rejects.toThrow("no slot is sampled on the device; give --graph-edits none");
  });

  test.each([
    [["--output", "steps.jsonl"], "--output would write times that mean nothing"],
    [["--spec-type", "draft-mtp"], "add --spec-gate fixed"],
  ])("with %j it is refused", async (extra, message) => {
    await expect(run(["-m", "model.gguf", "--experts", ...extra])).rejects.toThrow(message);
  });
});
