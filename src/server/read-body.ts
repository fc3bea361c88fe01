import type { IncomingMessage } from "node:http";
import { ApiError, badRequest } from "./api-error.ts";

/**
 * The JSON body of a request.
 * @throws {ApiError} 413 as soon as it is known to be too large, 415 when it is compressed, 400 when it is not JSON.
 */
export async function readJson(incoming: IncomingMessage, maxBytes: number): Promise<unknown> {
  const encoding = incoming.headers["content-encoding"] ?? "identity";
  if (encoding !== "identity") throw new ApiError(415, `content-encoding ${encoding} is not supported; send the body as it is`, { code: "unsupported_encoding" });
  if (Number(incoming.headers["content-length"] ?? 0) > maxBytes) throw tooLarge(maxBytes);
  const parts: Buffer[] = [];
  let nBytes = 0;
  for await (const part of incoming as AsyncIterable<Buffer>) {
    nBytes += part.length;
    if (nBytes > maxBytes) throw tooLarge(maxBytes);
    parts.push(part);
  }
  if (nBytes === 0) throw badRequest("the body is empty; a JSON object is needed");
  try {
    return JSON.parse(Buffer.concat(parts).toString("utf8"));
  } catch (error) {
    throw badRequest(`the body is not valid JSON: ${(error as Error).message}`, undefined, "invalid_json");
  }
}

function tooLarge(maxBytes: number): ApiError {
  return new ApiError(413, `the body is larger than ${maxBytes} bytes, the limit of this server (--max-body-mib)`, { code: "body_too_large" });
}
