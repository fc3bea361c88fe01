/** Memory of a serving profile before it is loaded, from its `serve` flags. */
import { parseArguments } from "../config/options.ts";
import { serveOptions } from "../config/server-options.ts";
import { draftVocabOf } from "../llama/draft-vocab.ts";
import { readModelFacts } from "../llama/head-check.ts";
import { besideBytes, estimateMemory } from "../llama/memory.ts";
import { UserError } from "../util/errors.ts";
import type { Profile, Recipe } from "./recipe.ts";

/**
 * Weights, what is made beside them, caches, states and compute buffers of target and heads, in bytes. Undefined for another program's server and
 * for files that are not there yet. @throws {UserError} for flags that `serve` does not have.
 */
export async function estimateProfile(recipe: Recipe, profile: Profile): Promise<number | undefined> {
  if (profile.serve === undefined) return undefined;
  const { options } = parseArguments(serveOptions, [...recipe.serve, ...profile.serve]);
  const isSpeculative = options.specType === "draft-mtp" && options.specDraftNMax > 0;
  try {
    const headPaths = isSpeculative ? options.specDraftModel : [];
    const estimate = await estimateMemory({
      modelPath: options.model,
      headPaths,
      useHead: isSpeculative,
      nSlots: options.parallel,
      ctxSize: options.ctxSize,
      batchSize: options.batchSize,
      ubatchSize: options.ubatchSize,
      threads: 1,
      gpuLayers: options.gpuLayers,
      ...(options.device === undefined ? {} : { device: options.device }),
      flashAttn: options.flashAttn,
      cacheTypeK: options.cacheTypeK,
      cacheTypeV: options.cacheTypeV,
      kvUnified: options.kvUnified,
      nMax: isSpeculative ? options.specDraftNMax : 0,
      plainTarget: isSpeculative && options.specGate === "adaptive" && options.specPlainContext,
      targetSampling: "host",
      draftSampling: "host",
      nHostSlots: options.hostSlots ?? 0,
      llamaDir: options.llamaDir,
    });
    const vocab = draftVocabOf(options.specDraftVocab);
    const lmHeads = headPaths.length > 0 ? headPaths : [options.model];
    // None of "auto" takes memory.
    const edits = options.graphEdits === "auto" ? [] : options.graphEdits;
    const { shared, each } = besideBytes(readModelFacts(options.model), isSpeculative ? lmHeads : [], typeof vocab === "number" ? vocab : vocab.tokens.length, edits);
    return estimate.totalBytes + shared + options.decodeGroups * each;
  } catch (error) {
    if (error instanceof UserError) return undefined;
    throw error;
  }
}
