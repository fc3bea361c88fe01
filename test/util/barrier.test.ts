import { expect, test } from "vitest";
import { Barrier, barrierMemory, inFlux } from "../../src/util/barrier.ts";
import { startWorker } from "../../src/util/start-worker.ts";

const size = 3;

test("threads take turns in order, measure at the same meetings, and share what the first one made", async () => {
  const memory = barrierMemory(size);
  const results = await Promise.all(
    // Started backwards: order must come from the barrier.
    Array.from({ length: size }, (_, i) => size - 1 - i).map(
      (index) =>
        new Promise<unknown>((resolve, reject) => {
          const worker = startWorker(new URL("./barrier-worker.ts", import.meta.url), { workerData: { memory, index } });
          worker.on("message", resolve);
          worker.on("error", reject);
        }),
    ),
  );
  expect(results).toEqual([2, 1, 0].map((place) => ({ place, made: { by: 0, list: [1, 2.5] }, meetings: [size, 2 * size, 3 * size], alike: [true, false, place !== 1], most: 2, isAloneAtEnd: true })));
});

test("work in flux is unlike any other's, but for what it is compared by itself, and hides nobody's number", () => {
  const memory = barrierMemory(3);
  const [a, b, c] = [0, 1, 2].map((index) => new Barrier(memory, index)) as [Barrier, Barrier, Barrier];
  a.work = 1 + inFlux;
  b.work = 3;
  c.work = 1;
  expect([a.most, b.most, c.most]).toEqual([3, 1, 3]);
  expect([a.isAlike, c.isAlike]).toEqual([false, false]);
  b.work = 1;
  expect([a.isAlike, b.isAlike, c.isAlike]).toEqual([true, false, false]);
  a.work = 1;
  expect([a.isAlike, b.isAlike, c.isAlike]).toEqual([true, true, true]);
});
