/** Which model files a command line names, and their hashes: a result without them cannot be repeated. */
import * as fs from "node:fs";
import { sha256File } from "../util/files.ts";

export interface ModelFile {
  readonly file: string;
  readonly sha256: string;
}

/** GGUF files among the words of command lines, each hashed once. */
export async function hashModelFiles(commands: Iterable<readonly string[]>): Promise<ModelFile[]> {
  const files = new Set([...commands].flat().filter((word) => word.endsWith(".gguf") && fs.existsSync(word)));
  const models: ModelFile[] = [];
  for (const file of files) models.push({ file, sha256: await sha256File(file) });
  return models;
}
