/** What a machine can run and what it lacks: packages, libraries, devices, drivers. Facts first, advice derived from them. */
import koffi from "koffi";
import * as fs from "node:fs";
import * as path from "node:path";
import { errorMessage } from "../util/errors.ts";
import { deviceMemory, type DeviceMemory } from "./devices.ts";
import { PACKAGE_VERSION, installedPackages, packageNames, packageRootOf } from "./library-path.ts";
import { loadLlama, type Llama } from "./library.ts";
import { readMachineLoad, threadsFor, type MachineLoad } from "./threads.ts";

export interface PackageFacts {
  readonly name: string;
  readonly version: string | undefined;
  readonly isInstalled: boolean;
}

export interface LibraryFacts {
  readonly folder: string;
  readonly version: string;
  readonly ggmlVersion: string;
}

export interface DeviceFacts extends DeviceMemory {
  readonly name: string;
  readonly description: string;
  readonly type: string;
}

export interface Diagnosis {
  readonly platform: string;
  readonly node: string;
  readonly isNodeSupported: boolean;
  readonly machine: MachineLoad;
  readonly nThreads: number;
  readonly packages: readonly PackageFacts[];
  readonly library: LibraryFacts | undefined;
  /** Why there is no library. */
  readonly libraryError: string | undefined;
  readonly devices: readonly DeviceFacts[];
  /** GPU backends of the folder that do not load here, and the loader's reason. */
  readonly backendProblems: readonly { readonly file: string; readonly reason: string }[];
  readonly hasNvidiaDriver: boolean;
  readonly advice: readonly string[];
}

export function diagnose(options: { readonly llamaDir?: string | undefined } = {}): Diagnosis {
  const machine = readMachineLoad();
  let llama: Llama | undefined;
  let libraryError: string | undefined;
  try {
    llama = loadLlama(options);
  } catch (error) {
    libraryError = errorMessage(error);
  }
  const facts = {
    platform: `${process.platform}-${process.arch}`,
    node: process.versions.node,
    isNodeSupported: isSupportedNode(process.versions.node),
    machine,
    nThreads: threadsFor(machine),
    packages: installedPackages().map(({ name, folder }) => ({ name: `@node-llama-cpp/${name}`, isInstalled: folder !== undefined, version: folder === undefined ? undefined : versionOf(name) })),
    library: llama === undefined ? undefined : { folder: llama.files.folder, version: llama.version, ggmlVersion: llama.ggmlVersion },
    libraryError,
    devices: llama === undefined ? [] : deviceFacts(llama),
    backendProblems: llama === undefined ? [] : backendProblems(llama.files.folder),
    hasNvidiaDriver: hasNvidiaDriver(),
  };
  return { ...facts, advice: adviseOn(facts) };
}

export function isSupportedNode(version: string): boolean {
  const [major = 0, minor = 0] = version.split(".").map(Number);
  return major > 20 || (major === 20 && minor >= 19);
}

function versionOf(name: string): string | undefined {
  const root = packageRootOf(name);
  return root === undefined ? undefined : (JSON.parse(fs.readFileSync(path.join(root, "package.json"), "utf8")) as { version: string }).version;
}

function deviceFacts(llama: Llama): DeviceFacts[] {
  return llama.devices.map((device) => ({ name: device.name, description: device.description, type: device.type, ...deviceMemory(llama.deviceApi, device) }));
}

/** ggml passes over a backend that does not load and says nothing; the loader's message names the missing library. */
function backendProblems(folder: string): { file: string; reason: string }[] {
  return fs
    .readdirSync(folder)
    .filter((file) => /ggml-(cuda|vulkan|metal|hip|sycl)/.test(file))
    .flatMap((file) => {
      try {
        koffi.load(path.join(folder, file));
        return [];
      } catch (error) {
        return [{ file, reason: (errorMessage(error).split("\n")[0] ?? "").replace(/^Failed to load shared library: /, "") }];
      }
    });
}

function hasNvidiaDriver(): boolean {
  return process.platform === "linux" && (fs.existsSync("/proc/driver/nvidia/version") || fs.existsSync("/dev/nvidiactl"));
}

/** Pure: what to install or change, one sentence each. */
export function adviseOn(facts: Omit<Diagnosis, "advice">): string[] {
  const advice: string[] = [];
  const [platform = "", arch = ""] = facts.platform.split("-");
  const names = packageNames(platform as NodeJS.Platform, arch);
  const install = (name: string): string => `npm install @node-llama-cpp/${name}@${PACKAGE_VERSION}`;
  const lacks = (suffix: string): string | undefined => {
    const name = names.find((n) => n.endsWith(suffix));
    return name !== undefined && !facts.packages.some((p) => p.name.endsWith(`/${name}`) && p.isInstalled) ? name : undefined;
  };
  const hasGpu = facts.devices.some((device) => device.type === "gpu" || device.type === "igpu");
  if (!facts.isNodeSupported) advice.push(`Node ${facts.node} is too old: install Node 20.19 or newer`);
  const hasPackage = facts.packages.some((p) => p.isInstalled);
  if (facts.library === undefined && !hasPackage) advice.push(names.length === 0 ? `there is no package for ${facts.platform}: build llama.cpp 0.5.0 with shared libraries and give --llama-dir` : `no libraries: ${install(names.at(-1) as string)}`);
  for (const { name, version, isInstalled } of facts.packages) if (isInstalled && version !== PACKAGE_VERSION) advice.push(`${name} is version ${version ?? "unknown"}, ${PACKAGE_VERSION} is needed: npm install ${name}@${PACKAGE_VERSION}`);
  const cuda = lacks("-cuda");
  const vulkan = lacks("-vulkan");
  if (cuda !== undefined && hasPackage && !hasGpu) advice.push(`for an NVIDIA GPU${facts.hasNvidiaDriver ? " (a driver is there)" : ""}: ${install(cuda)} with the CUDA 13 runtime; with CUDA 12 also ${install(`${cuda}-ext`)}`);
  if (vulkan !== undefined && hasPackage && !hasGpu) advice.push(`for other GPUs, through Vulkan: ${install(vulkan)}`);
  for (const { file, reason } of facts.backendProblems) advice.push(`${file} does not load (${reason}); install what it names, or the ${/cuda/.test(file) ? `extension for CUDA 12: ${install(`${names.find((n) => n.endsWith("-cuda")) ?? ""}-ext`)}` : "driver"}`);
  if (facts.machine.quota < facts.machine.nCpus) advice.push(`this container may use ${facts.machine.quota} of ${facts.machine.nCpus} CPUs; --threads 0 keeps to that`);
  return advice;
}
