import * as fc from "fast-check";
import { describe, expect, test } from "vitest";
import { SseParser } from "../../src/bench/sse.ts";

function parse(pieces: readonly Buffer[]): string[] {
  const events: string[] = [];
  const parser = new SseParser((data) => events.push(data));
  for (const piece of pieces) parser.push(piece);
  parser.end();
  return events;
}

describe("SseParser", () => {
  test("reads data lines, joins several, ignores comments and other fields", () => {
    expect(parse([Buffer.from(': hello\n\nevent: x\ndata: {"a":1}\n\ndata:b\ndata: c\r\n\r\nid: 3\n\ndata: [DONE]\n\n')])).toEqual(['{"a":1}', "b\nc", "[DONE]"]);
  });

  test("takes a last event without its blank line", () => {
    expect(parse([Buffer.from("data: last")])).toEqual(["last"]);
  });

  test("gives the same events however the bytes are cut, also inside a character", () => {
    const text = fc.string({ unit: "grapheme", maxLength: 12 }).map((s) => s.replace(/[\r\n]/g, " "));
    fc.assert(
      fc.property(fc.array(text, { maxLength: 8 }), fc.array(fc.nat(200), { maxLength: 12 }), fc.constantFrom("\n", "\r\n"), (events, cuts, eol) => {
        const bytes = Buffer.from(events.map((e) => `data: ${e}${eol}${eol}`).join(""));
        const at = [0, ...cuts.map((c) => Math.min(c, bytes.length)).sort((a, b) => a - b), bytes.length];
        const pieces = at.slice(1).map((end, i) => bytes.subarray(at[i], end));
        expect(parse(pieces)).toEqual(events);
      }),
    );
  });
});
