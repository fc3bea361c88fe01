/**
 * The cache that Hugging Face tools share (the huggingface_hub guide, "Manage the cache"): `models--OWNER--NAME/` with
 * `blobs/` by content hash, `snapshots/COMMIT/` with links into it, and `refs/` from names to commits.
 */
import * as fs from "node:fs";
import * as os from "node:os";
import * as path from "node:path";
import { UserError, hasErrorCode } from "../util/errors.ts";

type Environment = Readonly<Record<string, string | undefined>>;

function hfHome(env: Environment): string {
  return env["HF_HOME"] ?? path.join(env["XDG_CACHE_HOME"] ?? path.join(os.homedir(), ".cache"), "huggingface");
}

export function cacheFolder(env: Environment): string {
  return env["HF_HUB_CACHE"] ?? env["HUGGINGFACE_HUB_CACHE"] ?? path.join(hfHome(env), "hub");
}

/** From HF_TOKEN, or the file that `hf auth login` writes; undefined when there is none. */
export function accessToken(env: Environment): string | undefined {
  const given = (env["HF_TOKEN"] ?? env["HUGGING_FACE_HUB_TOKEN"])?.trim();
  if (given !== undefined && given !== "") return given;
  try {
    const token = fs.readFileSync(env["HF_TOKEN_PATH"] ?? path.join(hfHome(env), "token"), "utf8").trim();
    return token === "" ? undefined : token;
  } catch (error) {
    if (hasErrorCode(error, "ENOENT") || hasErrorCode(error, "EACCES") || hasErrorCode(error, "EISDIR")) return undefined;
    throw error;
  }
}

export function repoFolder(cache: string, repo: string): string {
  return path.join(cache, ["models", ...repo.split("/")].join("--"));
}

/** A path from the hub, refused when it would leave the snapshot folder. */
export function snapshotPath(folder: string, commit: string, file: string): string {
  const parts = file.split("/");
  if (parts.some((part) => part === "" || part === "." || part === "..") || /[\\:\0]/.test(file)) throw new UserError(`the repository holds a file named ${JSON.stringify(file)}, which is no safe path; it is not fetched`);
  return path.join(folder, "snapshots", commit, ...parts);
}

/** Links a snapshot file to its blob, relative as other tools do; a hard link where symbolic ones are not allowed. */
export function linkBlob(blob: string, file: string): void {
  fs.mkdirSync(path.dirname(file), { recursive: true });
  fs.rmSync(file, { force: true });
  try {
    fs.symlinkSync(path.relative(path.dirname(file), blob), file);
  } catch (error) {
    if (!hasErrorCode(error, "EPERM")) throw error;
    fs.linkSync(blob, file);
  }
}

export function writeRef(folder: string, revision: string, commit: string): void {
  if (revision === commit || !/^[\w./-]+$/.test(revision) || revision.includes("..")) return;
  const file = path.join(folder, "refs", ...revision.split("/"));
  fs.mkdirSync(path.dirname(file), { recursive: true });
  fs.writeFileSync(file, commit);
}
