import { expect, test } from "vitest";
import { HangWatch } from "../../src/server/hang-watch.ts";

test("silence is a hang, a sign is not, and time in which nothing ran does not count", () => {
  const hangs: number[] = [];
  const watch = new HangWatch(1e9, (silentMs) => hangs.push(silentMs));
  const quarter = 2.5e8;
  // Whole numbers: differences of large times with fractions are not exact.
  const start = Math.ceil(performance.now());
  watch.sign(start);
  for (let i = 1; i <= 3; i++) watch.turn(start + i * quarter);
  expect(hangs).toEqual([]);
  watch.sign(start + 3 * quarter);
  for (let i = 4; i <= 6; i++) watch.turn(start + i * quarter);
  expect(hangs).toEqual([]);
  watch.turn(start + 7 * quarter);
  expect(hangs.map(Math.round)).toEqual([1e9]);
  watch.sign(start + 7 * quarter);
  watch.turn(start + 20 * quarter);
  expect(hangs).toHaveLength(1);
  for (let i = 21; i <= 24; i++) watch.turn(start + i * quarter);
  expect(hangs).toHaveLength(2);
  watch.stop();
});
