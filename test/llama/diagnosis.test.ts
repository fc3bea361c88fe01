import { describe, expect, test } from "vitest";
import { adviseOn, diagnose, isSupportedNode, type Diagnosis } from "../../src/llama/diagnosis.ts";
import { tryModel } from "../../src/llama/try-model.ts";
import { tinyHead, tinyTrunk } from "./tiny-model.ts";

const packages = (...installed: string[]): Diagnosis["packages"] =>
  ["linux-x64-cuda", "linux-x64-vulkan", "linux-x64"].map((name) => ({ name: `@node-llama-cpp/${name}`, isInstalled: installed.includes(name), version: installed.includes(name) ? "3.22.1" : undefined }));

const facts: Omit<Diagnosis, "advice"> = {
  platform: "linux-x64",
  node: "20.20.0",
  isNodeSupported: true,
  machine: { nCpus: 8, nCores: 8, quota: Infinity, load: 0 },
  nThreads: 8,
  packages: packages("linux-x64"),
  library: { folder: "f", version: "0.5.0", ggmlVersion: "0.25.1" },
  libraryError: undefined,
  devices: [{ name: "CPU", description: "", type: "cpu", freeBytes: 1, totalBytes: 1 }],
  backendProblems: [],
  hasNvidiaDriver: false,
};

describe("advice", () => {
  test("names the packages for GPUs when only the CPU package is there", () => {
    const advice = adviseOn({ ...facts, hasNvidiaDriver: true }).join("\n");
    expect(advice).toContain("for an NVIDIA GPU (a driver is there): npm install @node-llama-cpp/linux-x64-cuda@3.22.1");
    expect(advice).toContain("npm install @node-llama-cpp/linux-x64-vulkan@3.22.1");
  });

  test("has nothing to say about a machine whose GPU works", () => {
    const gpu = { name: "CUDA0", description: "", type: "gpu", freeBytes: 1, totalBytes: 1 };
    expect(adviseOn({ ...facts, packages: packages("linux-x64-cuda"), devices: [...facts.devices, gpu] })).toEqual([]);
  });

  test.each([
    ["no library", { library: undefined, packages: packages() }, "npm install @node-llama-cpp/linux-x64@3.22.1"],
    ["a platform without a package", { library: undefined, packages: [], platform: "freebsd-x64" }, "build llama.cpp 0.5.0"],
    ["macOS", { library: undefined, packages: [], platform: "darwin-arm64" }, "npm install @node-llama-cpp/mac-arm64-metal@3.22.1"],
    ["Windows", { library: undefined, packages: [], platform: "win32-x64" }, "npm install @node-llama-cpp/win-x64@3.22.1"],
    ["another release of a package", { packages: [{ name: "@node-llama-cpp/linux-x64", isInstalled: true, version: "3.21.1" }] }, "3.22.1 is needed"],
    ["an old Node", { isNodeSupported: false, node: "18.0.0" }, "install Node 20.19"],
    ["a quota", { machine: { ...facts.machine, quota: 1.5 } }, "may use 1.5 of 8 CPUs"],
    ["a CUDA build without its runtime", { backendProblems: [{ file: "libggml-cuda.so", reason: "libcudart.so.13: not found" }] }, "libcudart.so.13: not found); install what it names, or the extension for CUDA 12: npm install @node-llama-cpp/linux-x64-cuda-ext@3.22.1"],
  ] as const)("%s", (_, change, expected) => {
    expect(adviseOn({ ...facts, ...change }).join("\n")).toContain(expected);
  });

  test("Node versions", () => {
    expect(["18.20.0", "20.18.9", "20.19.0", "22.0.0", "24.1.0"].map(isSupportedNode)).toEqual([false, false, true, true, true]);
  });
});

test("this machine has a library and a CPU", () => {
  const diagnosis = diagnose();
  expect(diagnosis.library?.version).toMatch(/^0\.5\.0/);
  expect(diagnosis.devices.some((device) => device.type === "cpu" && device.totalBytes > 0)).toBe(true);
  expect(diagnosis.packages.some((p) => p.isInstalled)).toBe(true);
});

test("the embedded model speaks in a child; one that does not load is a one-line error", async () => {
  const request = { prompt: "def add(a, b):\n    return", nTokens: 6, llamaDir: undefined };
  const result = await tryModel({ ...request, modelPath: await tinyTrunk() });
  expect(result.text).toMatch(/^ a \+ b/);
  expect(result.decodeMs).toBeGreaterThan(0);
  await expect(tryModel({ ...request, modelPath: await tinyHead() })).rejects.toThrow("holds a draft head and no trunk");
});
