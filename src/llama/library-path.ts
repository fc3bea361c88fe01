/**
 * Where the llama.cpp libraries are. A folder given by hand wins; else the npm packages of this platform, a GPU build
 * before the CPU build unless the CPU is asked for. Files are found by prefix, because builds name them differently:
 * `libllama.v0.5.0.so`, `libllama.cuda.v0.5.0.so`, `libllama.so.0`, `libllama.so`, `libllama.dylib`, `llama.dll`.
 */
import { createRequire } from "node:module";
import * as fs from "node:fs";
import * as path from "node:path";
import { UserError } from "../util/errors.ts";

/** The release that every package is pinned to. */
export const PACKAGE_VERSION = "3.22.1";

export interface LibraryFiles {
  readonly folder: string;
  readonly base: string;
  readonly ggml: string;
  readonly llama: string;
}

/** Package names for a platform in the order they are tried; the first is the best that hardware may allow. */
export function packageNames(platform: NodeJS.Platform, arch: string): readonly string[] {
  switch (`${platform}-${arch}`) {
    case "linux-x64":
      return ["linux-x64-cuda", "linux-x64-vulkan", "linux-x64"];
    case "linux-arm64":
      return ["linux-arm64"];
    case "linux-arm":
      return ["linux-armv7l"];
    case "darwin-arm64":
      return ["mac-arm64-metal"];
    case "darwin-x64":
      return ["mac-x64"];
    case "win32-x64":
      return ["win-x64-cuda", "win-x64-vulkan", "win-x64"];
    case "win32-arm64":
      return ["win-arm64"];
    default:
      return [];
  }
}

/** Of the packages that exist for the platform, those that can serve the device: cpu, none, auto, cuda, CUDA0, Vulkan1... */
export function wantedPackages(names: readonly string[], device: string): readonly string[] {
  const kind = /^(cuda|vulkan|metal)/i.exec(device)?.[1]?.toLowerCase();
  if (kind !== undefined) return names.filter((name) => name.endsWith(`-${kind}`));
  if (/^(cpu|none)$/i.test(device)) return names.toReversed();
  return names;
}

/**
 * Picks the three libraries out of a folder's file names. `libllama-common` is another library, and
 * `libggml-base`, `libggml-cpu...` are not `libggml`. The shortest match wins: `libllama.so` before `libllama.so.0.5.0`.
 */
export function pickLibraries(names: readonly string[]): { base?: string; ggml?: string; llama?: string } {
  const pick = (stem: string): string | undefined => {
    const pattern = new RegExp(`^(?:lib)?${stem}(?:\\.[a-z]\\w*)?(?:\\.v?[\\d.]+)?(?:\\.so(?:\\.[\\d.]+)?|\\.dylib|\\.dll)$`);
    return names.filter((name) => pattern.test(name)).sort((a, b) => a.length - b.length || a.localeCompare(b))[0];
  };
  const found = { base: pick("ggml-base"), ggml: pick("ggml"), llama: pick("llama") };
  return Object.fromEntries(Object.entries(found).filter(([, file]) => file !== undefined));
}

/** @throws {UserError} when the folder is not there or lacks a library. */
export function librariesIn(folder: string): LibraryFiles {
  let names: string[];
  try {
    names = fs.readdirSync(folder);
  } catch {
    throw new UserError(`--llama-dir ${folder} is not a folder that can be read; give the folder that holds libllama and libggml`);
  }
  const { base, ggml, llama } = pickLibraries(names);
  if (base === undefined || ggml === undefined || llama === undefined) {
    const missing = [base === undefined ? "libggml-base" : "", ggml === undefined ? "libggml" : "", llama === undefined ? "libllama" : ""];
    throw new UserError(`${folder} has no ${missing.filter((m) => m !== "").join(", no ")}; give the folder of a llama.cpp 0.5.0 build with shared libraries`);
  }
  const full = (name: string): string => path.join(folder, name);
  return { folder, base: full(base), ggml: full(ggml), llama: full(llama) };
}

/** The folder of libraries inside an installed package, undefined when it is not installed. */
export function packageFolder(name: string): string | undefined {
  const folder = path.join(packageRootOf(name) ?? "", "bins", name);
  return path.isAbsolute(folder) && fs.existsSync(folder) ? folder : undefined;
}

/** The packages export no package.json, so node_modules folders are looked through as Node does. */
export function packageRootOf(name: string): string | undefined {
  const places = createRequire(import.meta.url).resolve.paths(`@node-llama-cpp/${name}`) ?? [];
  return places.map((place) => path.join(place, "@node-llama-cpp", name)).find((candidate) => fs.existsSync(path.join(candidate, "package.json")));
}

/**
 * The CUDA 12 build of ggml's CUDA backend, which the `-cuda-ext` package holds: the `-cuda` package itself is built for
 * CUDA 13. Undefined when the libraries are no `-cuda` package or the extension is not installed.
 */
export function cudaFallback(folder: string): string | undefined {
  const name = path.basename(folder);
  if (!name.endsWith("-cuda")) return undefined;
  const extension = packageRootOf(`${name}-ext`);
  const file = path.join(extension ?? "", "bins", name, "fallback", process.platform === "win32" ? "ggml-cuda.dll" : "libggml-cuda.so");
  return extension !== undefined && fs.existsSync(file) ? file : undefined;
}

/** Every package of this platform and where it is installed, best first. */
export function installedPackages(): readonly { readonly name: string; readonly folder: string | undefined }[] {
  return packageNames(process.platform, process.arch).map((name) => ({ name, folder: packageFolder(name) }));
}

/**
 * The libraries to load. `llamaDir` is `--llama-dir`; without it FORETOKEN_LLAMA_DIR counts, then the npm packages.
 * @throws {UserError} with the package to install when there is none.
 */
export function findLibraries(llamaDir?: string, device = "auto"): LibraryFiles {
  const given = llamaDir ?? process.env["FORETOKEN_LLAMA_DIR"];
  if (given !== undefined && given !== "") return librariesIn(path.resolve(given));
  const wanted = wantedPackages(packageNames(process.platform, process.arch), device);
  if (wanted.length === 0)
    throw new UserError(`no llama.cpp package for ${process.platform}-${process.arch} and device ${device}; build llama.cpp 0.5.0 with shared libraries and give --llama-dir`);
  for (const name of wanted) {
    const folder = packageFolder(name);
    if (folder !== undefined) return librariesIn(folder);
  }
  throw new UserError(`the llama.cpp libraries are not installed; run: npm install @node-llama-cpp/${wanted.at(-1) as string}@${PACKAGE_VERSION}, or give --llama-dir`);
}
