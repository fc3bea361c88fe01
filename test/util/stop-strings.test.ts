import * as fc from "fast-check";
import { describe, expect, test } from "vitest";
import { StopMatcher } from "../../src/util/stop-strings.ts";

const bytes = (text: string): Uint8Array => new TextEncoder().encode(text);

/** The definition, written slowly: shortest prefix of the text that ends with a stop; the longest such stop. */
function reference(text: string, stops: readonly string[]): { index: number; start: number } {
  for (let end = 1; end <= text.length; end++) {
    const ending = stops.map((stop, index) => ({ stop, index })).filter(({ stop }) => stop !== "" && text.slice(0, end).endsWith(stop));
    ending.sort((a, b) => b.stop.length - a.stop.length || a.index - b.index);
    if (ending[0] !== undefined) return { index: ending[0].index, start: end - ending[0].stop.length };
  }
  return { index: -1, start: -1 };
}

function referenceHeld(text: string, stops: readonly string[]): number {
  for (let n = text.length; n > 0; n--) if (stops.some((s) => s.length > n && s.startsWith(text.slice(text.length - n)))) return n;
  return 0;
}

// A small alphabet makes borders and overlaps common.
const word = (maxLength: number) => fc.string({ unit: fc.constantFrom("a", "b", "\n"), maxLength });

describe("StopMatcher", () => {
  test("finds what the definition says, however the text is cut", () => {
    fc.assert(
      fc.property(word(40), fc.array(word(5), { maxLength: 4 }), fc.array(fc.nat(6), { minLength: 1, maxLength: 20 }), (text, stops, cuts) => {
        const matcher = new StopMatcher(stops.map(bytes));
        let found = -1;
        for (let at = 0, c = 0; at < text.length && found < 0; c++) {
          const n = (cuts[c % cuts.length] as number) + (cuts.every((x) => x === 0) ? 1 : 0);
          found = matcher.push(bytes(text.slice(at, at + n)));
          at += n;
        }
        const want = reference(text, stops);
        expect(found).toBe(want.index);
        expect(matcher.matchStart).toBe(want.start);
        if (found < 0) expect(matcher.nHeld).toBe(referenceHeld(text, stops));
        else expect(matcher.nHeld).toBe(0);
      }),
    );
  });

  test("text that is not held can be shown: no later match begins before it", () => {
    fc.assert(
      fc.property(word(40), fc.array(word(5), { minLength: 1, maxLength: 3 }), (text, stops) => {
        const matcher = new StopMatcher(stops.map(bytes));
        let nShown = 0;
        for (const character of text) {
          if (matcher.push(bytes(character)) >= 0) break;
          nShown = matcher.nBytes - matcher.nHeld;
        }
        if (matcher.matchStart >= 0) expect(matcher.matchStart).toBeGreaterThanOrEqual(nShown);
      }),
    );
  });

  test("a stop of several bytes a character is matched over its bytes", () => {
    const matcher = new StopMatcher([bytes("né🙂")]);
    const text = bytes("ané🙂b");
    let found = -1;
    for (const byte of text) if (found < 0) found = matcher.push(Uint8Array.of(byte));
    expect(found).toBe(0);
    expect(matcher.matchStart).toBe(1);
  });
});
