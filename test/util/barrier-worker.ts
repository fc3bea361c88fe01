import { parentPort, workerData } from "node:worker_threads";
import { Barrier, type BarrierMemory } from "../../src/util/barrier.ts";

const { memory, index } = workerData as { memory: BarrierMemory; index: number };
const barrier = new Barrier(memory, index);
const place = barrier.inTurn(() => Atomics.add(new Int32Array(memory.board, 2048, 1), 0, 1));
const made = barrier.fromFirst(() => ({ by: index, list: [1, 2.5] }));
// Everybody counts, then looks: nobody may look before all have counted.
const counter = new Int32Array(memory.board, 1024, 1);
const meetings = [0, 1, 2].map(() => {
  barrier.meet();
  Atomics.add(counter, 0, 1);
  barrier.meet();
  return Atomics.load(counter, 0);
});
const alike: boolean[] = [];
// All at the same; one at another; that one at nothing.
for (const kind of [2, index === 1 ? 3 : 2, index === 1 ? 0 : 2]) {
  barrier.work = kind;
  barrier.meet();
  alike.push(barrier.isAlike);
  barrier.meet();
}
const { most } = barrier;
barrier.meet();
barrier.work = 0;
barrier.meet();
parentPort?.postMessage({ place, made, meetings, alike, most, isAloneAtEnd: barrier.most === 0 }, []);
