/** Tokens that drafts are chosen among, as a file: `foretoken draft-vocab` writes it, `serve --spec-draft-vocab` reads it. */
import * as fs from "node:fs";
import * as z from "zod";
import { UserError, errorMessage } from "../util/errors.ts";
import { writeTextAtomic } from "../util/files.ts";

const schema = z
  .strictObject({
    format: z.literal("foretoken-draft-vocab-1"),
    nVocab: z.int().min(1),
    /** Tokens that were counted, and the share of tokens of other documents that the list has; null where there were none. */
    nCounted: z.int().min(0),
    heldOutShare: z.number().nullable(),
    tokens: z.array(z.int().min(0)).min(1),
  })
  .refine(({ tokens, nVocab }) => tokens.every((token) => token < nVocab) && new Set(tokens).size === tokens.length, { path: ["tokens"], message: "ids below nVocab, each once" });

export type DraftVocabFile = z.infer<typeof schema>;

export interface DraftVocab {
  readonly file: string;
  /** Of the model that it is for. */
  readonly nVocab: number;
  readonly tokens: Int32Array;
}

/** Whether `--spec-draft-vocab` names a file. */
export const isVocabFile = (text: string): boolean => !/^\d+$/.test(text);

/** What `--spec-draft-vocab` says: how many of the first tokens, 0 for all, or the tokens of a file. @throws {UserError} */
export function draftVocabOf(text: string): number | DraftVocab {
  return isVocabFile(text) ? readDraftVocab(text) : Number(text);
}

/** @throws {UserError} when the file cannot be read or is none of these. */
export function readDraftVocab(file: string): DraftVocab {
  let value: unknown;
  try {
    value = JSON.parse(fs.readFileSync(file, "utf8"));
  } catch (error) {
    throw new UserError(`--spec-draft-vocab ${file}: ${errorMessage(error)}; give a number of tokens, or a file of foretoken draft-vocab`);
  }
  const parsed = schema.safeParse(value);
  if (!parsed.success) throw new UserError(`--spec-draft-vocab ${file}: ${parsed.error.issues[0]?.path.join(".")}: ${parsed.error.issues[0]?.message}; write it with foretoken draft-vocab`);
  return { file, nVocab: parsed.data.nVocab, tokens: Int32Array.from(parsed.data.tokens) };
}

export async function writeDraftVocab(file: string, vocab: Omit<DraftVocabFile, "format">): Promise<void> {
  await writeTextAtomic(file, `${JSON.stringify({ format: "foretoken-draft-vocab-1", ...vocab } satisfies DraftVocabFile)}\n`);
}
