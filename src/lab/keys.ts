/** What a step's result depends on, as hashes. Contents are hashed once per size and time of change. */
import { createHash } from "node:crypto";
import * as fs from "node:fs";
import * as path from "node:path";
import { fileURLToPath } from "node:url";
import { UserError } from "../util/errors.ts";
import { sha256File, writeTextAtomic } from "../util/files.ts";
import { packageVersion } from "../util/paths.ts";

interface Known {
  readonly size: number;
  readonly mtimeMs: number;
  readonly ino: number;
  readonly sha256: string;
}

/** Hashes of files, kept in one JSON file so that 20 GB are read once. */
export class HashCache {
  readonly #file: string;
  readonly #known: Record<string, Known>;

  constructor(file: string) {
    this.#file = file;
    let known: Record<string, Known> = {};
    try {
      known = JSON.parse(fs.readFileSync(file, "utf8")) as Record<string, Known>;
    } catch {
      // None yet, or cut short: hashed again.
    }
    this.#known = known;
  }

  /** @throws {UserError} when the file is not there. */
  async sha256(file: string): Promise<string> {
    const stat = fs.statSync(file, { throwIfNoEntry: false });
    if (stat === undefined) throw new UserError(`${file} does not exist; check the path`);
    const known = this.#known[file];
    if (known !== undefined && known.size === stat.size && known.mtimeMs === stat.mtimeMs && known.ino === stat.ino) return known.sha256;
    const sha256 = await sha256File(file);
    this.#known[file] = { size: stat.size, mtimeMs: stat.mtimeMs, ino: stat.ino, sha256 };
    await writeTextAtomic(this.#file, JSON.stringify(this.#known, null, 1));
    return sha256;
  }

  /** A file's hash, or of a folder the hash over names and contents of all its files. */
  async contentHash(target: string): Promise<string> {
    if (fs.statSync(target, { throwIfNoEntry: false })?.isDirectory() !== true) return this.sha256(target);
    const lines: string[] = [];
    for (const file of filesBelow(target)) lines.push(`${path.relative(target, file)} ${await this.sha256(file)}`);
    return createHash("sha256").update(lines.join("\n")).digest("hex");
  }
}

/** Links count as what they point to: the snapshots of the hub's cache are made of them. */
export function filesBelow(folder: string): string[] {
  return fs
    .readdirSync(folder, { withFileTypes: true, recursive: true })
    .map((entry) => ({ entry, file: path.join(entry.parentPath, entry.name) }))
    .filter(({ entry, file }) => entry.isFile() || (entry.isSymbolicLink() && fs.statSync(file, { throwIfNoEntry: false })?.isFile() === true))
    .map(({ file }) => file)
    .sort();
}

/** Bytes of a file, or of all files of a folder; 0 when it is not there. */
export function sizeOnDisk(target: string): number {
  const stat = fs.statSync(target, { throwIfNoEntry: false });
  if (stat === undefined) return 0;
  return stat.isDirectory() ? filesBelow(target).reduce((sum, file) => sum + fs.statSync(file).size, 0) : stat.size;
}

/** Folders of this program that a verb's result depends on; bench and serve depend on all that makes tokens. */
const foldersOf: Readonly<Record<string, readonly string[]>> = {
  pull: ["hf"],
  convert: ["gguf", "hf"],
  bootstrap: ["gguf", "hf"],
  graft: ["gguf", "hf"],
  strip: ["gguf"],
  extract: ["gguf"],
  synth: ["gguf"],
  inspect: ["gguf"],
  quantize: ["gguf", "llama"],
  capture: ["gguf", "engine", "llama", "train"],
  train: ["gguf", "hf", "engine", "llama", "train"],
};
const servingFolders = ["config", "gguf", "engine", "llama", "server", "bench", "probe"];

/** Hash of this program's own code as far as `verb` uses it, and of its version: a changed converter converts again. */
export function sourceHash(verb: string): string {
  const root = path.dirname(path.dirname(fileURLToPath(import.meta.url)));
  const hash = createHash("sha256").update(packageVersion);
  const files = ["util", ...(foldersOf[verb] ?? servingFolders)].flatMap((folder) => (fs.existsSync(path.join(root, folder)) ? filesBelow(path.join(root, folder)) : []));
  for (const file of files.filter((f) => /\.(js|ts)$/.test(f) && !f.endsWith(".d.ts"))) hash.update(path.relative(root, file)).update(fs.readFileSync(file));
  return hash.digest("hex");
}

export function hashOf(value: unknown): string {
  return createHash("sha256").update(JSON.stringify(value)).digest("hex");
}
