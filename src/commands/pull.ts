import * as z from "zod";
import { defineCommand } from "../config/command.ts";
import { pullFiles } from "../hf/pull.ts";
import { formatBytes } from "../util/format.ts";
import { createProgress } from "../util/progress.ts";

export const command = defineCommand({
  name: "pull",
  summary: "files of a model repository, into the cache that Hugging Face tools share",
  details: "MODEL is owner/name, owner/name:FILE, or owner/name:PATTERN with * and ?. Goes on where it stopped. The token comes from HF_TOKEN or hf auth login, the hub from HF_ENDPOINT, the cache from HF_HOME or HF_HUB_CACHE.",
  options: z.strictObject({
    model: z.string().meta({ description: "owner/name[:file or pattern]" }),
    revision: z.string().default("main").meta({ description: "branch, tag or commit" }),
  }),
  positionals: ["model"],
  async run({ model, revision }, io) {
    const [repo = "", pattern] = model.split(/:(.*)/s);
    const progress = createProgress("pull", { format: formatBytes });
    const result = await pullFiles({
      repo,
      pattern,
      revision,
      signal: io.signal,
      onBytes(nBytes, totalBytes, file) {
        progress.setTotal(totalBytes);
        progress.update(nBytes, file);
      },
    });
    progress.end();
    if (io.json) io.out(JSON.stringify(result));
    else for (const file of result.files) io.out(`${file.file}  ${formatBytes(file.sizeBytes)}${file.wasCached ? " (cached)" : ""}`);
  },
});
