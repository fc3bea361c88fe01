import { createHash } from "node:crypto";
import type { ByteRange } from "./header.ts";
import { readPieces } from "./writer.ts";

/** Lower-case hex SHA-256 of a range of a file: a tensor's data, a long array. Read in pieces. */
export async function sha256Range({ file, offset, sizeBytes }: ByteRange, signal?: AbortSignal): Promise<string> {
  const hash = createHash("sha256");
  for await (const piece of readPieces(file, offset, sizeBytes)) {
    signal?.throwIfAborted();
    hash.update(piece);
  }
  return hash.digest("hex");
}
