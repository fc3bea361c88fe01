import * as fs from "node:fs";
import * as path from "node:path";
import fc from "fast-check";
import { describe, expect, test } from "vitest";
import { ByteReader } from "../../src/gguf/byte-reader.ts";
import { duplicateString } from "../../src/gguf/duplicate-string.ts";
import { readGgufHeader } from "../../src/gguf/reader.ts";
import { arrayEntry, encodeString } from "../../src/gguf/kv.ts";
import type { GgufArrayEntry } from "../../src/gguf/header.ts";
import { temporaryFolder } from "./files.ts";

const folder = temporaryFolder("walk-strings");

const WINDOW = 1 << 18;

function onBytes<T>(bytes: Uint8Array, read: (r: ByteReader) => T): T {
  const file = path.join(folder, "strings");
  fs.writeFileSync(file, bytes);
  const fd = fs.openSync(file, "r");
  try {
    return read(new ByteReader(file, fd, bytes.length));
  } finally {
    fs.closeSync(fd);
  }
}

/** Strings with their lengths, then a byte that must be the next one read. */
function encode(lengths: readonly number[], littleEndian: boolean): Buffer {
  const parts = lengths.map((n, i) => {
    const out = encodeString(String.fromCharCode(97 + (i % 26)).repeat(n));
    if (!littleEndian) out.writeBigUInt64BE(BigInt(n), 0);
    return out;
  });
  return Buffer.concat([...parts, Buffer.of(77)]);
}

const length = fc.oneof({ weight: 6, arbitrary: fc.nat(40) }, { weight: 1, arbitrary: fc.integer({ min: WINDOW - 40, max: WINDOW + 40 }) }, { weight: 1, arbitrary: fc.nat(90_000) });

describe("walking strings", () => {
  test("ends behind the last one, and shows each that fits the window where it lies", () => {
    fc.assert(
      fc.property(fc.array(length, { maxLength: 30 }), fc.boolean(), (lengths, littleEndian) => {
        const seen: string[] = [];
        const next = onBytes(encode(lengths, littleEndian), (r) => {
          r.littleEndian = littleEndian;
          r.walkStrings(lengths.length, "strings", (window, start, end) => seen.push(`${end - start}${String.fromCharCode(window[start] as number)}`));
          return r.u8("the byte behind");
        });
        expect(next).toBe(77);
        const named = lengths.map((n, i) => ({ n, text: `${n}${n === 0 ? "" : String.fromCharCode(97 + (i % 26))}` })).filter(({ n }) => n + 8 <= WINDOW);
        expect(seen.map((text) => (text.startsWith("0") ? "0" : text))).toEqual(named.map(({ text }) => text));
      }),
      { numRuns: 60 },
    );
  });

  test("a length beyond the file is refused where it stands, wherever the window is", () => {
    for (const lengths of [[], [3], [WINDOW - 20, 9], [WINDOW + 5, 2, 1]]) {
      const good = encode(lengths, true).subarray(0, -1);
      const bad = Buffer.alloc(12);
      bad.writeBigUInt64LE(1n << 50n);
      expect(() => onBytes(Buffer.concat([good, bad]), (r) => r.walkStrings(lengths.length + 1, "strings"))).toThrow(`byte ${good.length.toLocaleString("en-US")}, reading strings: 1,125,899,906,842,624 is more than`);
    }
  });
});

describe("equal strings", () => {
  const entryOf = (texts: readonly string[]): GgufArrayEntry => {
    const file = path.join(folder, "entry.gguf");
    const header = Buffer.alloc(24);
    header.write("GGUF");
    header.writeUInt32LE(3, 4);
    header.writeBigUInt64LE(1n, 16);
    fs.writeFileSync(file, Buffer.concat([header, arrayEntry("a", "string", texts).bytes]));
    return readGgufHeader(file).entries.get("a") as GgufArrayEntry;
  };

  test("are found when they are there, and only then", () => {
    fc.assert(
      fc.property(fc.array(fc.string({ maxLength: 3 }), { maxLength: 60 }), (texts) => {
        const second = texts.findIndex((text, i) => texts.indexOf(text) < i);
        expect(duplicateString(entryOf(texts))).toEqual(second < 0 ? undefined : [texts.indexOf(texts[second] as string), second]);
      }),
    );
  });

  test("among 250,000 that differ there are none; the last one doubled is found", () => {
    const texts = Array.from({ length: 250_000 }, (_, i) => `token ${i}`);
    expect(duplicateString(entryOf(texts))).toBeUndefined();
    expect(duplicateString(entryOf([...texts, "token 17"]))).toEqual([17, 250_000]);
  });
});
