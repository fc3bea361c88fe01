import * as fs from "node:fs";
import * as yaml from "yaml";
import { errorMessage, usageError } from "./errors.ts";
import { statFile } from "./files.ts";

/** @throws {UserError} exit code 2 when the file is missing or does not parse, with the parser's first line. */
export function readYaml(file: string, what: string): unknown {
  statFile(file, what);
  try {
    return yaml.parse(fs.readFileSync(file, "utf8"));
  } catch (error) {
    throw usageError(`${file}: ${errorMessage(error).split("\n")[0]}`);
  }
}
