/** The text side of a model file for the HTTP process: its vocabulary and its chat template, no weights. */
import * as fs from "node:fs";
import { loadVocab, type Vocab } from "../llama/vocab.ts";
import { ChatTemplate } from "../server/chat-template.ts";
import type { ModelText } from "../server/server-context.ts";
import type { Tokenizer } from "../server/tokenizer.ts";
import { statFile } from "../util/files.ts";

export interface ModelTextOptions {
  readonly llamaDir?: string | undefined;
  /** A Jinja file instead of the model's own template. */
  readonly chatTemplateFile?: string | undefined;
}

/** @throws {UserError} for a file that is no model, or a template that does not parse. */
export function readModelText(model: string, { llamaDir, chatTemplateFile }: ModelTextOptions): ModelText {
  const vocab = loadVocab(model, { llamaDir });
  if (chatTemplateFile !== undefined) statFile(chatTemplateFile, "--chat-template-file");
  const source = chatTemplateFile === undefined ? vocab.chatTemplate : fs.readFileSync(chatTemplateFile, "utf8");
  const tokenizer = tokenizerOf(vocab);
  return { tokenizer, template: new ChatTemplate(source, tokenizer) };
}

function tokenizerOf(vocab: Vocab): Tokenizer {
  return {
    nVocab: vocab.nTokens,
    tokenize: (text, options) => vocab.tokenize(text, options),
    tokenBytes: (token, special) => vocab.tokenBytes(token, special),
    isEndOfGeneration: (token) => vocab.isEndOfGeneration(token),
    chatTemplate: vocab.chatTemplate,
    bosText: vocab.addsBos ? (vocab.bos?.text ?? "") : "",
    eosText: vocab.eos?.text ?? "",
  };
}
