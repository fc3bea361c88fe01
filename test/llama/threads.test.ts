import * as fc from "fast-check";
import { describe, expect, test } from "vitest";
import { chooseThreads, parseQuota, threadsFor } from "../../src/llama/threads.ts";

const idle = { nCpus: 8, nCores: 8, quota: Infinity, load: 0 };

describe("thread choice", () => {
  test.each([
    ["an idle machine gives its cores but one", idle, 7],
    ["hyperthreads do not count", { ...idle, nCores: 4 }, 3],
    ["a container's quota counts, rounded down", { ...idle, quota: 2.5 }, 1],
    ["an affinity mask below the cores counts", { ...idle, nCpus: 3 }, 2],
    ["unknown cores: the CPUs", { ...idle, nCores: undefined }, 7],
    ["busy neighbours are left their cores", { ...idle, load: 3.2 }, 4],
    ["on four cores half a busy neighbour takes a core", { ...idle, nCores: 4, load: 0.5 }, 2],
    ["a little noise does not", { ...idle, nCores: 4, load: 0.2 }, 3],
    ["two cores give one: the server and its client need the other", { ...idle, nCpus: 2, nCores: 2 }, 1],
    ["an overloaded machine still gives one", { ...idle, load: 90 }, 1],
  ])("%s", (_, machine, expected) => expect(threadsFor(machine)).toBe(expected));

  test("work that nobody talks to reserves nothing", () => {
    expect(threadsFor(idle, 0)).toBe(8);
  });

  test("never none, never more than the cores, and never more for more load", () => {
    fc.assert(
      fc.property(fc.integer({ min: 1, max: 256 }), fc.option(fc.integer({ min: 1, max: 256 }), { nil: undefined }), fc.double({ min: 0.1, max: 300, noNaN: true }), fc.double({ min: 0, max: 300, noNaN: true }), (nCpus, nCores, quota, load) => {
        const n = threadsFor({ nCpus, nCores, quota, load });
        expect(n).toBeGreaterThanOrEqual(1);
        expect(n).toBeLessThanOrEqual(Math.min(nCpus, nCores ?? nCpus));
        expect(threadsFor({ nCpus, nCores, quota, load: load + 1 })).toBeLessThanOrEqual(n);
      }),
    );
  });

  test("reads cgroup limits of both versions", () => {
    expect(parseQuota("200000 100000\n")).toBe(2);
    expect(parseQuota("max 100000\n")).toBe(Infinity);
    expect(parseQuota(undefined, "150000\n", "100000\n")).toBe(1.5);
    expect(parseQuota(undefined, "-1\n", "100000\n")).toBe(Infinity);
    expect(parseQuota(undefined)).toBe(Infinity);
  });

  test("a requested number is taken as it is", () => {
    expect(chooseThreads(7)).toBe(7);
    expect(chooseThreads(0)).toBeGreaterThanOrEqual(1);
  });
});
