// Writes .oxlintrc.json: the rules, and for each folder of src the folders it may import (docs/architecture.md, Layers).
import { writeFileSync } from "node:fs";

const layers = {
  util: [],
  config: ["util"],
  gguf: ["util"],
  hf: ["util", "gguf"],
  engine: ["util"],
  llama: ["util", "config", "engine", "gguf"],
  server: ["util", "config", "engine"],
  train: ["util", "config", "engine", "llama", "gguf", "hf"],
  bench: ["util", "config"],
  probe: ["util", "config", "bench"],
  report: ["util", "config"],
  lab: ["util", "config", "gguf", "hf", "engine", "llama", "server", "train", "bench", "probe", "report"],
  commands: ["util", "config", "gguf", "hf", "engine", "llama", "server", "train", "bench", "probe", "report", "lab"],
};

const onlyLlamaUsesKoffi = { name: "koffi", message: "only src/llama/ talks to native code" };
const restricted = (folder, allowed) => ({
  files: [`src/${folder}/**/*.ts`],
  rules: {
    "no-restricted-imports": [
      "error",
      {
        ...(folder === "llama" ? {} : { paths: [onlyLlamaUsesKoffi] }),
        patterns: Object.keys(layers)
          .filter((other) => other !== folder && !allowed.includes(other))
          .map((other) => ({ group: [`**/${other}/*.ts`, `**/${other}/**/*.ts`], message: `src/${folder}/ may not import src/${other}/` })),
      },
    ],
  },
});

const config = {
  $schema: "./node_modules/oxlint/configuration_schema.json",
  plugins: ["typescript", "import", "unicorn", "oxc"],
  categories: { correctness: "error", suspicious: "warn" },
  rules: {
    "import/no-cycle": "error",
    "typescript/no-floating-promises": "error",
    "typescript/no-misused-promises": "error",
    "typescript/no-explicit-any": "error",
    "typescript/switch-exhaustiveness-check": "error",
    "no-default-export": "off",
    "import/no-named-as-default-member": "off",
    "typescript/restrict-template-expressions": ["error", { "allowNumber": true, "allowArray": true, "allowBoolean": true }],
    eqeqeq: "error",
    "no-var": "error",
    "prefer-const": "error",
    "no-await-in-loop": "off",
    "no-unsafe-type-assertion": "off",
    "typescript/no-unsafe-type-assertion": "off",
    "unicorn/no-array-sort": "off",
    "no-shadow": "off",
    "import/no-unassigned-import": "off",
    "unicorn/consistent-function-scoping": "off",
    "unicorn/prefer-add-event-listener": "off",
    "no-underscore-dangle": "off",
    "unicorn/require-module-specifiers": "off",
    "typescript/no-unnecessary-type-parameters": "off",
  },
  overrides: Object.entries(layers).map(([folder, allowed]) => restricted(folder, allowed)),
  ignorePatterns: ["dist", "runs", "node_modules", "models"],
};

writeFileSync(new URL("../.oxlintrc.json", import.meta.url), `${JSON.stringify(config, null, 2)}\n`);
