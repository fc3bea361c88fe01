import * as fc from "fast-check";
import { afterAll, expect, test } from "vitest";
import { GgmlDevice, ggmlType } from "../../src/llama/ggml.ts";
import { bindGraphOps } from "../../src/llama/graph-surgery.ts";
import { loadLlama } from "../../src/llama/library.ts";
import { isStaged, manyParts, stagedArgmax } from "../../src/llama/staged-argmax.ts";

const llama = loadLlama({ device: "cpu" });
const device = new GgmlDevice(llama, llama.devices.find(({ type }) => type === "cpu") ?? expect.fail("no CPU"), 1);
const { ggml } = device;
const ops = bindGraphOps(llama) ?? expect.fail("unknown layout");
afterAll(() => device.close());

/** In stages, and by ggml's own in one. */
function placesOf(rows: readonly (readonly number[])[], nParts: number): { readonly staged: number[]; readonly plain: number[] } {
  const n = rows[0]?.length ?? 0;
  const context = device.newContext(1 << 16);
  const logits = ggml.ggml_new_tensor_2d(context, ggmlType.F32, n, rows.length);
  const best = stagedArgmax(ops, context, logits, n, rows.length, nParts);
  const graph = ggml.ggml_new_graph_custom(context, 64, false);
  const plain = ggml.ggml_argmax(context, logits);
  for (const output of [best, plain]) ggml.ggml_build_forward_expand(graph, output);
  const buffer = device.allocate(context);
  device.set(logits, Float32Array.from(rows.flat()));
  device.compute(graph);
  const [staged = [], own = []] = [best, plain].map((output) => [...device.get(output, new Int32Array(rows.length))]);
  ggml.ggml_backend_buffer_free(buffer);
  ggml.ggml_free(context);
  return { staged, plain: own };
}

test("in stages the greatest of a row is where it is in one, also of equals", () => {
  const shape = fc.record({ nParts: fc.integer({ min: 2, max: 9 }), length: fc.integer({ min: 1, max: 12 }), nRows: fc.integer({ min: 1, max: 5 }) });
  const cases = shape.chain(({ nParts, length, nRows }) =>
    fc.record({ nParts: fc.constant(nParts), rows: fc.array(fc.array(fc.integer({ min: -3, max: 3 }), { minLength: nParts * length, maxLength: nParts * length }), { minLength: nRows, maxLength: nRows }) }),
  );
  fc.assert(fc.property(cases, ({ nParts, rows }) => {
    const { staged, plain } = placesOf(rows, nParts);
    expect(staged).toEqual(plain);
    staged.forEach((place, i) => expect(rows[i]?.[place]).toBe(Math.max(...(rows[i] as number[]))));
  }), { numRuns: 60 });
});

test("a place far back in a large vocabulary is exact", () => {
  const n = 248_320;
  const rows = [0, 5, 99_999, 248_319].map((place) => Array.from({ length: n }, (_, i) => (i === place ? 2 : Math.sin(i))));
  expect(placesOf(rows, manyParts).staged).toEqual([0, 5, 99_999, 248_319]);
});

test("only large vocabularies are cut, into parts of one size", () => {
  expect([isStaged(248_320, 64), isStaged(248_321, 64), isStaged(65_536, 64), isStaged(32_768, 64), isStaged(248_320, 1), isStaged((1 << 24) + 64, 64)]).toEqual([true, false, true, false, false, false]);
});
