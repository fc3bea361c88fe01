/** Memory of a process and its children, and of the device, as the system tells it. Linux; undefined elsewhere. */
import { execFileSync } from "node:child_process";
import * as fs from "node:fs";

export interface LoadedMemory {
  /** Proportional set size of the process tree: pages shared with others count in part, mapped model files once. */
  readonly hostBytes: number | undefined;
  /** What NVIDIA's tool reports as in use on all devices, by whomever. */
  readonly deviceBytes: number | undefined;
}

export function loadedMemory(pid: number): LoadedMemory {
  return { hostBytes: treeBytes(pid), deviceBytes: deviceBytes() };
}

function treeBytes(root: number): number | undefined {
  try {
    const parents = new Map<number, number>();
    for (const entry of fs.readdirSync("/proc")) {
      if (!/^\d+$/.test(entry)) continue;
      const parent = /\) \S (\d+)/.exec(readOr(`/proc/${entry}/stat`))?.[1];
      if (parent !== undefined) parents.set(Number(entry), Number(parent));
    }
    const isInTree = (pid: number): boolean => pid === root || (parents.has(pid) && pid > 1 && isInTree(parents.get(pid) ?? 0));
    return [...parents.keys()].filter(isInTree).reduce((sum, pid) => sum + pssBytes(pid), 0);
  } catch {
    return undefined;
  }
}

function pssBytes(pid: number): number {
  const kib = /^Pss:\s+(\d+) kB/m.exec(readOr(`/proc/${pid}/smaps_rollup`))?.[1] ?? /^VmRSS:\s+(\d+) kB/m.exec(readOr(`/proc/${pid}/status`))?.[1];
  return Number(kib ?? 0) * 1024;
}

function readOr(file: string): string {
  try {
    return fs.readFileSync(file, "utf8");
  } catch {
    return "";
  }
}

let hasNvidia = true;

function deviceBytes(): number | undefined {
  if (!hasNvidia) return undefined;
  try {
    const text = execFileSync("nvidia-smi", ["--query-gpu=memory.used", "--format=csv,noheader,nounits"], { encoding: "utf8", stdio: ["ignore", "pipe", "ignore"] });
    return text.trim().split("\n").reduce((sum, line) => sum + Number(line) * 1024 * 1024, 0);
  } catch {
    hasNvidia = false;
    return undefined;
  }
}
