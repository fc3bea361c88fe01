import { defineCommand } from "../config/command.ts";
import { extractHead } from "../gguf/edit.ts";
import { describeEdit, editOptions, runEdit } from "./edit-command.ts";

export const command = defineCommand({
  name: "extract",
  summary: "the MTP head of a GGUF file as a draft file of its own",
  details: "The draft file also holds embeddings, final norm and output, so that llama.cpp loads it with --spec-draft-model.",
  options: editOptions,
  positionals: ["input"],
  async run(options, io) {
    const result = await runEdit("extract", options, io, extractHead);
    io.out(io.json ? JSON.stringify(result) : describeEdit(result));
  },
});
