import { expect, test } from "vitest";
import { barrierMemory } from "../../src/util/barrier.ts";
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
