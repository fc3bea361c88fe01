import * as z from "zod";
import { defineCommand } from "../config/command.ts";
import { forceOverwrite } from "../config/common.ts";
import { writeDraftVocab } from "../llama/draft-vocab.ts";
import { openDataset } from "../train/dataset.ts";
import { countWritten, mostFrequent, shareOf } from "../train/token-counts.ts";
import { usageError } from "../util/errors.ts";
import { refuseOverwrite } from "../util/files.ts";
import { formatInteger, formatPercent } from "../util/format.ts";

const options = z.strictObject({
  capture: z.string().meta({ description: "folder that foretoken capture has written" }),
  output: z.string().meta({ short: "o", description: "the file to write", placeholder: "FILE" }),
  tokens: z.int().min(1).default(32_768).meta({ short: "n", description: "how many", placeholder: "N" }),
  force: forceOverwrite,
});

export const command = defineCommand({
  name: "draft-vocab",
  summary: "the tokens that a model writes most, for drafts by a shorter LM head",
  details:
    "serve --spec-draft-vocab FILE drafts only these: the head's LM head is the dearest part of a draft where the vocabulary is large, and a token that is left out costs one rejected draft. The text stays the target's. Tokens are counted in what the target wrote itself; the share is that of documents which were not counted.",
  options,
  positionals: ["capture"],
  async run(o, io) {
    refuseOverwrite(o.output, o.force);
    const dataset = openDataset(o.capture);
    const { nVocab } = dataset.manifest;
    dataset.close();
    if (o.tokens >= nVocab) throw usageError(`--tokens ${o.tokens}: the vocabulary has ${nVocab}; take fewer`);
    // Tokens are in memory; hidden rows would be read from disk.
    const counts = countWritten(dataset.training, nVocab);
    const heldOut = countWritten(dataset.heldOut, nVocab);
    const nCounted = counts.reduce((sum, count) => sum + count, 0);
    if (nCounted === 0) throw usageError(`${o.capture} holds no text that the model wrote; capture with a longer --max-new`);
    const tokens = mostFrequent(counts, o.tokens);
    const heldOutShare = shareOf(tokens, heldOut) ?? null;
    await writeDraftVocab(o.output, { nVocab, nCounted, heldOutShare, tokens: [...tokens] });
    const nSeen = tokens.findIndex((token) => counts[token] === 0);
    const result = { output: o.output, nTokens: tokens.length, nSeen: nSeen < 0 ? tokens.length : nSeen, nVocab, nCounted, share: shareOf(tokens, counts) ?? 0, heldOutShare };
    const held = heldOutShare === null ? "no held-out documents to check" : `${formatPercent(heldOutShare)} of held-out ones`;
    io.out(io.json ? JSON.stringify(result) : `${o.output}: ${formatInteger(result.nTokens)} of ${formatInteger(nVocab)} tokens (${formatInteger(result.nSeen)} seen among ${formatInteger(nCounted)} written ones), ${formatPercent(result.share)} of those counted, ${held}`);
  },
});
