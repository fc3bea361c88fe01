/**
 * Fetches files of a model repository into the shared cache: an interrupted download goes on where it stopped, and no
 * file gets its name before its hash is right.
 */
import { downloadFile, HubApiError, listFiles, modelInfo, type ListFileEntry } from "@huggingface/hub";
import { createHash, type Hash } from "node:crypto";
import * as fs from "node:fs";
import * as path from "node:path";
import { setTimeout as sleep } from "node:timers/promises";
import { UserError, errorMessage, usageError } from "../util/errors.ts";
import { requireDiskSpace } from "../util/files.ts";
import { formatInteger } from "../util/format.ts";
import { nearest } from "../util/suggest.ts";
import { accessToken, cacheFolder, linkBlob, repoFolder, snapshotPath, writeRef } from "./cache.ts";

export interface PullOptions {
  /** `owner/name`. */
  readonly repo: string;
  /** A file name, or a pattern with `*` and `?`; everything when not given. */
  readonly pattern?: string | undefined;
  readonly revision: string;
  /** Address of the hub; the library's own when not given. */
  readonly hubUrl?: string | undefined;
  readonly env?: Readonly<Record<string, string | undefined>>;
  /** First wait after a broken connection; it doubles from try to try. */
  readonly retryDelayMs?: number;
  readonly signal?: AbortSignal | undefined;
  readonly onBytes?: ((nBytes: number, totalBytes: number, file: string) => void) | undefined;
}

export interface PulledFile {
  readonly path: string;
  /** In the snapshot folder. */
  readonly file: string;
  readonly sizeBytes: number;
  /** Already in the cache. */
  readonly wasCached: boolean;
}

export interface PullResult {
  readonly repo: string;
  readonly commit: string;
  readonly folder: string;
  readonly files: readonly PulledFile[];
}

interface Hub {
  readonly repo: string;
  readonly hubUrl?: string;
  readonly accessToken?: string;
  readonly revision: string;
}

const maxTries = 5;

/**
 * @throws {UserError} when the repository, revision or file is not there, access is denied, the disk is too full, the
 * connection breaks again and again (what was fetched is kept), or a hash is wrong.
 */
export async function pullFiles(options: PullOptions): Promise<PullResult> {
  const env = options.env ?? process.env;
  const token = accessToken(env);
  const hubUrl = options.hubUrl ?? env["HF_ENDPOINT"];
  const hub: Hub = { repo: options.repo, revision: options.revision, ...(hubUrl === undefined ? {} : { hubUrl: hubUrl.replace(/\/+$/, "") }), ...(token === undefined ? {} : { accessToken: token }) };
  if (!/^[\w.-]+\/[\w.-]+$/.test(options.repo)) throw usageError(`${options.repo} is no repository; write owner/name`);
  const commit = await findCommit(hub);
  const pinned = { ...hub, revision: commit };
  const chosen = chooseFiles(await listAll(pinned), options);
  const folder = repoFolder(cacheFolder(env), options.repo);
  const missingBytes = chosen.reduce((n, entry) => n + entry.size - storedBytes(folder, entry), 0);
  requireDiskSpace(path.dirname(folder), Math.max(0, missingBytes), `pulling ${options.repo}`);
  const files: PulledFile[] = [];
  const totalBytes = chosen.reduce((n, entry) => n + entry.size, 0);
  let doneBytes = 0;
  for (const entry of chosen) {
    const before = doneBytes;
    const file = snapshotPath(folder, commit, entry.path);
    const blob = blobPath(folder, entry);
    const wasCached = fs.existsSync(blob) && fs.statSync(blob).size === entry.size;
    if (!wasCached) await fetchBlob(pinned, entry, blob, options, (n) => options.onBytes?.(before + n, totalBytes, entry.path));
    linkBlob(blob, file);
    doneBytes += entry.size;
    options.onBytes?.(doneBytes, totalBytes, entry.path);
    files.push({ path: entry.path, file, sizeBytes: entry.size, wasCached });
  }
  writeRef(folder, options.revision, commit);
  return { repo: options.repo, commit, folder: path.join(folder, "snapshots", commit), files };
}

async function findCommit(hub: Hub): Promise<string> {
  try {
    const info = await modelInfo({ ...hub, name: hub.repo, additionalFields: ["sha"] });
    if (typeof info.sha === "string" && /^[0-9a-f]{7,64}$/.test(info.sha)) return info.sha;
  } catch (error) {
    throw hubError(error, hub);
  }
  throw new UserError(`the hub gives no commit for ${hub.repo} at ${hub.revision}`);
}

async function listAll(hub: Hub): Promise<ListFileEntry[]> {
  const entries: ListFileEntry[] = [];
  try {
    for await (const entry of listFiles({ ...hub, recursive: true })) if (entry.type === "file") entries.push(entry);
  } catch (error) {
    throw hubError(error, hub);
  }
  return entries;
}

function chooseFiles(entries: readonly ListFileEntry[], { repo, pattern }: PullOptions): ListFileEntry[] {
  if (pattern === undefined) return [...entries];
  const source = pattern.replace(/[.+^${}()|[\]\\]/g, "\\$&").replaceAll("*", ".*").replaceAll("?", ".");
  const regex = new RegExp(`^(${source})$`, "s");
  const chosen = entries.filter((entry) => regex.test(entry.path));
  if (chosen.length > 0) return chosen;
  const hint = nearest(pattern, entries.map((entry) => entry.path));
  throw new UserError(`${repo} has no file ${pattern}${hint === undefined ? `; it has ${someOf(entries)}` : `; did you mean ${hint}?`}`);
}

