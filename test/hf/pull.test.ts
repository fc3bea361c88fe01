import * as fs from "node:fs";
import * as path from "node:path";
import { afterAll, beforeAll, beforeEach, expect, test } from "vitest";
import { accessToken, cacheFolder } from "../../src/hf/cache.ts";
import { pullFiles, type PullOptions, type PullResult } from "../../src/hf/pull.ts";
import { temporaryFolder } from "../gguf/files.ts";
import { commit, startHub, type Hub } from "./loopback-hub.ts";

const folder = temporaryFolder("pull");
let hub: Hub;
let cache = "";
let nCaches = 0;

beforeAll(async () => {
  hub = await startHub();
});
afterAll(() => hub.close());
beforeEach(() => {
  cache = path.join(folder, `cache-${nCaches++}`);
  hub.requests.length = 0;
  hub.breakAfter.length = 0;
  hub.corrupt = false;
  hub.token = undefined;
  hub.files.clear();
  hub.files.set("model.gguf", Buffer.from(Array.from({ length: 500_000 }, (_, i) => (i * 31) & 255)));
  hub.files.set("other-Q4_K_M.gguf", Buffer.alloc(2000, 7));
  hub.files.set("sub/config.json", Buffer.from('{"a": 1}'));
  hub.files.set("empty.txt", Buffer.alloc(0));
});

function pull(options: Partial<PullOptions> = {}): Promise<PullResult> {
  return pullFiles({ repo: "owner/model", revision: "main", hubUrl: hub.url, retryDelayMs: 1, ...options, env: { HF_HUB_CACHE: cache, HF_TOKEN_PATH: path.join(folder, "none"), ...options.env } });
}

const inRepo = (...parts: string[]): string => path.join(cache, "models--owner--model", ...parts);

test("everything arrives in the layout of the shared cache", async () => {
  const result = await pull();
  expect(result.files.map((f) => f.path)).toEqual(["model.gguf", "other-Q4_K_M.gguf", "sub/config.json", "empty.txt"]);
  for (const file of result.files) {
    expect(file.file).toBe(inRepo("snapshots", commit, ...file.path.split("/")));
    expect(fs.lstatSync(file.file).isSymbolicLink()).toBe(true);
    expect(fs.readFileSync(file.file).equals(hub.files.get(file.path) as Buffer)).toBe(true);
  }
  expect(fs.readFileSync(inRepo("refs", "main"), "utf8")).toBe(commit);
  expect(fs.readdirSync(inRepo("blobs")).filter((name) => name.includes("incomplete"))).toEqual([]);
});

test("a second pull fetches nothing", async () => {
  await pull({ pattern: "model.gguf" });
  hub.requests.length = 0;
  const again = await pull({ pattern: "model.gguf", revision: "v1" });
  expect(again.files.map((f) => f.wasCached)).toEqual([true]);
  expect(hub.requests).toEqual([]);
  expect(fs.readFileSync(inRepo("refs", "v1"), "utf8")).toBe(commit);
});

test("a pattern chooses, a wrong name gets a suggestion", async () => {
  expect((await pull({ pattern: "*.gguf" })).files.map((f) => f.path)).toEqual(["model.gguf", "other-Q4_K_M.gguf"]);
  await expect(pull({ pattern: "modle.gguf" })).rejects.toThrow("owner/model has no file modle.gguf; did you mean model.gguf?");
  await expect(pull({ pattern: "*.bin" })).rejects.toThrow("it has model.gguf, other-Q4_K_M.gguf, sub/config.json, empty.txt");
});

test("a broken connection goes on where it stopped", async () => {
  hub.breakAfter.push(100_000, 0, 150_000);
  const result = await pull({ pattern: "model.gguf" });
  expect(fs.readFileSync(result.files[0]?.file ?? "").equals(hub.files.get("model.gguf") as Buffer)).toBe(true);
  expect(hub.requests.length).toBe(4);
  const starts = hub.requests.map((request) => Number(/ (\d+)-/.exec(request)?.[1]));
  expect(starts[0]).toBe(0);
  expect(starts.slice(1).every((start, i) => start >= (starts[i] as number))).toBe(true);
  expect(starts.at(-1)).toBeGreaterThan(0);
});

