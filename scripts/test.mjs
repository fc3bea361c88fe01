// `npm test`: set up, type check, lint, all tests. The last line is "N passed, N failed".
import { readFileSync, rmSync } from "node:fs";
import path from "node:path";
import { build, installDependencies, root, run } from "./setup.mjs";

installDependencies();
build();
const bin = (name) => path.join(root, "node_modules", ".bin", name);
const failures = [];
let nPassed = 0;
let nFailed = 0;
for (const [what, command, args] of [
  ["type check", bin("tsc"), ["-p", "tsconfig.json"]],
  ["lint", bin("oxlint"), ["--type-aware"]],
]) {
  console.log(`== ${what}`);
  if (run(command, args) === 0) nPassed++;
  else {
    nFailed++;
    failures.push(what);
  }
}
console.log("== tests");
const results = path.join(root, "node_modules", ".foretoken", "test-results.json");
rmSync(results, { force: true });
const filters = process.argv.slice(2);
const code = run(bin("vitest"), ["run", "--reporter=default", "--reporter=json", `--outputFile.json=${results}`, ...filters]);
try {
  const summary = JSON.parse(readFileSync(results, "utf8"));
  nPassed += summary.numPassedTests;
  // A file that fails to load has no tests of its own to count.
  nFailed += Math.max(summary.numFailedTests, summary.numFailedTestSuites > 0 && summary.numFailedTests === 0 ? 1 : 0);
  if (summary.numPassedTests === 0) failures.push("no test ran");
} catch {
  nFailed++;
}
if (code !== 0) failures.push("tests");
if (code !== 0 && nFailed === 0) nFailed = 1;
if (failures.length > 0) console.log(`failed: ${failures.join(", ")}`);
console.log(`${nPassed} passed, ${nFailed} failed`);
process.exit(failures.length > 0 ? 1 : 0);
