/** Where the package's own files are, from source and from the build alike. */
import { createRequire } from "node:module";
import * as path from "node:path";

const require = createRequire(import.meta.url);

export const packageRoot: string = path.dirname(require.resolve("foretoken/package.json"));

export const packageVersion: string = (require("foretoken/package.json") as { version: string }).version;

/** The embedded model: a Hugging Face checkpoint. */
export const embeddedCheckpoint: string = path.join(packageRoot, "models", "tiny-ornith");
