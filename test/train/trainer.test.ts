/** Whole runs on a small capture: parity first, then learning, snapshots, resume, stops. */
import { spawn } from "node:child_process";
import * as fs from "node:fs";
import * as path from "node:path";
import { afterAll, beforeAll, describe, expect, test, vi } from "vitest";
import { readGguf } from "../../src/gguf/split.ts";
import { openGgmlDevice } from "../../src/llama/ggml.ts";
import { openDataset } from "../../src/train/dataset.ts";
import { compareWithRuntime, parityLimit, requireParity } from "../../src/train/parity.ts";
import { parseStages, stagesPerPosition } from "../../src/train/schedule.ts";
import { latestSnapshot, readSnapshot } from "../../src/train/snapshot.ts";
import { bootstrapWeights, readFrozen, readHeadWeights, readTarget } from "../../src/train/target.ts";
import type { TrainEvent, TrainOptions } from "../../src/train/train-options.ts";
import { readTrainLog } from "../../src/train/train-log.ts";
import { train } from "../../src/train/trainer.ts";
import { runTraining } from "../../src/train/worker.ts";
import { packageRoot } from "../../src/util/paths.ts";
import { tinyTrunk } from "../llama/tiny-model.ts";
import { smallCapture, temporaryFolder } from "./captured.ts";

// Native work beside other tests on two cores.
vi.setConfig({ testTimeout: 240_000, hookTimeout: 240_000 });

const folder = temporaryFolder();
const captureFolder = path.join(folder, "capture");

beforeAll(async () => {
  await smallCapture(captureFolder);
});
afterAll(() => fs.rmSync(folder, { recursive: true }));

async function options(name: string, changes: Partial<TrainOptions> = {}): Promise<TrainOptions> {
  return {
    modelPath: await tinyTrunk(),
    capture: captureFolder,
    output: path.join(folder, name),
    init: "ridge",
    ridgeLambda: 1e-3,
    stages: parseStages("1:0.5:8e-4,2:0.5:4e-4", 8e-4),
    loss: "kl",
    hiddenWeight: 0,
    feed: "true",
    depthDecay: 0.8,
    promptWeight: 0.3,
    nTokens: 32,
    chunkRows: 32,
    frozen: [],
    computeType: "f32",
    adamW: { beta1: 0.9, beta2: 0.98, epsilon: 1e-8, weightDecay: 0.01, clip: 1 },
    warmupSteps: 4,
    learningRateFloor: 0.05,
    learningRateSpan: "stage",
    maxSteps: 6,
    maxMs: 1e9,
    snapshotEvery: 2,
    nSnapshotsKept: 2,
    validateEvery: 3,
    nValidationBatches: 1,
    patience: 0,
    logEvery: 1,
    seed: 3,
    threads: 1,
    device: "cpu",
    llamaDir: undefined,
    resume: false,
    ...changes,
  };
}

async function run(o: TrainOptions, isStopped: (events: readonly TrainEvent[]) => boolean = () => false): Promise<TrainEvent[]> {
  const events: TrainEvent[] = [];
  await train(o, { onEvent: (event) => void events.push(event), isStopped: () => isStopped(events) });
  return events;
}

const of = <K extends TrainEvent["event"]>(events: readonly TrainEvent[], kind: K): Extract<TrainEvent, { event: K }>[] => events.filter((e): e is Extract<TrainEvent, { event: K }> => e.event === kind);
const weightsOf = async (file: string): Promise<ReadonlyMap<string, Float32Array>> => {
  const device = openGgmlDevice({ device: "cpu" });
  const weights = readHeadWeights(file, readTarget(await tinyTrunk()).head, device);
  device.close();
  return weights;
};

describe("parity", () => {
  test("the head's logits are llama.cpp's at depths 0, 1 and 2, for a bootstrap head and after a change of every tensor", async () => {
    const device = openGgmlDevice({ device: "cpu" });
    const target = readTarget(await tinyTrunk());
    const frozen = readFrozen(target, device);
    const dataset = openDataset(captureFolder);
    const document = [...dataset.training].toSorted((a, b) => b.tokens.length - a.tokens.length)[0];
    const bootstrap = bootstrapWeights(target, device);
    const changed = new Map([...bootstrap].map(([name, values]) => [name, values.map((x, i) => x * (1 + 0.1 * Math.sin(i)) + 0.002 * Math.cos(7 * i))]));
    for (const weights of [bootstrap, changed]) {
      const depths = await compareWithRuntime({ target, frozen, weights, document: document as NonNullable<typeof document>, nDepths: 3, device, llamaDir: undefined });
      expect(depths).toHaveLength(3);
      for (const { worst, nRows, nTop1Equal } of depths) {
        expect(worst).toBeLessThanOrEqual(parityLimit);
        expect(nTop1Equal).toBe(nRows);
        expect(nRows).toBeGreaterThan(8);
      }
    }
    dataset.close();
    device.close();
  });

  test("a difference stops training with a reason", () => {
    expect(() => requireParity([{ nRows: 9, worst: 0.01, mean: 0, nTop1Equal: 9 }, { nRows: 9, worst: 0.2, mean: 0, nTop1Equal: 9 }])).toThrow(/at depth 1 logits differ by up to 0.2000/);
    expect(() => requireParity([{ nRows: 9, worst: 0.01, mean: 0, nTop1Equal: 8 }])).toThrow(/8 of 9 greedy tokens agree/);
  });
});