function someOf(entries: readonly ListFileEntry[]): string {
  const names = entries.slice(0, 12).map((entry) => entry.path);
  return names.join(", ") + (entries.length > names.length ? `, and ${entries.length - names.length} more` : "");
}

/** Large files are named by the SHA-256 of their content, small ones by their git blob id. */
function contentHash(entry: ListFileEntry): { name: string; start: () => Hash } {
  if (entry.lfs !== undefined) return { name: entry.lfs.oid, start: () => createHash("sha256") };
  if (entry.oid === undefined) throw new UserError(`the hub gives no hash for ${entry.path}, so it cannot be checked; it is not fetched`);
  return { name: entry.oid, start: () => createHash("sha1").update(`blob ${entry.size}\0`) };
}

function blobPath(folder: string, entry: ListFileEntry): string {
  const { name } = contentHash(entry);
  if (!/^[0-9a-f]{40,64}$/.test(name)) throw new UserError(`the hub names ${entry.path} by ${JSON.stringify(name)}, which is no hash`);
  return path.join(folder, "blobs", name);
}

function storedBytes(folder: string, entry: ListFileEntry): number {
  const blob = blobPath(folder, entry);
  const stats = fs.statSync(blob, { throwIfNoEntry: false }) ?? fs.statSync(`${blob}.incomplete`, { throwIfNoEntry: false });
  return Math.min(stats?.size ?? 0, entry.size);
}

async function fetchBlob(hub: Hub, entry: ListFileEntry, blob: string, options: PullOptions, onBytes: (nBytes: number) => void): Promise<void> {
  const incomplete = `${blob}.incomplete`;
  fs.mkdirSync(path.dirname(blob), { recursive: true });
  for (let nTries = 1; ; nTries++) {
    const before = fs.statSync(incomplete, { throwIfNoEntry: false })?.size ?? 0;
    try {
      await fetchRest(hub, entry, incomplete, options.signal, onBytes);
      break;
    } catch (error) {
      options.signal?.throwIfAborted();
      if (error instanceof UserError) throw error;
      if (error instanceof HubApiError) throw hubError(error, hub);
      const got = fs.statSync(incomplete, { throwIfNoEntry: false })?.size ?? 0;
      if (got > before) nTries = 0;
      else if (nTries >= maxTries) throw new UserError(`${entry.path}: the connection broke ${nTries} times (${errorMessage(error)}); ${formatInteger(got)} of ${formatInteger(entry.size)} bytes are kept, run the command again to go on`);
      await sleep((options.retryDelayMs ?? 500) * 2 ** nTries, undefined, options.signal === undefined ? {} : { signal: options.signal });
    }
  }
  const { name, start } = contentHash(entry);
  const hash = start();
  for await (const chunk of fs.createReadStream(incomplete, { highWaterMark: 4 << 20 })) hash.update(chunk as Buffer);
  const found = hash.digest("hex");
  if (found !== name) {
    fs.rmSync(incomplete, { force: true });
    throw new UserError(`${entry.path}: the content has hash ${found}, the hub announced ${name}; the bad copy is removed, run the command again`);
  }
  fs.renameSync(incomplete, blob);
}

/** Appends what is missing. */
async function fetchRest(hub: Hub, entry: ListFileEntry, incomplete: string, signal: AbortSignal | undefined, onBytes: (nBytes: number) => void): Promise<void> {
  let at = fs.statSync(incomplete, { throwIfNoEntry: false })?.size ?? 0;
  if (at > entry.size) {
    fs.rmSync(incomplete);
    at = 0;
  }
  if (at === entry.size && at > 0) return;
  const blob = await downloadFile({ ...hub, path: entry.path });
  if (blob === null) throw new UserError(`${entry.path} is listed, but the hub does not give it out`);
  if (blob.size !== entry.size) throw new UserError(`${entry.path}: the hub gives ${formatInteger(blob.size)} bytes, its list says ${formatInteger(entry.size)}`);
  const out = fs.openSync(incomplete, "a");
  try {
    if (entry.size === 0) return;
    for await (const chunk of blob.slice(at, entry.size).stream()) {
      signal?.throwIfAborted();
      at += chunk.length;
      if (at > entry.size) throw new UserError(`${entry.path}: the hub sends more than the ${formatInteger(entry.size)} bytes it announced`);
      fs.writeSync(out, chunk);
      onBytes(at);
    }
  } finally {
    fs.closeSync(out);
  }
  if (at !== entry.size) throw new Error(`the connection ended at byte ${formatInteger(at)}`);
}

function hubError(error: unknown, hub: Hub): UserError {
  if (!(error instanceof HubApiError)) return new UserError(`the hub cannot be reached: ${errorMessage(error)}${error instanceof Error && error.cause instanceof Error ? ` (${error.cause.message})` : ""}`);
  const { statusCode } = error;
  if (statusCode === 401 || statusCode === 403) {
    const token = hub.accessToken === undefined ? "no token is set: HF_TOKEN, or hf auth login" : "the token that is set gives no access; is the model gated, and are its terms accepted?";
    return new UserError(`${hub.repo}: access denied or no such repository (${statusCode}); ${token}`);
  }
  if (statusCode === 404) return new UserError(`${hub.repo} at revision ${hub.revision} is not on the hub; check the name and --revision`);
  return new UserError(`${hub.repo}: the hub answered ${statusCode}: ${errorMessage(error)}`);
}
