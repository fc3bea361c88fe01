/** Text to tokens and back, and the rendered chat template: llama-server's endpoints of the same names. */
import type { Context } from "hono";
import type { HttpBindings } from "@hono/node-server";
import * as z from "zod";
import { badRequest } from "./api-error.ts";
import { renderPrompt } from "./handle-chat.ts";
import { readJson } from "./read-body.ts";
import { chatRequest, parseBody } from "./schemas.ts";
import type { ServerContext } from "./server-context.ts";
import { toolsInUse } from "./tools-in-use.ts";

type Handled = Context<{ Bindings: HttpBindings }>;

const tokenizeRequest = z.object({
  content: z.string(),
  add_special: z.boolean().default(false),
  parse_special: z.boolean().default(true),
  with_pieces: z.boolean().default(false),
});

const detokenizeRequest = z.object({ tokens: z.array(z.int().min(0)) });

export async function handleTokenize(c: Handled, context: ServerContext): Promise<Response> {
  const request = parseBody(tokenizeRequest, await readJson(c.env, context.settings.maxBodyBytes));
  const { tokenizer } = context.text;
  const tokens = [...tokenizer.tokenize(request.content, { addSpecial: request.add_special, parseSpecial: request.parse_special })];
  return Response.json({ tokens: request.with_pieces ? tokens.map((id) => ({ id, piece: piece(tokenizer.tokenBytes(id, true)) })) : tokens });
}

export async function handleDetokenize(c: Handled, context: ServerContext): Promise<Response> {
  const { tokens } = parseBody(detokenizeRequest, await readJson(c.env, context.settings.maxBodyBytes));
  const { tokenizer } = context.text;
  const wrong = tokens.find((token) => token >= tokenizer.nVocab);
  if (wrong !== undefined) throw badRequest(`tokens: ${wrong} is not in the vocabulary of ${tokenizer.nVocab}`, "tokens");
  return Response.json({ content: Buffer.concat(tokens.map((token) => tokenizer.tokenBytes(token, true))).toString() });
}

export async function handleApplyTemplate(c: Handled, context: ServerContext): Promise<Response> {
  const request = parseBody(chatRequest, await readJson(c.env, context.settings.maxBodyBytes));
  return Response.json({ prompt: renderPrompt(request, toolsInUse(request, context.text.template.toolCallStyle), context).text });
}

/** The text of a token, or its bytes when it is a part of a character. */
function piece(bytes: Uint8Array): string | number[] {
  try {
    return new TextDecoder("utf-8", { fatal: true, ignoreBOM: true }).decode(bytes);
  } catch {
    return [...bytes];
  }
}
