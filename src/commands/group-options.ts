import type { EngineOptions } from "../config/engine-options.ts";

/** Slots, cells and memory of one of several groups: equal shares, the first groups get what is left over. */
export function groupOptions(all: EngineOptions, nGroups: number, group: number): EngineOptions {
  const parallel = Math.floor(all.parallel / nGroups) + (group < all.parallel % nGroups ? 1 : 0);
  const share = (n: number): number => Math.floor((n * parallel) / all.parallel);
  return {
    ...all,
    parallel,
    ctxSize: share(all.ctxSize),
    cacheRam: all.cacheRam > 0 ? Math.max(1, share(all.cacheRam)) : 0,
    ...(all.kvPin === undefined ? {} : { kvPin: share(all.kvPin) }),
    // A request that needs one must find one wherever it lands.
    ...(all.hostSlots === undefined ? {} : { hostSlots: Math.ceil(all.hostSlots / nGroups) }),
    ...(all.trace === undefined ? {} : { trace: `${all.trace}.${group}` }),
    ...(all.seed === 0 ? {} : { seed: all.seed + group }),
  };
}
