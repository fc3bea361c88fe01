import { defineCommand } from "../config/command.ts";
import { repairKeys } from "../gguf/edit.ts";
import { describeEdit, editOptions, runEdit } from "./edit-command.ts";

export const command = defineCommand({
  name: "repair",
  summary: "make the keys of a GGUF file tell the truth about its MTP head",
  details: "Advertised but absent: nextn_predict_layers becomes 0 and block_count the number of trunk layers. Present but not advertised: both are set. Tensors keep their bytes.",
  options: editOptions,
  positionals: ["input"],
  async run(options, io) {
    const result = await runEdit("repair", options, io, repairKeys);
    if (result === undefined) io.out(io.json ? JSON.stringify({ input: options.input, repaired: false }) : `${options.input}: keys and tensors agree, nothing to repair, nothing written`);
    else io.out(io.json ? JSON.stringify({ ...result, repaired: true }) : `${describeEdit(result)} (was: ${result.found})`);
  },
});
