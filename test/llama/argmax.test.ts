import * as fc from "fast-check";
import { expect, test } from "vitest";
import { argmax } from "../../src/llama/argmax.ts";

test("argmax is the first index of the greatest value, in any part of an array", () => {
  const values = fc.array(fc.integer({ min: -3, max: 3 }), { minLength: 1, maxLength: 40 });
  fc.assert(
    fc.property(values, fc.nat(5), (list, before) => {
      const array = Float32Array.from([...Array.from({ length: before }, () => 9), ...list, 9, 9]);
      expect(argmax(array, before, list.length)).toBe(list.indexOf(Math.max(...list)));
    }),
  );
  expect(argmax(new Float32Array(8).fill(-Infinity), 0, 8)).toBe(0);
});
