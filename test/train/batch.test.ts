import fc from "fast-check";
import { expect, test } from "vitest";
import { createBatch, fillBatch, type Window } from "../../src/train/batch.ts";
import { WindowStream, type HiddenRows } from "../../src/train/dataset.ts";

/** Hidden row t of document i is [i + 1, t + 1]; token t is 100 i + t. */
function documentOf(i: number, nTokens: number, nPrompt = 0): HiddenRows {
  return {
    tokens: Int32Array.from({ length: nTokens }, (_, t) => 100 * i + t),
    nPrompt,
    nEmbd: 2,
    rows: (start, n) => Uint16Array.from({ length: 2 * n }, (_, j) => (j % 2 === 0 ? i + 1 : start + Math.floor(j / 2) + 1)),
  };
}

const setting = fc.record({ lengths: fc.array(fc.integer({ min: 8, max: 60 }), { minLength: 1, maxLength: 6 }), nRows: fc.integer({ min: 16, max: 80 }), nDepths: fc.integer({ min: 1, max: 4 }), seed: fc.nat(1000) });

test("a row that counts sees its own document's tokens, hidden rows and positions at every depth", () => {
  fc.assert(
    fc.property(setting, ({ lengths, nRows, nDepths, seed }) => {
      const documents = lengths.map((n, i) => documentOf(i, n));
      const stream = new WindowStream(documents, seed);
      const batch = createBatch(nRows, nDepths, 2);
      for (let step = 0; step < 3; step++) {
        const windows: Window[] = [];
        fillBatch(batch, (n) => {
          const window = stream.next(n);
          windows.push(window);
          return window;
        }, { promptWeight: 1 });
        const rows = windows.flatMap((w) => Array.from({ length: w.length }, (_, i) => ({ document: documents.indexOf(w.document), t: w.start + i })));
        expect(rows).toHaveLength(nRows);
        const wrong: string[] = [];
        rows.forEach(({ document, t }, row) => {
          for (let depth = 0; depth < nDepths; depth++) {
            if ((batch.weights[depth * nRows + row] as number) === 0) continue;
            const at = row + depth;
            const seen = [batch.tokens[at], batch.labels[at], batch.positions[at], ...batch.teacher.subarray(2 * at, 2 * at + 2), ...batch.hidden.subarray(2 * row, 2 * row + 2)];
            const right = [100 * document + t + depth, 100 * document + t + depth + 1, t + depth, document + 1, t + depth + 1, document + 1, t];
            if (seen.join() !== right.join()) wrong.push(`row ${row} depth ${depth}: ${seen.join()} instead of ${right.join()}`);
          }
          for (let key = 0; key < nRows; key++) {
            const other = rows[key] as { document: number; t: number };
            const isSeen = batch.mask[row * nRows + key] === 0;
            if (isSeen ? other.document !== document || other.t > t : key === row) wrong.push(`row ${row} key ${key}`);
          }
        });
        expect(wrong).toEqual([]);
      }
    }),
    { numRuns: 60 },
  );
});

test("prompt rows are weighted, the first row of a document never counts, each depth has its sum", () => {
  const batch = createBatch(16, 2, 2);
  const document = documentOf(0, 17, 6);
  fillBatch(batch, () => ({ document, start: 0, length: 16 }), { promptWeight: 0.25 });
  // Row t at depth 0 predicts token t + 1: a prompt token up to t = 4.
  expect([...batch.weights.subarray(0, 7)]).toEqual([0, 0.25, 0.25, 0.25, 0.25, 1, 1]);
  expect([...batch.weights.subarray(16, 22)]).toEqual([0, 0.25, 0.25, 0.25, 1, 1]);
  expect(batch.weightSums[0]).toBeCloseTo(4 * 0.25 + 11);
  // The last row has no token after the next.
  expect(batch.weights[31]).toBe(0);
});

test("an epoch of windows covers every row but tails too short to use, and its place can be saved", () => {
  const documents = [documentOf(0, 30), documentOf(1, 90), documentOf(2, 12)];
  const stream = new WindowStream(documents, 4);
  const take = (from: WindowStream, n: number): string[] => Array.from({ length: n }, () => from.next(32)).map((w) => `${documents.indexOf(w.document)}:${w.start}+${w.length}`);
  const firstEpoch = take(stream, 5);
  expect(firstEpoch.toSorted()).toEqual(["0:0+29", "1:0+32", "1:32+32", "1:64+25", "2:0+11"]);
  const state = stream.save();
  const rest = take(stream, 20);
  const other = new WindowStream(documents, 99);
  other.restore(state);
  expect(take(other, 20)).toEqual(rest);
});
