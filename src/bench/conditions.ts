/** What a result must name to be worth anything: who measured what, with which code, where and when. */
import { execFileSync } from "node:child_process";
import * as os from "node:os";
import { packageRoot, packageVersion } from "../util/paths.ts";
import { serverRoot } from "./client.ts";
import { getText } from "./http.ts";
import type { Target } from "./run.ts";

export interface Conditions {
  readonly date: string;
  readonly foretoken: string;
  /** Git commit of the package; undefined outside a checkout. */
  readonly commit: string | undefined;
  readonly machine: string;
  readonly node: string;
}

export function localConditions(date: Date = new Date()): Conditions {
  const cpus = os.cpus();
  return {
    date: date.toISOString(),
    foretoken: packageVersion,
    commit: gitCommit(),
    machine: `${process.platform}-${process.arch}, ${cpus.length} x ${cpus[0]?.model.trim() ?? "unknown CPU"}, ${Math.round(os.totalmem() / 2 ** 30)} GiB`,
    node: process.versions.node,
  };
}

function gitCommit(): string | undefined {
  const git = (...args: string[]): string => execFileSync("git", ["-C", packageRoot, ...args], { encoding: "utf8", stdio: ["ignore", "pipe", "ignore"] }).trim();
  try {
    return git("rev-parse", "HEAD") + (git("status", "--porcelain", "--untracked-files=no") === "" ? "" : "-dirty");
  } catch {
    return undefined;
  }
}

/** `/props` of the server as it is (llama-server and ours have it), else undefined. */
export async function serverProps(target: Target): Promise<Record<string, unknown> | undefined> {
  const text = await getText(`${serverRoot(target.baseUrl)}/props`, target.apiKey === undefined ? {} : { headers: { authorization: `Bearer ${target.apiKey}` } });
  if (text === undefined) return undefined;
  try {
    const props = JSON.parse(text) as Record<string, unknown>;
    // The template is long and says nothing about speed.
    return Object.fromEntries(Object.entries(props).filter(([key]) => key !== "chat_template"));
  } catch {
    return undefined;
  }
}
