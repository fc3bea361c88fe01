import fc from "fast-check";
import { expect, test } from "vitest";
import { encodeFloats } from "../../src/hf/elements.ts";
import { openGgmlDevice } from "../../src/llama/ggml.ts";
import type { DatasetDocument } from "../../src/train/dataset.ts";
import { fitRidge, solveSymmetric } from "../../src/train/ridge.ts";
import { randomValues } from "../../src/train/self-test.ts";
import { UserError } from "../../src/util/errors.ts";
import { Rng } from "../../src/util/rng.ts";

test("a positive definite system is solved", () => {
  fc.assert(
    fc.property(fc.integer({ min: 1, max: 12 }), fc.integer({ min: 1, max: 4 }), fc.nat(1000), (n, k, seed) => {
      const rng = new Rng(seed);
      const root = randomValues(rng, n * n, 1);
      const a = new Float64Array(n * n);
      for (let i = 0; i < n; i++) for (let j = 0; j < n; j++) for (let q = 0; q < n; q++) a[i * n + j] = (a[i * n + j] as number) + (root[q * n + i] as number) * (root[q * n + j] as number) + (i === j && q === 0 ? 0.1 : 0);
      const b = Float64Array.from(randomValues(rng, n * k, 1));
      const x = solveSymmetric(a.slice(), b, n, k);
      for (let i = 0; i < n; i++)
        for (let c = 0; c < k; c++) {
          let sum = 0;
          for (let j = 0; j < n; j++) sum += (a[i * n + j] as number) * (x[j * k + c] as number);
          expect(sum).toBeCloseTo(b[i * k + c] as number, 6);
        }
    }),
  );
  expect(() => solveSymmetric(new Float64Array([1, 2, 2, 1]), new Float64Array(2), 2, 1)).toThrow(UserError);
});

test("rows that a linear map made give that map back", () => {
  const d = 8;
  const nVocab = 32;
  const rng = new Rng(4);
  const embedding = randomValues(rng, d * nVocab, 1);
  const map = randomValues(rng, 2 * d * d, 0.5);
  const rms = (x: Float32Array): Float32Array => x.map((v) => v / Math.sqrt(x.reduce((s, y) => s + y * y, 0) / d + 1e-6));
  const documents = Array.from({ length: 12 }, (): DatasetDocument => {
    const n = 40;
    const tokens = Int32Array.from({ length: n }, () => rng.below(nVocab));
    const hidden = Float32Array.from(randomValues(rng, n * d, 1), (x) => Math.round(x * 64) / 64);
    const inputs = new Float32Array(n * d);
    for (let t = 1; t < n; t++) {
      const x = [...rms(embedding.subarray((tokens[t] as number) * d, ((tokens[t] as number) + 1) * d)), ...rms(hidden.subarray((t - 1) * d, t * d))];
      for (let o = 0; o < d; o++) inputs[t * d + o] = x.reduce((sum, v, i) => sum + v * (map[o * 2 * d + i] as number), 0);
    }
    const f16 = (values: Float32Array): Uint16Array => {
      const out = new Uint16Array(values.length);
      encodeFloats(values, "F16", new Uint8Array(out.buffer));
      return out;
    };
    const [h, l] = [f16(hidden), f16(inputs)];
    return { tokens, nPrompt: 4, nEmbd: d, half: "chat", isHeldOut: false, hasLayerInput: true, rows: (s, c) => h.subarray(s * d, (s + c) * d), layerInput: (s, c) => l.subarray(s * d, (s + c) * d) };
  });
  const device = openGgmlDevice({ device: "cpu" });
  const { weights, nRows, r2 } = fitRidge(device, documents, embedding, { nEmbd: d, normEps: 1e-6, maxRows: 400, lambda: 1e-8 });
  expect(nRows).toBe(400);
  expect(r2).toBeGreaterThan(0.999);
  weights.forEach((w, i) => expect(w).toBeCloseTo(map[i] as number, 2));
  expect(() => fitRidge(device, documents.map((x) => ({ ...x, hasLayerInput: false })), embedding, { nEmbd: d, normEps: 1e-6, maxRows: 400, lambda: 1e-3 })).toThrow(/kept layer inputs of 0 rows/);
  device.close();
});
