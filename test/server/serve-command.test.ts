/** `foretoken serve` as a person starts it: its one line on stdout, its exit codes, its end by a signal. */
import { spawn, type ChildProcess } from "node:child_process";
import { once } from "node:events";
import * as fs from "node:fs";
import * as os from "node:os";
import * as path from "node:path";
import { createRequire } from "node:module";
import { afterAll, beforeAll, describe, expect, test } from "vitest";
import { packageRoot } from "../../src/util/paths.ts";
import { call, stream, textOf, type Target } from "../conformance/client.ts";
import { tinyHead, tinyTrunk } from "../llama/tiny-model.ts";

const tsx = createRequire(import.meta.url).resolve("tsx");
const folder = fs.mkdtempSync(path.join(os.tmpdir(), "foretoken-serve-"));
afterAll(() => fs.rmSync(folder, { recursive: true, force: true }));

interface Run {
  readonly child: ChildProcess;
  readonly stdout: () => string;
  readonly stderr: () => string;
}

function foretoken(...argv: string[]): Run {
  // No cost table of an earlier run: what is measured at a start is measured here.
  const child = spawn(process.execPath, ["--import", tsx, path.join(packageRoot, "src", "cli.ts"), ...argv], { stdio: ["ignore", "pipe", "pipe"], env: { ...process.env, XDG_CACHE_HOME: folder } });
  let stdout = "";
  let stderr = "";
  child.stdout.on("data", (part: Buffer) => {
    stdout += part.toString();
  });
  child.stderr.on("data", (part: Buffer) => {
    stderr += part.toString();
  });
  return { child, stdout: () => stdout, stderr: () => stderr };
}

async function fails(...argv: string[]): Promise<{ code: number; stderr: string }> {
  const run = foretoken("serve", "--threads", "1", ...argv);
  const [code] = (await once(run.child, "close")) as [number];
  expect(run.stdout()).toBe("");
  return { code, stderr: run.stderr().trim() };
}

describe("foretoken serve", () => {
  let run: Run;
  let target: Target;
  let model: string;

  beforeAll(async () => {
    model = await tinyTrunk();
    run = foretoken("serve", "-m", model, "--threads", "1", "--port", "0", "--alias", "tiny", "--json", "--parallel", "2");
    while (!run.stdout().includes("\n")) await Promise.race([once(run.child.stdout as NodeJS.ReadableStream, "data"), once(run.child, "close").then(() => Promise.reject(new Error(run.stderr())))]);
    const line = JSON.parse(run.stdout()) as { url: string; model: string };
    target = { baseUrl: line.url, model: line.model, kind: "foretoken" };
  });
  afterAll(() => run.child.kill("SIGKILL"));

  test("says where it is, once, as JSON", () => {
    expect(run.stdout().trim().split("\n")).toHaveLength(1);
    expect(JSON.parse(run.stdout())).toMatchObject({ model: "tiny", nSlots: 2, nMax: 0 });
    expect(target.baseUrl).toMatch(/^http:\/\/127\.0\.0\.1:\d+$/);
  });

  test("a port in use and files that do not fit are one line and exit code 1", async () => {
    const port = new URL(target.baseUrl).port;
    const text = path.join(folder, "text.gguf");
    const cut = path.join(folder, "cut.gguf");
    fs.writeFileSync(text, "hello");
    fs.writeFileSync(cut, fs.readFileSync(model).subarray(0, 50_000));
    const cases = await Promise.all([
      fails("-m", model, "--port", port),
      fails("-m", path.join(folder, "none.gguf")),
      fails("-m", text, "--port", "0"),
      fails("-m", cut, "--port", "0"),
      fails("-m", model, "--port", "0", "--spec-type", "draft-mtp"),
    ]);
    const wanted = [/port \d+ on 127\.0\.0\.1 is in use/, /none\.gguf does not exist/, /text\.gguf/, /cut\.gguf/, /has no MTP head/];
    for (const [i, { code, stderr }] of cases.entries()) {
      expect([code, stderr.split("\n").length], stderr).toEqual([1, 1]);
      expect(stderr).toMatch(/^foretoken: /);
      expect(stderr).toMatch(wanted[i] as RegExp);
    }
  });

  test("a wrong flag is exit code 2 with the right one", async () => {
    const { code, stderr } = await fails("-m", model, "--spec-draft-n-maxx", "3");
    expect([code, stderr]).toEqual([2, "foretoken: unknown flag --spec-draft-n-maxx; did you mean --spec-draft-n-max?"]);
  });

  test("SIGTERM lets a running answer finish, then ends with 0", async () => {
    const answer = stream(target, "/v1/completions", { model: "tiny", prompt: "def f(x):", max_tokens: 300, ignore_eos: true, temperature: 0 });
    while ((await call(target, "/status")).json.requests.active === 0) await new Promise((resolve) => setTimeout(resolve, 5));
    run.child.kill("SIGTERM");
    const [code] = (await once(run.child, "close")) as [number];
    const { chunks, isDone } = await answer;
    expect([code, isDone]).toEqual([0, true]);
    expect(textOf(chunks).length).toBeGreaterThan(100);
    expect(run.stderr()).toMatch(/engine integrity: sequences, cells and contexts agree/);
  });
});

