import { defineCommand } from "../config/command.ts";
import { stripHead } from "../gguf/edit.ts";
import { describeEdit, editOptions, runEdit } from "./edit-command.ts";

export const command = defineCommand({
  name: "strip",
  summary: "a GGUF file without its MTP head: the inverse of graft",
  options: editOptions,
  positionals: ["input"],
  async run(options, io) {
    const result = await runEdit("strip", options, io, stripHead);
    io.out(io.json ? JSON.stringify(result) : describeEdit(result));
  },
});
