import * as z from "zod";
import { llamaDir } from "../config/common.ts";
import { defineCommand } from "../config/command.ts";

export const command = defineCommand({
  name: "doctor",
  summary: "what this machine can run, and what to install for more",
  options: z.strictObject({ llamaDir }),
  async run(_options, io) {
    io.out(`${process.platform}-${process.arch}, Node ${process.versions.node}`);
  },
});