test("a pull that was given up goes on later", async () => {
  hub.breakAfter.push(...Array.from({ length: 40 }, () => 0));
  fs.mkdirSync(inRepo("blobs"), { recursive: true });
  await expect(pull({ pattern: "model.gguf" })).rejects.toThrow(/the connection broke 5 times .* run the command again to go on/);
  hub.breakAfter.length = 0;
  hub.breakAfter.push(200_000);
  const controller = new AbortController();
  const stopped = pull({ pattern: "model.gguf", signal: controller.signal, onBytes: (n) => n > 50_000 && controller.abort(new Error("stopped by SIGINT")) });
  await expect(stopped).rejects.toThrow("stopped by SIGINT");
  const kept = fs.readdirSync(inRepo("blobs")).filter((name) => name.endsWith(".incomplete"));
  expect(kept.length).toBe(1);
  hub.breakAfter.length = 0;
  hub.requests.length = 0;
  await pull({ pattern: "model.gguf" });
  expect(hub.requests.length).toBe(1);
  expect(hub.requests[0]).not.toMatch(/ 0-/);
});

test("content with the wrong hash is refused and removed", async () => {
  hub.corrupt = true;
  await expect(pull({ pattern: "model.gguf" })).rejects.toThrow(/the content has hash [0-9a-f]{64}, the hub announced [0-9a-f]{64}; the bad copy is removed/);
  expect(fs.readdirSync(inRepo("blobs"))).toEqual([]);
  expect(fs.existsSync(inRepo("snapshots"))).toBe(false);
  hub.corrupt = false;
  expect((await pull({ pattern: "model.gguf" })).files.length).toBe(1);
});

test("a token is used when there is one, and asked for when there is none", async () => {
  hub.token = "hf_secret";
  await expect(pull({ pattern: "model.gguf" })).rejects.toThrow("access denied or no such repository (401); no token is set: HF_TOKEN, or hf auth login");
  await expect(pull({ pattern: "model.gguf", env: { HF_TOKEN: "hf_wrong" } })).rejects.toThrow("the token that is set gives no access");
  fs.writeFileSync(path.join(folder, "token"), "hf_secret\n");
  expect((await pull({ pattern: "model.gguf", env: { HF_TOKEN_PATH: path.join(folder, "token") } })).files.length).toBe(1);
});

test("what is not there is said", async () => {
  await expect(pull({ repo: "owner/missing" })).rejects.toThrow("owner/missing at revision main is not on the hub");
  await expect(pull({ revision: "v9" })).rejects.toThrow("owner/model at revision v9 is not on the hub; check the name and --revision");
  await expect(pull({ repo: "nonsense" })).rejects.toThrow("nonsense is no repository; write owner/name");
  await expect(pull({ hubUrl: "http://127.0.0.1:1" })).rejects.toThrow("the hub cannot be reached");
});

test("a file name that would leave the cache is not fetched", async () => {
  hub.files.set("../../escape", Buffer.from("x"));
  await expect(pull()).rejects.toThrow('a file named "../../escape", which is no safe path');
  expect(fs.existsSync(path.join(cache, "escape"))).toBe(false);
});

test("cache and token are where other tools keep them", () => {
  expect(cacheFolder({ HF_HOME: "/h" })).toBe(path.join("/h", "hub"));
  expect(cacheFolder({ XDG_CACHE_HOME: "/x" })).toBe(path.join("/x", "huggingface", "hub"));
  expect(cacheFolder({ HF_HOME: "/h", HF_HUB_CACHE: "/c" })).toBe("/c");
  expect(accessToken({ HF_TOKEN: " hf_a \n" })).toBe("hf_a");
  expect(accessToken({ HF_HOME: path.join(folder, "nowhere") })).toBeUndefined();
});
