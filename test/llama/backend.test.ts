import { createBackend } from "../../src/llama/backend.ts";
import { backendContract } from "../backend.contract.ts";
import { tinyHead, tinyTrunk, tinyWithHead } from "./tiny-model.ts";

const shared = { nSlots: 3, ctxSize: 768, batchSize: 256, nMax: 3, threads: 1, device: "cpu" } as const;

backendContract("libllama, head in the file", async () => createBackend({ ...shared, modelPath: await tinyWithHead(), useHead: true }), { nRollback: 3 });

backendContract(
  "libllama, head in a file of its own, own KV cells for each sequence",
  async () => createBackend({ ...shared, modelPath: await tinyTrunk(), headPaths: [await tinyHead()], kvUnified: false }),
  { nRollback: 3 },
);

backendContract(
  "libllama, chains on the device: greedy for the target, top-k for the head",
  async () => createBackend({ ...shared, modelPath: await tinyWithHead(), useHead: true, targetSampling: "device-greedy", draftSampling: "device-top-k" }),
  { nRollback: 3 },
);
