/** What a benchmark says instead of a stack when it was called wrongly. */
import * as fs from "node:fs";

export function endWith(message: string): never {
  process.stderr.write(`${message}\n`);
  process.exit(2);
}

/** Ends with the usage where a file was not given, and with its name where it is not there. */
export function needFiles(usage: string, files: readonly string[]): void {
  for (const file of files) {
    if (file === "") endWith(`usage: npm run ${usage}`);
    if (!fs.existsSync(file)) endWith(`${file} does not exist\nusage: npm run ${usage}`);
  }
}
