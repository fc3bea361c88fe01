/** Tokens that drafts are chosen among: how they are counted, and the file that holds them. */
import * as fs from "node:fs";
import * as os from "node:os";
import * as path from "node:path";
import * as fc from "fast-check";
import { afterAll, expect, test } from "vitest";
import { draftVocabOf, writeDraftVocab } from "../../src/llama/draft-vocab.ts";
import { countWritten, mostFrequent, shareOf } from "../../src/train/token-counts.ts";

const folder = fs.mkdtempSync(path.join(os.tmpdir(), "foretoken-draft-vocab-"));
afterAll(() => fs.rmSync(folder, { recursive: true }));

test("what the model wrote is counted, what it was given is not; of equals the lower comes first", () => {
  const counts = countWritten([{ tokens: Int32Array.of(7, 7, 7, 3, 5), nPrompt: 3 }, { tokens: Int32Array.of(5, 2), nPrompt: 0 }], 9);
  expect([...counts]).toEqual([0, 0, 1, 1, 0, 2, 0, 0, 0]);
  expect([...mostFrequent(counts, 4)]).toEqual([5, 2, 3, 0]);
  expect(shareOf(mostFrequent(counts, 2), counts)).toBe(0.75);
  expect(shareOf(Int32Array.of(1), new Float64Array(9))).toBeUndefined();
});

test("no other choice of as many tokens has a larger share", () => {
  fc.assert(
    fc.property(fc.array(fc.integer({ min: 0, max: 19 }), { minLength: 1, maxLength: 60 }), fc.uniqueArray(fc.integer({ min: 0, max: 19 }), { minLength: 1, maxLength: 19 }), (written, other) => {
      const counts = countWritten([{ tokens: Int32Array.from(written), nPrompt: 0 }], 20);
      const best = shareOf(mostFrequent(counts, other.length), counts) as number;
      expect(best).toBeGreaterThanOrEqual((shareOf(Int32Array.from(other), counts) as number) - 1e-12);
    }),
  );
});

test("the file is read as it was written; what is none is told with what to do", async () => {
  const file = path.join(folder, "v.json");
  await writeDraftVocab(file, { nVocab: 100, nCounted: 5, heldOutShare: null, tokens: [4, 99, 0] });
  expect(draftVocabOf(file)).toEqual({ file, nVocab: 100, tokens: Int32Array.of(4, 99, 0) });
  expect(draftVocabOf("32768")).toBe(32_768);
  const broken = (text: string): (() => unknown) => {
    fs.writeFileSync(file, text);
    return () => draftVocabOf(file);
  };
  expect(broken("{")).toThrow("give a number of tokens, or a file of foretoken draft-vocab");
  const good = { format: "foretoken-draft-vocab-1", nVocab: 100, nCounted: 5, heldOutShare: 0.5, tokens: [1, 2] };
  expect(broken(JSON.stringify({ ...good, tokens: [1, 100] }))).toThrow("ids below nVocab, each once");
  expect(broken(JSON.stringify({ ...good, tokens: [1, 1] }))).toThrow("each once");
  expect(broken(JSON.stringify({ ...good, format: "x" }))).toThrow("write it with foretoken draft-vocab");
  expect(() => draftVocabOf(path.join(folder, "missing"))).toThrow("ENOENT");
});
