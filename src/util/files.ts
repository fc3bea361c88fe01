/** File effects that lose nothing: write under a temporary name, flush, rename. */
import { createHash, randomBytes } from "node:crypto";
import * as fs from "node:fs";
import * as path from "node:path";
import { UserError, hasErrorCode, usageError } from "./errors.ts";
import { formatBytes } from "./format.ts";

/** A name beside `file` that nobody else uses, on the same file system so that rename is atomic. */
export function temporaryName(file: string): string {
  return path.join(path.dirname(file), `.${path.basename(file)}.${process.pid}-${randomBytes(4).toString("hex")}.tmp`);
}

/** Fills `bytes` from `position` on. @throws {UserError} where the file ends before. */
export function readFully(fd: number, bytes: Uint8Array, position: number): void {
  for (let done = 0; done < bytes.length; ) {
    const n = fs.readSync(fd, bytes, done, bytes.length - done, position + done);
    if (n === 0) throw new UserError(`a file ends ${done} bytes into the ${bytes.length} at ${position}; was it changed while it was read?`);
    done += n;
  }
}

/** Runs `write` on a temporary path, then makes its file durable and gives it its final name. On error nothing is left. */
export async function writeAtomic<T>(file: string, write: (temporary: string) => Promise<T> | T): Promise<T> {
  fs.mkdirSync(path.dirname(path.resolve(file)), { recursive: true });
  const temporary = temporaryName(file);
  const removeOnExit = (): void => fs.rmSync(temporary, { force: true });
  process.once("exit", removeOnExit);
  try {
    const result = await write(temporary);
    const fd = fs.openSync(temporary, "r+");
    try {
      fs.fsyncSync(fd);
    } finally {
      fs.closeSync(fd);
    }
    fs.renameSync(temporary, file);
    return result;
  } catch (error) {
    fs.rmSync(temporary, { force: true });
    throw error;
  } finally {
    process.removeListener("exit", removeOnExit);
  }
}

export async function writeTextAtomic(file: string, text: string): Promise<void> {
  await writeAtomic(file, (temporary) => fs.writeFileSync(temporary, text));
}

/** Lower-case hex SHA-256 of a file, read in 4 MiB pieces. `onBytes` gets the running count. */
export async function sha256File(file: string, onBytes?: (nBytes: number) => void): Promise<string> {
  const hash = createHash("sha256");
  let nBytes = 0;
  for await (const chunk of fs.createReadStream(file, { highWaterMark: 4 << 20 })) {
    hash.update(chunk as Buffer);
    nBytes += (chunk as Buffer).length;
    onBytes?.(nBytes);
  }
  return hash.digest("hex");
}

/** The file's stat, or a UserError that says what was looked for. */
export function statFile(file: string, what: string): fs.Stats {
  try {
    const stats = fs.statSync(file);
    if (stats.isDirectory()) throw new UserError(`${what}: ${file} is a folder, a file is needed`);
    return stats;
  } catch (error) {
    if (hasErrorCode(error, "ENOENT")) throw new UserError(`${what}: ${file} does not exist; check the path`);
    if (hasErrorCode(error, "EACCES")) throw new UserError(`${what}: ${file} cannot be read; check its permissions`);
    throw error;
  }
}

/** Fails before a large write that cannot fit. Keeps 64 MiB free for everything else. */
export function requireDiskSpace(folder: string, nBytes: number, what: string): void {
  fs.mkdirSync(folder, { recursive: true });
  const { bavail, bsize } = fs.statfsSync(folder);
  const free = bavail * bsize - (64 << 20);
  if (nBytes > free)
    throw new UserError(`${what} needs ${formatBytes(nBytes)} in ${folder}, ${formatBytes(Math.max(0, free))} is free; free some space or choose another folder`);
}

/** For commands: an output that exists is replaced only with --force. */
export function refuseOverwrite(file: string, force: boolean): void {
  if (!force && fs.existsSync(file)) throw usageError(`${file} exists; give --force to replace it, or another --output`);
}