test("slots in two groups answer as one group does, and end with contexts that agree", async () => {
  const model = await tinyTrunk();
  const answers = await Promise.all(
    ["1", "2"].map(async (nGroups) => {
      const run = foretoken("serve", "-m", model, "--threads", "1", "--port", "0", "--alias", "tiny", "--json", "--parallel", "4", "--decode-groups", nGroups);
      while (!run.stdout().includes("\n")) await Promise.race([once(run.child.stdout as NodeJS.ReadableStream, "data"), once(run.child, "close").then(() => Promise.reject(new Error(run.stderr())))]);
      const { url, nSlots } = JSON.parse(run.stdout()) as { url: string; nSlots: number };
      const target: Target = { baseUrl: url, model: "tiny", kind: "foretoken" };
      const texts = await Promise.all(["def f(x):", "class A", "import os", "return 1"].map(async (prompt) => (await call(target, "/v1/completions", { model: "tiny", prompt, max_tokens: 24, temperature: 0 })).json.choices[0].text as string));
      run.child.kill("SIGTERM");
      const [code] = (await once(run.child, "close")) as [number];
      expect(run.stderr()).toMatch(/engine integrity: sequences, cells and contexts agree/);
      return { nSlots, code, nTexts: texts.filter((text) => text.length > 0).length, first: texts[0]?.slice(0, 4) };
    }),
  );
  expect(answers[1]).toEqual({ ...answers[0], nSlots: 4, code: 0, nTexts: 4 });
});

test("more groups than slots is a usage error", async () => {
  const { code, stderr } = await fails("-m", "any.gguf", "--parallel", "2", "--decode-groups", "3");
  expect([code, stderr]).toEqual([2, "foretoken: --decode-groups 3 is above --parallel 2: each group needs a slot; lower it"]);
});

test("groups of unequal size measure the same steps together and come up", async () => {
  const run = foretoken("serve", "-m", await tinyTrunk(), "--spec-type", "draft-mtp", "--spec-draft-model", await tinyHead(), "--spec-draft-n-max", "1", "--threads", "1", "--port", "0", "--json", "--parallel", "3", "--decode-groups", "2", "-c", "768");
  while (!run.stdout().includes("\n")) await Promise.race([once(run.child.stdout as NodeJS.ReadableStream, "data"), once(run.child, "close").then(() => Promise.reject(new Error(run.stderr())))]);
  expect(JSON.parse(run.stdout())).toMatchObject({ nSlots: 3, nMax: 1 });
  run.child.kill("SIGKILL");
});
