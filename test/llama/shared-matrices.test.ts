import { expect, test } from "vitest";
import { sharedMatrixMemory, SharedMatrices } from "../../src/llama/shared-matrices.ts";

test("what one group gives the others find, by its kind and all of its parts", () => {
  const memory = sharedMatrixMemory();
  const [first, second] = [new SharedMatrices(memory), new SharedMatrices(memory)];
  expect(second.find(1, [0x7fff_1234_5678])).toBeUndefined();
  expect([first.give(1, [0x7fff_1234_5678], 0x7ffe_0000_0010n), first.give(4, [0x7fff_1234_5678, 16], 32n)]).toEqual([true, true]);
  expect(second.find(1, [0x7fff_1234_5678])).toBe(0x7ffe_0000_0010n);
  expect(second.find(4, [0x7fff_1234_5678, 16])).toBe(32n);
  for (const [kind, parts] of [[2, [0x7fff_1234_5678]], [4, [0x7fff_1234_5678]], [4, [0x7fff_1234_5678, 8]], [4, [16, 0x7fff_1234_5678]]] as const) expect(second.find(kind, parts)).toBeUndefined();
  expect(new SharedMatrices(sharedMatrixMemory()).find(1, [0x7fff_1234_5678])).toBeUndefined();
});

test("where there is no place left a matrix stays its maker's", () => {
  const shared = new SharedMatrices(sharedMatrixMemory());
  let n = 0;
  while (n < 10_000 && shared.give(1, [n], BigInt(n + 1))) n++;
  expect(n).toBe(8192);
  expect([shared.find(1, [8191]), shared.find(1, [8192])]).toEqual([8192n, undefined]);
});
