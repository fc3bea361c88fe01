import * as fc from "fast-check";
import { describe, expect, test } from "vitest";
import { schemaToGrammar, SchemaError } from "../../src/server/json-schema-grammar.ts";
import { matchesGbnf, parseGbnf } from "./gbnf-matcher.ts";

const accepts = (schema: unknown, value: unknown): boolean => matchesGbnf(schemaToGrammar(schema), JSON.stringify(value));

const person = {
  type: "object",
  properties: { name: { type: "string" }, age: { type: "integer" }, tags: { type: "array", items: { type: "string" }, maxItems: 2 } },
  required: ["name", "age"],
  additionalProperties: false,
};

describe("schema to grammar", () => {
  test("any JSON value follows the grammar of any JSON, however it is spaced", () => {
    const grammar = schemaToGrammar({});
    fc.assert(
      fc.property(fc.jsonValue({ maxDepth: 3 }), fc.constantFrom(undefined, 1, "\t"), (value, space) => {
        expect(matchesGbnf(grammar, JSON.stringify(value, null, space))).toBe(true);
      }),
    );
  });

  test.each([
    ['{"name":"a","age":1}', true],
    ['{"name":"a","age":1,"tags":["x","y"]}', true],
    ['{\n  "name": "é\\n\\u00e9",\n  "age": -12\n}', true],
    ['{"age":1,"name":"a"}', false],
    ['{"name":"a"}', false],
    ['{"name":"a","age":1.5}', false],
    ['{"name":"a","age":01}', false],
    ['{"name":"a","age":1,"tags":["x","y","z"]}', false],
    ['{"name":"a","age":1,"more":1}', false],
    ['{"name":"a","age":1', false],
    ['{"name":"a\n","age":1}', false],
  ])("object %s: %s", (text, wanted) => {
    expect(matchesGbnf(schemaToGrammar(person), text)).toBe(wanted);
  });

  test("optional properties may be left out in every combination, in order, with commas right", () => {
    const keys = ["a", "b", "c", "d"];
    for (let required = 0; required < 16; required += 3) {
      const schema = { type: "object", properties: Object.fromEntries(keys.map((k) => [k, { type: "null" }])), required: keys.filter((_, i) => (required >> i) & 1), additionalProperties: false };
      for (let given = 0; given < 16; given++) {
        const value = Object.fromEntries(keys.filter((_, i) => (given >> i) & 1).map((k) => [k, null]));
        expect(accepts(schema, value), `${required} ${given}`).toBe((given & required) === required);
      }
    }
  });

  test("further properties take any key but the declared ones", () => {
    const schema = { type: "object", properties: { ab: { type: "integer" }, abc: { type: "null" } }, required: ["ab"], additionalProperties: { type: "boolean" } };
    expect(accepts(schema, { ab: 1, a: true, abcd: false, "": true })).toBe(true);
    expect(accepts(schema, { ab: 1, abc: true })).toBe(false);
    expect(accepts(schema, { ab: 1, x: 1 })).toBe(false);
    const long = "k".repeat(200);
    const deep = { type: "object", properties: { [long]: {} }, additionalProperties: { type: "boolean" } };
    expect(accepts(deep, { [`${long}k`]: true, [long.slice(1)]: false })).toBe(true);
    expect(accepts(deep, { [long]: 1, [`${long.slice(1)}x`]: 2 })).toBe(false);
    expect(accepts({ type: "object", additionalProperties: { type: "integer" } }, { x: 1, y: 2 })).toBe(true);
  });

  test.each([
    [{ enum: ["a", 1, null] }, ["a", 1, null], ["b", 2, "null"]],
    [{ const: { a: [1] } }, [{ a: [1] }], [{ a: [2] }]],
    [{ type: ["string", "null"] }, ["x", null], [1]],
    [{ anyOf: [{ type: "integer" }, { type: "array", items: { type: "integer" }, minItems: 1 }] }, [1, [1], [1, 2]], [[], "x"]],
    [{ type: "array", prefixItems: [{ type: "integer" }, { type: "string" }], items: false }, [[1, "a"]], [[1], [1, "a", 2]]],
    [{ type: "array", items: { type: "integer" }, minItems: 2, maxItems: 3 }, [[1, 2], [1, 2, 3]], [[1], [1, 2, 3, 4]]],
    [{ type: "string", minLength: 2, maxLength: 3 }, ["ab", "abc", "é🙂"], ["a", "abcd"]],
    [{ type: "string", format: "date" }, ["2026-11-29"], ["2026-13-01", "x"]],
    [{ type: "string", format: "date-time" }, ["2026-11-29T18:00:00Z"], ["2026-11-29"]],
    [{ type: "string", format: "uuid" }, ["123e4567-e89b-12d3-a456-426614174000"], ["123e4567"]],
    [{ type: "string", format: "hostname" }, ["any text"], [1]],
    [{ type: "string", nullable: true }, ["a", null], [1]],
    [{ allOf: [{ properties: { a: { type: "integer" } }, required: ["a"] }, { properties: { b: { type: "null" } } }] }, [{ a: 1 }, { a: 1, b: null }], [{}, { b: null }]],
    [{ type: "number", minimum: 0 }, [0, 1.5, 1e3], [-1]],
    [{ type: "boolean" }, [true, false], ["true", 1]],
  ] as const)("%j", (schema, good, bad) => {
    for (const value of good) expect(accepts(schema, value), JSON.stringify(value)).toBe(true);
    for (const value of bad) expect(accepts(schema, value), JSON.stringify(value)).toBe(false);
  });

  test("integer ranges hold exactly the integers of the range", () => {
    const bound = fc.option(fc.integer({ min: -1200, max: 1200 }), { nil: undefined });
    fc.assert(
      fc.property(bound, bound, fc.array(fc.integer({ min: -1300, max: 1300 }), { minLength: 20, maxLength: 40 }), (a, b, values) => {
        const [minimum, maximum] = a !== undefined && b !== undefined && a > b ? [b, a] : [a, b];
        const schema = { type: "integer", ...(minimum === undefined ? {} : { minimum }), ...(maximum === undefined ? {} : { maximum }) };
        const grammar = schemaToGrammar(schema);
        for (const value of [...values, minimum ?? 0, maximum ?? 0, (minimum ?? 0) - 1, (maximum ?? 0) + 1])
          expect(matchesGbnf(grammar, String(value)), `${value} in ${minimum}..${maximum}`).toBe(value >= (minimum ?? -Infinity) && value <= (maximum ?? Infinity));
      }),
      { numRuns: 60 },
    );
    expect(matchesGbnf(schemaToGrammar({ type: "integer", exclusiveMinimum: 3, exclusiveMaximum: 5 }), "4")).toBe(true);
    expect(matchesGbnf(schemaToGrammar({ type: "integer", exclusiveMinimum: 3, exclusiveMaximum: 5 }), "5")).toBe(false);
  });

  test.each(["^[a-z]+$", "^\\d{3}-\\d{4}$", "^(foo|ba[rz])?x*$", "^[^0-9]{2,}$", "^a.c$", "b", "^[A-Z][\\w-]{0,3}$|^none$", '^"[ -~]\\\\$', "^(?:é|🙂)\\s$"])(
    "pattern %s takes what the expression takes",
    (pattern) => {
      const grammar = schemaToGrammar({ type: "string", pattern });
      const expression = new RegExp(pattern, "u");
      fc.assert(
        fc.property(fc.oneof(fc.stringMatching(expression), fc.string({ unit: fc.constantFrom("a", "b", "c", "0", "-", "x", "f", "o", '"', "\\", "é", " "), maxLength: 8 })), (text) => {
          // \s and [^...] reach characters that JSON must escape; the grammar leaves those out.
          fc.pre(!/[\p{Cc}\u00a0\u1680\u2000-\u200a\u2028\u2029\u202f\u205f\u3000\ufeff]/u.test(text));
          fc.pre(!(/\[\^|\./.test(pattern) && /["\\]/.test(text)));
          expect(matchesGbnf(grammar, JSON.stringify(text)), text).toBe(expression.test(text));
        }),
        { numRuns: 60 },
      );
    },
  );

  test("references, also of a schema to itself", () => {
    const tree = { $defs: { node: { type: "object", properties: { value: { type: "integer" }, left: { $ref: "#/$defs/node" } }, required: ["value"] } }, $ref: "#/$defs/node" };
    expect(accepts(tree, { value: 1, left: { value: 2, left: { value: 3 } } })).toBe(true);
    expect(accepts(tree, { value: 1, left: { left: { value: 3 } } })).toBe(false);
    expect(accepts({ type: "array", items: { $ref: "#" } }, [[], [[]]])).toBe(true);
  });

  test.each([
    [{ $ref: "#/$defs/none" }, /leads nowhere/],
    [{ $ref: "https://example.org/s" }, /not inside the schema/],
    [{ $defs: { a: { $ref: "#/$defs/a" } }, $ref: "#/$defs/a" }, /only leads to itself/],
    [{ type: "text" }, /not a JSON type/],
    [{ type: "string", minLength: 5, maxLength: 2 }, /below minLength/],
    [{ type: "array", minItems: 1e6, items: {} }, /most a grammar can count/],
    [{ enum: [] }, /no values/],
    [7, /an object is needed/],
  ])("refuses %j", (schema, message) => {
    expect(() => schemaToGrammar(schema)).toThrow(message);
    expect(() => schemaToGrammar(schema)).toThrow(SchemaError);
  });

  test("what no grammar can say is refused when strict, else left to the model", () => {
    for (const schema of [{ type: "string", not: {} }, { type: "array", items: {}, uniqueItems: true }, { type: "number", maximum: 3 }, { type: "string", pattern: "(?=x)" }]) {
      expect(() => schemaToGrammar(schema, { strict: true }), JSON.stringify(schema)).toThrow(SchemaError);
      expect(() => parseGbnf(schemaToGrammar(schema))).not.toThrow();
    }
  });

  test("a schema that would grow without end is refused", () => {
    const wide = { type: "object", properties: Object.fromEntries(Array.from({ length: 6000 }, (_, i) => [`k${i}`, { type: "string", maxLength: i + 1 }])) };
    expect(() => schemaToGrammar(wide)).toThrow(/rules/);
  });
});