describe("a run", () => {
  test("learns: the loss on held-out documents falls at every depth", async () => {
    const events = await run(await options("learns", { nTokens: 64, chunkRows: 64, maxSteps: 40, nValidationBatches: 3, stages: parseStages("2", 8e-4), validateEvery: 40, snapshotEvery: 100 }));
    const [before, after] = of(events, "validate");
    expect(of(events, "ridge")[0]?.r2).toBeGreaterThan(0.3);
    before?.nll.forEach((loss, depth) => expect(after?.nll[depth]).toBeLessThan(loss));
    expect(after?.tokensPerDraft).toBeGreaterThan(before?.tokensPerDraft ?? Infinity);
  });

  test("resumed from a snapshot it ends with the same weights, bit for bit", async () => {
    const whole = await run(await options("whole"));
    const stoppedOptions = await options("stopped");
    const stopped = await run(stoppedOptions, (events) => of(events, "step").length >= 5);
    expect(of(stopped, "end")[0]).toMatchObject({ reason: "stopped", step: 5 });
    const rest = await run({ ...stoppedOptions, resume: true });
    expect(of(rest, "start")[0]?.resumedAt).toBe(5);
    expect(of(rest, "ridge")).toHaveLength(0);
    expect(of(rest, "end")[0]).toMatchObject({ reason: "done", step: 6 });
    const [a, b] = [await weightsOf(of(whole, "end")[0]?.heads[0] ?? ""), await weightsOf(of(rest, "end")[0]?.heads[0] ?? "")];
    for (const [name, values] of a) expect(b.get(name), name).toEqual(values);
    await expect(run({ ...stoppedOptions, resume: true, seed: 4 })).rejects.toThrow(/made with seed 3/);
  });

  test("stages deepen the chain; snapshots carry the head as GGUF and only the newest are kept", async () => {
    const o = await options("stages");
    const events = await run(o);
    expect(of(events, "stage").map((s) => s.nDepths)).toEqual([1, 2]);
    expect(of(events, "step").map((s) => s.acceptance.length)).toEqual([1, 1, 1, 2, 2, 2]);
    expect(of(events, "snapshot").map((s) => s.step)).toEqual([2, 4, 6]);
    expect(fs.readdirSync(path.join(o.output, "snapshots")).toSorted()).toEqual(["step-000004.safetensors", "step-000006.safetensors"]);
    expect(fs.readdirSync(path.join(o.output, "heads"))).toHaveLength(3);
    for (const { memory } of of(events, "stage")) expect(memory.total).toBe(memory.weights + memory.frozen + memory.activations + memory.validation + memory.optimizer);
    const head = readGguf(of(events, "end")[0]?.heads[0] ?? "");
    expect(head.tensors.filter((t) => t.name.startsWith("blk.8."))).toHaveLength(20);
  });

  test("one head a position: each is trained on the chain of those before it, which stay as they are", async () => {
    const events = await run(await options("positions", { stages: stagesPerPosition(2, 8e-4), maxSteps: 4, snapshotEvery: 2 }));
    const heads = of(events, "end")[0]?.heads ?? [];
    expect(heads.map((file) => path.basename(file))).toEqual(["head-1.gguf", "head-2.gguf"]);
    const [first, second] = [await weightsOf(heads[0] as string), await weightsOf(heads[1] as string)];
    const half = await weightsOf(of(events, "snapshot")[0]?.heads[0] ?? "");
    expect(first.get("attn_q.weight")).toEqual(half.get("attn_q.weight"));
    expect(second.get("attn_q.weight")).not.toEqual(first.get("attn_q.weight"));
  });

  test("frozen groups do not move", async () => {
    const events = await run(await options("frozen", { frozen: ["experts", "fc"], maxSteps: 2, init: "bootstrap", computeType: "bf16" }));
    const device = openGgmlDevice({ device: "cpu" });
    const start = bootstrapWeights(readTarget(await tinyTrunk()), device);
    device.close();
    const end = await weightsOf(of(events, "end")[0]?.heads[0] ?? "");
    for (const name of ["ffn_gate_exps.weight", "ffn_down_exps.weight", "nextn.eh_proj.weight"]) expect(end.get(name), name).toEqual(start.get(name));
    expect(end.get("attn_q.weight")).not.toEqual(start.get("attn_q.weight"));
  });

  test("numbers that are not finite stop it before they reach the weights", async () => {
    const o = await options("nan", { adamW: { beta1: 0.9, beta2: 0.98, epsilon: 1e-8, weightDecay: 0, clip: 1e30 }, stages: parseStages("1:1:1e30", 1e30), warmupSteps: 1, snapshotEvery: 1 });
    await expect(run(o)).rejects.toThrow(/training stopped at step \d+: the gradient norm is (NaN|Infinity)/);
    const kept = readSnapshot(latestSnapshot(path.join(o.output, "snapshots")) as string);
    for (const [name, values] of kept.heads[0] ?? []) expect(values.every(Number.isFinite), name).toBe(true);
    expect(kept.heads[0]?.size).toBeGreaterThan(15);
    await expect(run(await options("all-frozen", { frozen: ["fc", "attention", "experts", "router", "shared-expert", "norms"] }))).rejects.toThrow(/leaves nothing to train/);
  });

  test("it stops early when validations bring no gain", async () => {
    const events = await run(await options("early", { stages: parseStages("1:1:1e-12", 1e-12), maxSteps: 100, validateEvery: 2, patience: 3 }));
    expect(of(events, "end")[0]).toMatchObject({ reason: "early-stop", step: 6 });
  });
});

