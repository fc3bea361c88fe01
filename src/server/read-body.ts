import type { IncomingMessage, ServerResponse } from "node:http";
import { ApiError, badRequest } from "./api-error.ts";

/** A body above the limit is read to its end up to this factor: a client that is still sending cannot read an answer. */
const DISCARD_FACTOR = 16;

/**
 * The JSON body of a request. A client that asks first (Expect: 100-continue) is told to go on only when its body fits.
 * @throws {ApiError} 413 when it is too large, 415 when it is compressed, 400 when it is not JSON.
 */
export async function readJson({ incoming, outgoing }: { readonly incoming: IncomingMessage; readonly outgoing: ServerResponse }, maxBytes: number): Promise<unknown> {
  const encoding = incoming.headers["content-encoding"] ?? "identity";
  if (encoding !== "identity") throw new ApiError(415, `content-encoding ${encoding} is not supported; send the body as it is`, { code: "unsupported_encoding" });
  const isAsking = incoming.headers.expect?.toLowerCase() === "100-continue";
  if (isAsking && Number(incoming.headers["content-length"] ?? 0) > maxBytes) throw tooLarge(maxBytes);
  if (isAsking) outgoing.writeContinue();
  const parts: Buffer[] = [];
  let nBytes = 0;
  for await (const part of incoming as AsyncIterable<Buffer>) {
    nBytes += part.length;
    if (nBytes <= maxBytes) parts.push(part);
    else if (nBytes > maxBytes * DISCARD_FACTOR) break;
  }
  if (nBytes > maxBytes) throw tooLarge(maxBytes);
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
