/**
 * Two equal strings among the quarter of a million of a vocabulary. Touched memory is what this costs (a page fault is
 * some microseconds), so the strings go by in the reader's window and 4 bytes a slot stay of each.
 */
import type { GgufArrayEntry } from "./header.ts";
import { readArray, walkArray } from "./entry.ts";

/** The indices of two equal strings; undefined when all differ. Little-endian files. */
export function duplicateString(entry: GgufArrayEntry): [number, number] | undefined {
  if (entry.elementType !== "string" || !hasEqualTags(entry)) return undefined;
  const seen = new Map<unknown, number>();
  for (const [i, text] of readArray(entry).entries()) {
    const other = seen.get(text);
    if (other !== undefined) return [other, i];
    seen.set(text, i);
  }
  return undefined;
}

/** One tag of 32 bits for each string, in a slot that a second hash chooses: equal ones of 250,000 are chance once in 10,000 files. */
function hasEqualTags(entry: GgufArrayEntry): boolean {
  // Open addressing with linear steps, at most half full; 0 is an empty slot.
  const tags = new Uint32Array(2 ** Math.ceil(Math.log2(2 * entry.length + 2)));
  const mask = tags.length - 1;
  let isFound = false;
  walkArray(entry, (window, start, end) => {
    // FNV-1a with two primes; the high bits are mixed down, since slots are taken from the low ones.
    let tag = 0x811c9dc5;
    let place = 0x9dc5811c;
    for (let i = start; i < end; i++) {
      const byte = window[i] as number;
      tag = Math.imul(tag ^ byte, 0x01000193);
      place = Math.imul(place ^ byte, 0x85ebca6b);
    }
    const wanted = tag >>> 0 || 1;
    let slot = (place ^ (place >>> 15)) & mask;
    while (tags[slot] !== 0 && tags[slot] !== wanted) slot = (slot + 1) & mask;
    isFound ||= tags[slot] === wanted;
    tags[slot] = wanted;
  });
  return isFound;
}
