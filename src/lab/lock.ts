/** One lab at a time in a run folder: a file with the holder's process, taken over when that process is gone. */
import * as fs from "node:fs";
import * as os from "node:os";
import * as path from "node:path";
import { UserError, hasErrorCode } from "../util/errors.ts";

interface Holder {
  readonly pid: number;
  readonly host: string;
  /** Start of the process in clock ticks after boot, where the system tells: a pid may be used again. */
  readonly started: string;
  readonly since: string;
}

/** Returns the release. @throws {UserError} while another process holds the folder. */
export function lockFolder(folder: string): () => void {
  fs.mkdirSync(folder, { recursive: true });
  const file = path.join(folder, "lab.lock");
  const own: Holder = { pid: process.pid, host: os.hostname(), started: startOf(process.pid), since: new Date().toISOString() };
  for (let attempt = 0; attempt < 3; attempt++) {
    try {
      fs.writeFileSync(file, JSON.stringify(own), { flag: "wx" });
      const release = (): void => {
        process.removeListener("exit", release);
        if (readHolder(file)?.pid === own.pid) fs.rmSync(file, { force: true });
      };
      process.once("exit", release);
      return release;
    } catch (error) {
      if (!hasErrorCode(error, "EEXIST")) throw error;
      const holder = readHolder(file);
      if (holder !== undefined && isAlive(holder)) throw new UserError(`${folder} is in use by process ${holder.pid} on ${holder.host} since ${holder.since}; wait for it or use another --runs folder`);
      fs.rmSync(file, { force: true });
    }
  }
  throw new UserError(`${file} cannot be taken; remove it if no lab runs in ${folder}`);
}

function readHolder(file: string): Holder | undefined {
  try {
    return JSON.parse(fs.readFileSync(file, "utf8")) as Holder;
  } catch {
    return undefined;
  }
}

function isAlive(holder: Holder): boolean {
  if (holder.host !== os.hostname()) return true;
  try {
    process.kill(holder.pid, 0);
  } catch (error) {
    return hasErrorCode(error, "EPERM");
  }
  return startOf(holder.pid) === holder.started;
}

function startOf(pid: number): string {
  try {
    return fs.readFileSync(`/proc/${pid}/stat`, "utf8").split(") ")[1]?.split(" ")[19] ?? "";
  } catch {
    return "";
  }
}
