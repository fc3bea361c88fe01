import { expect, test } from "vitest";
import { sharedMatrixMemory, SharedMatrices } from "../../src/llama/shared-matrices.ts";

const owned = (matrix: bigint): { matrix: bigint; context: bigint; buffer: bigint } => ({ matrix, context: matrix + 1n, buffer: matrix + 2n });

test("what one group gives the others find, by its kind and all of its parts in their order", () => {
  const memory = sharedMatrixMemory();
  const [first, second] = [new SharedMatrices(memory), new SharedMatrices(memory)];
  const high = 0x7fff_1234_5678;
  expect(second.find(1, [high])).toBeUndefined();
  expect([first.give(1, [high], owned(0x7ffe_0000_0010n)), first.give(4, [high, 16, 24], owned(32n))]).toEqual([true, true]);
  expect([second.find(1, [high]), second.find(4, [high, 16, 24])]).toEqual([0x7ffe_0000_0010n, 32n]);
  // Another order, the same sum, fewer and more.
  for (const [kind, parts] of [[2, [high]], [4, [high]], [4, [high, 24, 16]], [4, [high, 8, 32]], [4, [high, 40]], [4, [high, 16, 24, 0]]] as const) expect(second.find(kind, parts)).toBeUndefined();
  expect(second.takeAll()).toEqual([owned(0x7ffe_0000_0010n), owned(32n)]);
  expect([first.find(1, [high]), first.takeAll()]).toEqual([undefined, []]);
});

test("where there is no room left a matrix stays its maker's", () => {
  const shared = new SharedMatrices(sharedMatrixMemory());
  let n = 0;
  while (n < 20_000 && shared.give(1, [n], owned(BigInt(n + 1)))) n++;
  // Six numbers each, and how many there are.
  expect(n).toBe(Math.floor((65_536 - 1) / 6));
  expect([shared.find(1, [n - 1]), shared.find(1, [n])]).toEqual([BigInt(n), undefined]);
});
