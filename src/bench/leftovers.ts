/**
 * Servers that a killed run left behind. Each server that is started leaves a note with its process id and command line;
 * the next run in the same folder ends those that still run, since they would take memory and time from its measurements.
 */
import { execFileSync } from "node:child_process";
import * as fs from "node:fs";
import * as path from "node:path";

interface Note {
  readonly pid: number;
  /** A piece of the command line that no other process has: its port. */
  readonly mark: string;
}

const fileOf = (folder: string, pid: number): string => path.join(folder, `${pid}.json`);

export function noteServer(folder: string, note: Note): void {
  fs.mkdirSync(folder, { recursive: true });
  fs.writeFileSync(fileOf(folder, note.pid), JSON.stringify(note));
}

export function forgetServer(folder: string, pid: number): void {
  fs.rmSync(fileOf(folder, pid), { force: true });
}

/** Ends what still runs; returns the process ids. A process that only took over the id is left alone. */
export function endLeftovers(folder: string): number[] {
  if (!fs.existsSync(folder)) return [];
  const ended: number[] = [];
  for (const name of fs.readdirSync(folder)) {
    const note = readNote(path.join(folder, name));
    if (note !== undefined && commandLineOf(note.pid).includes(note.mark)) {
      kill(note.pid);
      ended.push(note.pid);
    }
    fs.rmSync(path.join(folder, name), { force: true });
  }
  return ended;
}

function readNote(file: string): Note | undefined {
  try {
    return JSON.parse(fs.readFileSync(file, "utf8")) as Note;
  } catch {
    return undefined;
  }
}

function commandLineOf(pid: number): string {
  try {
    return process.platform === "linux" ? fs.readFileSync(`/proc/${pid}/cmdline`, "utf8").replaceAll("\0", " ") : execFileSync("ps", ["-o", "args=", "-p", String(pid)], { encoding: "utf8", stdio: ["ignore", "pipe", "ignore"] });
  } catch {
    return "";
  }
}

/** The server's whole process group: it leads one. */
function kill(pid: number): void {
  for (const target of [-pid, pid]) {
    try {
      process.kill(target, "SIGKILL");
    } catch {
      // Gone already, or not a group.
    }
  }
}
