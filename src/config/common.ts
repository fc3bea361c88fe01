/** Option fields that several verbs share, so that a flag means the same everywhere. */
import * as z from "zod";

export const llamaDir = z
  .string()
  .optional()
  .meta({ description: "folder of the llama.cpp libraries (libllama*, libggml*); default: the npm package of this platform", placeholder: "DIR", env: "FORETOKEN_LLAMA_DIR" });

export const threads = z.int().min(0).max(512).default(0).meta({ short: "t", description: "CPU threads; 0 measures a safe number", placeholder: "N" });

export const forceOverwrite = z.boolean().default(false).meta({ description: "replace an output file that exists" });
