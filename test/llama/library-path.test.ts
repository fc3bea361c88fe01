import * as fs from "node:fs";
import * as os from "node:os";
import * as path from "node:path";
import { describe, expect, test } from "vitest";
import { findLibraries, librariesIn, packageNames, pickLibraries, wantedPackages } from "../../src/llama/library-path.ts";

describe("library lookup", () => {
  test.each([
    [["libggml-base.so", "libggml-cpu-haswell.so", "libggml.v0.5.0.so", "libllama-common.so", "libllama.v0.5.0.so", "llama-addon.node"], ["libggml-base.so", "libggml.v0.5.0.so", "libllama.v0.5.0.so"]],
    [["libggml-base.so", "libggml-cuda.so", "libggml.cuda.v0.5.0.so", "libllama-common.so", "libllama.cuda.v0.5.0.so"], ["libggml-base.so", "libggml.cuda.v0.5.0.so", "libllama.cuda.v0.5.0.so"]],
    [["libggml-base.so.0", "libggml-cuda.so", "libggml.so.0", "libllama.so.0", "libllama-common.so.0"], ["libggml-base.so.0", "libggml.so.0", "libllama.so.0"]],
    [["libggml-base.so.0.25.1", "libggml-base.so", "libggml.so", "libggml.so.0", "libllama.so.0.5.0", "libllama.so", "libllama-server-impl.so"], ["libggml-base.so", "libggml.so", "libllama.so"]],
    [["libggml-base.dylib", "libggml-metal.so", "libggml.dylib", "libllama.dylib", "libllama.0.dylib"], ["libggml-base.dylib", "libggml.dylib", "libllama.dylib"]],
    [["ggml-base.dll", "ggml.dll", "ggml-cpu-x64.dll", "llama.dll", "llama-common.dll"], ["ggml-base.dll", "ggml.dll", "llama.dll"]],
  ])("picks the three libraries out of %j", (names, [base, ggml, llama]) => {
    expect(pickLibraries(names)).toEqual({ base, ggml, llama });
    expect(pickLibraries(names.toReversed())).toEqual({ base, ggml, llama });
  });

  test("a GPU package comes before the CPU package unless the CPU is asked for", () => {
    const names = packageNames("linux", "x64");
    expect(wantedPackages(names, "auto")).toEqual(["linux-x64-cuda", "linux-x64-vulkan", "linux-x64"]);
    expect(wantedPackages(names, "CUDA0")).toEqual(["linux-x64-cuda"]);
    expect(wantedPackages(names, "vulkan")).toEqual(["linux-x64-vulkan"]);
    expect(wantedPackages(names, "cpu")[0]).toBe("linux-x64");
    expect(wantedPackages(names, "none")[0]).toBe("linux-x64");
    expect(packageNames("sunos", "x64")).toEqual([]);
  });

  test("a folder without the libraries, or none, is a one-line error that says what is missing", () => {
    const folder = fs.mkdtempSync(path.join(os.tmpdir(), "foretoken-lib-"));
    expect(() => librariesIn(path.join(folder, "nowhere"))).toThrow("is not a folder that can be read");
    fs.writeFileSync(path.join(folder, "libllama.so"), "");
    expect(() => librariesIn(folder)).toThrow("has no libggml-base, no libggml;");
    fs.rmSync(folder, { recursive: true });
  });

  test("FORETOKEN_LLAMA_DIR counts when no folder is given", () => {
    const before = process.env["FORETOKEN_LLAMA_DIR"];
    const { folder } = findLibraries();
    process.env["FORETOKEN_LLAMA_DIR"] = folder;
    try {
      expect(findLibraries().folder).toBe(folder);
      process.env["FORETOKEN_LLAMA_DIR"] = path.join(folder, "nowhere");
      expect(() => findLibraries()).toThrow("nowhere");
      expect(findLibraries(folder).folder).toBe(folder);
    } finally {
      if (before === undefined) delete process.env["FORETOKEN_LLAMA_DIR"];
      else process.env["FORETOKEN_LLAMA_DIR"] = before;
    }
  });
});
