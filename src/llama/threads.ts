/**
 * How many threads a decode may use. ggml's threads spin at barriers: one more than there are free cores and each
 * barrier waits for the scheduler. Measured on 2 shared cores, 4 sequences of the embedded model: with 1 thread a decode
 * took 3 to 15 ms in the mean, with 2 threads 135 to 509 ms. So the choice is what is surely free: the physical cores
 * within the quota, less what others use now, less one for the process that serves and the client that asks.
 */
import * as fs from "node:fs";
import * as os from "node:os";

export interface MachineLoad {
  /** CPUs this process may run on. */
  readonly nCpus: number;
  /** Physical cores behind them; undefined when unknown. */
  readonly nCores: number | undefined;
  /** CPU time the container may use, in CPUs; Infinity without a limit. */
  readonly quota: number;
  /** Runnable tasks now or over the last minute, this process not counted. */
  readonly load: number;
}

/** Pure: cores within the quota, less those reserved and those that others use now; at least 1. */
export function threadsFor(machine: MachineLoad, nReserved = 1): number {
  const cores = Math.min(machine.nCores ?? machine.nCpus, machine.nCpus);
  const allowed = Math.min(cores, Math.floor(machine.quota + 0.001));
  const busy = Math.max(0, machine.load);
  // A load of a quarter CPU is noise on a large machine and a stalled barrier on a small one.
  const taken = allowed <= 4 ? Math.ceil(busy - 0.25) : Math.ceil(busy - 0.5);
  return Math.max(1, allowed - nReserved - Math.max(0, taken));
}

/** The number to use: `requested` when it is not 0, else a safe one for this machine now. Work that nobody talks to meanwhile reserves nothing. */
export function chooseThreads(requested = 0, nReserved = 1): number {
  return requested > 0 ? requested : threadsFor(readMachineLoad(), nReserved);
}

export function readMachineLoad(): MachineLoad {
  return { nCpus: os.availableParallelism(), nCores: readPhysicalCores(), quota: readQuota(), load: readLoad() };
}

function readText(file: string): string | undefined {
  try {
    return fs.readFileSync(file, "utf8");
  } catch {
    return undefined;
  }
}

/** Linux lists thread siblings per CPU; elsewhere hyperthreading is not visible here. */
function readPhysicalCores(): number | undefined {
  if (process.platform !== "linux") return undefined;
  const groups = new Set<string>();
  for (let cpu = 0; cpu < os.cpus().length; cpu++) {
    const siblings = readText(`/sys/devices/system/cpu/cpu${cpu}/topology/thread_siblings_list`);
    if (siblings === undefined) return undefined;
    groups.add(siblings.trim());
  }
  return groups.size === 0 ? undefined : groups.size;
}

/** CPUs of a cgroup v2 `cpu.max` ("200000 100000") or a v1 pair. */
export function parseQuota(cpuMax: string | undefined, v1Quota?: string, v1Period?: string): number {
  const [quota, period] = cpuMax === undefined ? [v1Quota?.trim(), v1Period?.trim()] : cpuMax.trim().split(/\s+/);
  const ratio = Number(quota) / Number(period);
  return Number.isFinite(ratio) && ratio > 0 ? ratio : Infinity;
}

function readQuota(): number {
  const root = "/sys/fs/cgroup";
  const own = readText("/proc/self/cgroup")?.match(/^0::(.*)$/m)?.[1] ?? "/";
  const max = readText(`${root}${own}/cpu.max`) ?? readText(`${root}/cpu.max`);
  return parseQuota(max, readText(`${root}/cpu/cpu.cfs_quota_us`), readText(`${root}/cpu/cpu.cfs_period_us`));
}

/**
 * Runnable tasks besides our own thread. /proc/loadavg's fourth field counts them at this moment, over the whole host;
 * the one-minute mean is what it was. The smaller of the two forgets work that has just ended and ignores a blip.
 */
function readLoad(): number {
  const loadavg = readText("/proc/loadavg")?.match(/^([\d.]+) \S+ \S+ (\d+)\//);
  if (loadavg === null || loadavg === undefined) return os.loadavg()[0] ?? 0;
  return Math.min(Number(loadavg[1]), Number(loadavg[2]) - 1);
}
