import fc from "fast-check";
import { expect, test } from "vitest";
import { maxSlots, orderByExpert } from "../../src/train/expert-gradients.ts";

const routing = fc.integer({ min: 1, max: 12 }).chain((nExpert) =>
  fc.record({ nExpert: fc.constant(nExpert), depths: fc.array(fc.array(fc.nat(nExpert - 1), { minLength: 1, maxLength: 40 }), { minLength: 1, maxLength: 3 }).filter((d) => d.every((x) => x.length === d[0]?.length)) }),
);

test("every routed row has one slot, in its expert's slice, and slices are aligned and do not overlap", () => {
  fc.assert(
    fc.property(routing, ({ nExpert, depths }) => {
      const ids = depths.map((d) => Int32Array.from(d));
      const experts = depths.flat();
      const slots = new Int32Array(maxSlots(experts.length, nExpert));
      const { offsets, counts } = orderByExpert(ids, nExpert, slots);
      expect([...slots].filter((s) => s >= 0).toSorted((a, b) => a - b)).toEqual(experts.map((_, i) => i));
      let end = 0;
      for (let e = 0; e < nExpert; e++) {
        const [offset, count] = [offsets[e] as number, counts[e] as number];
        expect(offset).toBe(end);
        expect(offset % 32).toBe(0);
        end = offset + count;
        const rows = [...slots.subarray(offset, end)].filter((s) => s >= 0);
        expect(rows).toEqual(experts.flatMap((x, i) => (x === e ? [i] : [])));
      }
      expect(end).toBeLessThanOrEqual(slots.length);
    }),
  );
});
