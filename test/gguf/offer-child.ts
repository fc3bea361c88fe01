/** Child of the mutation campaign: gives files to libllama one after the other and says what it made of each. */
import { loadLlama } from "../../src/llama/library.ts";
import { loadModel } from "../../src/llama/model.ts";
import { errorMessage } from "../../src/util/errors.ts";
import { classOf } from "./campaign.ts";

export interface OfferAnswer {
  readonly verdict: string;
}

/** Stands for a header that was read, so that libllama judges the file alone. */
const noFacts = { path: "", architecture: "", nEmbd: 0, nVocab: 0, nTrunkLayers: 0, nMtpLayers: 0, nMtpPresent: 0, hasTrunk: false, fileBytes: 0 };

process.once("message", (files) => {
  const llama = loadLlama();
  for (const file of files as string[]) {
    let verdict = "loads";
    try {
      loadModel(llama, file, { loadMtp: true, device: "cpu", facts: noFacts }).close();
    } catch (error) {
      verdict = `refuses: ${classOf(errorMessage(error).replace(/^libllama .*? cannot load \S+: /, "").replace(/; "foretoken inspect".*$/s, ""))}`;
    }
    process.send?.({ verdict });
  }
  process.disconnect();
});