describe("in a child process", () => {
  test("killed in the middle, it goes on from the last snapshot, ends with the weights of a run that was not, and the log has no step twice", async () => {
    const o = await options("killed", { maxSteps: 100, snapshotEvery: 2, validateEvery: 1000 });
    const script = path.join(folder, "run.mts");
    fs.writeFileSync(
      script,
      `import { runTraining } from ${JSON.stringify(path.join(packageRoot, "src/train/worker.ts"))};
      await runTraining(${JSON.stringify(o)}, { onEvent: () => {}, signal: new AbortController().signal });`,
    );
    const child = spawn(process.execPath, ["--import", "tsx", script], { cwd: packageRoot, stdio: "ignore" });
    const deadline = Date.now() + 120_000;
    while (Date.now() < deadline && (latestSnapshot(path.join(o.output, "snapshots")) ?? "") < path.join(o.output, "snapshots", "step-000004")) await new Promise((resolve) => setTimeout(resolve, 50));
    child.kill("SIGKILL");
    await new Promise((resolve) => child.once("close", resolve));
    // The worker ends with its parent; what it was writing stays under a temporary name.
    await new Promise((resolve) => setTimeout(resolve, 500));
    const at = readSnapshot(latestSnapshot(path.join(o.output, "snapshots")) as string).state.step;
    expect(at).toBeGreaterThanOrEqual(4);
    expect(at).toBeLessThan(90);
    const stop = new AbortController();
    const resumed: TrainEvent[] = [];
    const rest = runTraining({ ...o, resume: true }, {
      signal: stop.signal,
      onEvent: (event) => {
        resumed.push(event);
        if (event.event === "step" && event.step >= at + 3) stop.abort(new Error("enough"));
      },
    });
    await expect(rest).rejects.toThrow("enough");
    expect(of(resumed, "start")[0]?.resumedAt).toBe(at);
    expect(of(resumed, "step")[0]?.step).toBe(at + 1);
    const steps = of(readTrainLog(o.output), "step").map((e) => e.step);
    expect(steps).toEqual(Array.from({ length: steps.length }, (_, i) => i + 1));
    // The stop took a snapshot of its own.
    expect(readSnapshot(latestSnapshot(path.join(o.output, "snapshots")) as string).state.step).toBeGreaterThanOrEqual(at + 3);
    const [end, whole] = [await run({ ...o, resume: true, snapshotEvery: 1000 }), await run({ ...o, output: path.join(folder, "not-killed"), snapshotEvery: 1000 })].map((events) => of(events, "end")[0]);
    expect(end).toMatchObject({ reason: "done", step: 100 });
    const [a, b] = [await weightsOf(whole?.heads[0] ?? ""), await weightsOf(end?.heads[0] ?? "")];
    expect(a.size).toBeGreaterThan(15);
    for (const [name, values] of a) expect(b.get(name), name).toEqual(values);
  });
});
