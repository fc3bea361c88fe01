// Set-up that needs nothing but Node and npm: dependencies when the lock file changed, a build when a source did.
import { spawnSync } from "node:child_process";
import { createHash } from "node:crypto";
import { existsSync, mkdirSync, readFileSync, readdirSync, statSync, writeFileSync } from "node:fs";
import path from "node:path";
import { fileURLToPath } from "node:url";

export const root = path.dirname(path.dirname(fileURLToPath(import.meta.url)));
const [major, minor] = process.versions.node.split(".").map(Number);

export function run(command, args, options = {}) {
  const result = spawnSync(command, args, { cwd: root, stdio: ["inherit", "inherit", "inherit"], shell: process.platform === "win32", ...options });
  return result.status ?? 1;
}

function mustRun(command, args, what) {
  // npm prints its chatter on stdout: keep stdout for results.
  const code = run(command, args, { stdio: ["ignore", 2, 2] });
  if (code !== 0) {
    console.error(`foretoken: ${what} failed (exit ${code}); see the lines above`);
    process.exit(1);
  }
}

const stamp = (name) => path.join(root, "node_modules", ".foretoken", name);
const readStamp = (name) => (existsSync(stamp(name)) ? readFileSync(stamp(name), "utf8") : "");
function writeStamp(name, value) {
  mkdirSync(path.dirname(stamp(name)), { recursive: true });
  writeFileSync(stamp(name), value);
}

export function installDependencies() {
  if (major < 20 || (major === 20 && minor < 19)) {
    console.error(`foretoken: Node ${process.versions.node} is too old; install Node 20.19 or newer`);
    process.exit(1);
  }
  const hash = createHash("sha256");
  for (const file of ["package.json", "package-lock.json"]) hash.update(readFileSync(path.join(root, file)));
  const want = `${hash.digest("hex")} ${process.platform}-${process.arch} ${process.versions.modules}`;
  if (readStamp("installed") === want) return;
  console.error("foretoken: installing dependencies (once)");
  mustRun("npm", ["install", "--no-audit", "--no-fund", "--loglevel=error"], "npm install");
  writeStamp("installed", want);
}

export function newestSource() {
  let newest = statSync(path.join(root, "package.json")).mtimeMs;
  const walk = (folder) => {
    for (const entry of readdirSync(folder, { withFileTypes: true })) {
      const file = path.join(folder, entry.name);
      if (entry.isDirectory()) walk(file);
      else newest = Math.max(newest, statSync(file).mtimeMs);
    }
  };
  walk(path.join(root, "src"));
  return newest;
}

export function build() {
  const want = String(newestSource());
  if (readStamp("built") === want && existsSync(path.join(root, "dist", "src", "cli.js"))) return;
  console.error("foretoken: building");
  mustRun("npm", ["run", "--silent", "build"], "the build");
  writeStamp("built", want);
}
