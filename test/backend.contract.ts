/**
 * What every Backend must do (src/engine/backend.ts), run on libllama and on the scripted fake. Token ids below 90 must
 * be valid; the contexts need 3 sequences of 64 positions and room for 64 rows.
 */
import { afterAll, beforeAll, describe, expect, test } from "vitest";
import { DecodeError, type Backend, type DecodeContext } from "../src/engine/backend.ts";

export interface ContractOptions {
  /** Most rows that can be rolled back; the backend must be made with it. */
  readonly nRollback: number;
}

/** Token i of a text that is the same in every run. */
const textToken = (seq: number, position: number): number => 3 + ((seq * 31 + position * 17 + ((position * position) % 7)) % 80);

interface RowPlan {
  readonly seq: number;
  readonly from: number;
  readonly n: number;
  /** Default: only the last row. */
  readonly outputs?: "all" | "last" | "none";
  readonly tokens?: readonly number[];
  /** Hidden row that goes in with row i (draft contexts); default zeros. */
  readonly hidden?: (i: number) => Float32Array;
}

/** Fills the context's rows; returns the index of each plan's first row. */
function fill(context: DecodeContext, plans: readonly RowPlan[]): number[] {
  const { rows, nEmbd } = context;
  rows.n = 0;
  return plans.map(({ seq, from, n, outputs = "last", tokens, hidden }) => {
    const first = rows.n;
    for (let i = 0; i < n; i++) {
      const row = rows.n++;
      rows.tokens[row] = tokens?.[i] ?? textToken(seq, from + i);
      rows.positions[row] = from + i;
      rows.seqs[row] = seq;
      rows.outputs[row] = outputs === "all" || (outputs === "last" && i === n - 1) ? 1 : 0;
      if (rows.hidden.length > 0) {
        const into = rows.hidden.subarray(row * nEmbd, (row + 1) * nEmbd);
        if (hidden === undefined) into.fill(0);
        else into.set(hidden(i));
      }
    }
    return first;
  });
}

function decode(context: DecodeContext, ...plans: RowPlan[]): number[] {
  const first = fill(context, plans);
  context.decode();
  return first;
}

/** A refusal is false or an error; either way nothing changed. */
function isRefused(call: () => boolean): boolean {
  try {
    return !call();
  } catch {
    return true;
  }
}

function maxDifference(a: Float32Array, b: Float32Array): number {
  let most = 0;
  for (let i = 0; i < a.length; i++) most = Math.max(most, Math.abs((a[i] as number) - (b[i] as number)));
  return most;
}

export function backendContract(name: string, makeBackend: () => Backend | Promise<Backend>, { nRollback }: ContractOptions): void {
  describe(`${name} keeps the backend contract`, () => {
    let backend: Backend;
    let target: DecodeContext;
    beforeAll(async () => {
      backend = await makeBackend();
      target = backend.target;
    });
    afterAll(() => backend.close());
    const clearAll = (context: DecodeContext): void => {
      for (let seq = 0; seq < context.limits.nSeq; seq++) context.clear(seq);
    };

    test("states its limits", () => {
      const { limits, rows } = target;
      expect(limits.nSeq).toBeGreaterThanOrEqual(3);
      expect(limits.nCtxSeq).toBeGreaterThanOrEqual(64);
      expect(limits.nCells).toBeGreaterThanOrEqual(limits.nCtxSeq);
      expect(rows.capacity).toBe(limits.nRows);
      expect(limits.nUbatch).toBeLessThanOrEqual(limits.nRows);
      expect(limits.nRollback).toBeGreaterThanOrEqual(nRollback);
      expect(rows.tokens.length).toBe(rows.capacity);
      expect(rows.hidden.length).toBe(0);
      for (const head of backend.heads) expect(head.rows.hidden.length).toBe(head.rows.capacity * head.nEmbd);
    });

    test("an empty sequence ends at -1, a filled one at its last position, a cleared one at -1 again", () => {
      clearAll(target);
      expect(target.lastPosition(1)).toBe(-1);
      decode(target, { seq: 1, from: 0, n: 5 });
      expect(target.lastPosition(1)).toBe(4);
      expect(target.lastPosition(0)).toBe(-1);
      target.clear(1);
      expect(target.lastPosition(1)).toBe(-1);
    });

    test("the greedy token is the argmax of the logits, and does not depend on the other sequences of the decode", () => {
      clearAll(target);
      decode(target, { seq: 0, from: 0, n: 6 });
      const alone = target.greedyToken(5);
      clearAll(target);
      const [, second] = decode(target, { seq: 2, from: 0, n: 6 }, { seq: 0, from: 0, n: 6 });
      expect(target.greedyToken((second as number) + 5)).toBe(alone);
      if (target.samplingOf(0) === "host") {
        const logits = target.logits((second as number) + 5);
        expect(logits.length).toBe(target.nVocab);
        expect(logits.indexOf(Math.max(...logits))).toBe(alone);
      }
    });

    test("rows may be filled anew before the results of the last decode are read", () => {
      clearAll(target);
      decode(target, { seq: 0, from: 0, n: 4 });
      const before = target.greedyToken(3);
      fill(target, [{ seq: 1, from: 0, n: 2, tokens: [9, 8] }]);
      expect(target.greedyToken(3)).toBe(before);
    });

    test(`rolls back 1 to ${nRollback} rows of the last decode, and then continues as if they had never been`, () => {
      for (let nRemoved = 1; nRemoved <= nRollback; nRemoved++) {
        clearAll(target);
        decode(target, { seq: 0, from: 0, n: 5 });
        const [kept] = decode(target, { seq: 0, from: 5, n: 1 + nRollback - nRemoved });
        const expected = target.greedyToken((kept as number) + nRollback - nRemoved);
        clearAll(target);
        decode(target, { seq: 0, from: 0, n: 5 });
        const tokens = Array.from({ length: 1 + nRollback }, (_, i) => (i <= nRollback - nRemoved ? textToken(0, 5 + i) : 7));
        decode(target, { seq: 0, from: 5, n: 1 + nRollback, tokens, outputs: "all" });
        const from = 6 + nRollback - nRemoved;
        expect(target.greedyToken(nRollback - nRemoved)).toBe(expected);
        expect(target.removeFrom(0, from)).toBe(true);
        expect(target.lastPosition(0)).toBe(from - 1);
        // What follows must not see the removed rows.
        decode(target, { seq: 0, from, n: 1 });
        const after = target.greedyToken(0);
        clearAll(target);
        decode(target, { seq: 0, from: 0, n: from });
        decode(target, { seq: 0, from, n: 1 });
        expect(target.greedyToken(0)).toBe(after);
      }
    });

    test("a rollback beyond the last decode of that sequence is refused and changes nothing", () => {
      if (target.limits.nRollback === Infinity) return;
      clearAll(target);
      decode(target, { seq: 0, from: 0, n: 4 });
      for (let i = 0; i < 3; i++) decode(target, { seq: 0, from: 4 + i, n: 1 });
      expect(isRefused(() => target.removeFrom(0, 5))).toBe(true);
      expect(target.lastPosition(0)).toBe(6);
      decode(target, { seq: 0, from: 7, n: 1 });
      const token = target.greedyToken(0);
      clearAll(target);
      decode(target, { seq: 0, from: 0, n: 4 });
      for (let i = 0; i < 4; i++) decode(target, { seq: 0, from: 4 + i, n: 1 });
      expect(target.greedyToken(0)).toBe(token);
    });

    test("a rollback after a later forward, also one of the same decode, is refused and changes nothing", () => {
      if (target.limits.nRollback === Infinity) return;
      const isApart = target.limits.nCtxSeq !== target.limits.nCells;
      const rolledBack = (...plans: RowPlan[][]): boolean => {
        clearAll(target);
        for (const seq of [2, 0, 1]) decode(target, { seq, from: 0, n: 3 });
        for (const decoded of plans) decode(target, ...decoded);
        const isDone = !isRefused(() => target.removeFrom(0, 4));
        expect(target.lastPosition(0)).toBe(isDone ? 3 : 4);
        return isDone;
      };
      const rows = (seq: number, n = 2): RowPlan => ({ seq, from: 3, n, outputs: "all" });
      expect(rolledBack([rows(0)])).toBe(true);
      expect(rolledBack([rows(0), rows(1)])).toBe(true);
      expect(rolledBack([rows(0), rows(1), rows(2)])).toBe(true);
      expect(rolledBack([rows(0)], [rows(1)])).toBe(false);
      // Own cells for each sequence: only neighbours share a forward.
      expect(rolledBack([rows(0), rows(2)])).toBe(!isApart);
      expect(rolledBack([rows(0, 2), rows(1, 1)])).toBe(false);
    });

    test("a second rollback before the next decode is refused; removing nothing is not a rollback", () => {
      if (target.limits.nRollback === Infinity) return;
      clearAll(target);
      decode(target, { seq: 0, from: 0, n: 3 });
      decode(target, { seq: 0, from: 3, n: 3 });
      expect(target.removeFrom(0, 6)).toBe(true);
      expect(target.removeFrom(0, 5)).toBe(true);
      expect(isRefused(() => target.removeFrom(0, 4))).toBe(true);
      expect(target.lastPosition(0)).toBe(4);
      expect(target.removeFrom(0, 0)).toBe(true);
      expect(target.lastPosition(0)).toBe(-1);
    });

    test("bad rows are an error and leave the context as it was", () => {
      clearAll(target);
      decode(target, { seq: 0, from: 0, n: 3 });
      const refused = (plan: RowPlan, change: () => void = () => {}): void => {
        fill(target, [plan]);
        change();
        expect(() => target.decode()).toThrow();
        expect(target.lastPosition(0)).toBe(2);
      };
      refused({ seq: 0, from: 3, n: 1, tokens: [-1] });
      refused({ seq: 0, from: 3, n: 1, tokens: [target.nVocab] });
      refused({ seq: target.limits.nSeq, from: 0, n: 1 });
      refused({ seq: 0, from: 4, n: 1 });
      refused({ seq: 0, from: 2, n: 1 });
      refused({ seq: 0, from: 3, n: 1 }, () => (target.rows.n = 0));
      refused({ seq: 0, from: 3, n: 1 }, () => (target.rows.n = target.rows.capacity + 1));
      fill(target, [{ seq: 0, from: 3, n: 1 }, { seq: 1, from: 0, n: 1 }, { seq: 0, from: 4, n: 1 }]);
      expect(() => target.decode()).toThrow();
      expect(target.lastPosition(1)).toBe(-1);
      decode(target, { seq: 0, from: 3, n: 1 });
      expect(target.lastPosition(0)).toBe(3);
    });

    test("a sequence that is full is a DecodeError of code 1", () => {
      clearAll(target);
      const { nCtxSeq, nRows } = target.limits;
      for (let from = 0; from < nCtxSeq; from += nRows) decode(target, { seq: 0, from, n: Math.min(nRows, nCtxSeq - from) });
      fill(target, [{ seq: 0, from: nCtxSeq, n: 1 }]);
      let code: number | undefined;
      try {
        target.decode();
      } catch (error) {
        code = error instanceof DecodeError ? error.code : undefined;
      }
      expect(code).toBe(1);
      expect(target.lastPosition(0)).toBe(nCtxSeq - 1);
      clearAll(target);
    });

    test("a hidden row belongs to its token: the same alone and among other sequences", () => {
      if (backend.heads.length === 0) return;
      clearAll(target);
      decode(target, { seq: 0, from: 0, n: 6 });
      const alone = Float32Array.from(target.hiddenAll());
      expect(alone.length).toBe(6 * target.nEmbd);
      expect(maxDifference(target.hidden(2), alone.subarray(2 * target.nEmbd, 3 * target.nEmbd))).toBe(0);
      clearAll(target);
      const [, second] = decode(target, { seq: 1, from: 0, n: 6 }, { seq: 0, from: 0, n: 6 });
      for (let i = 0; i < 6; i++) {
        const together = target.hidden((second as number) + i);
        const own = alone.subarray(i * target.nEmbd, (i + 1) * target.nEmbd);
        expect(maxDifference(together, own)).toBeLessThan(0.2);
        // Another token's row is much farther away than kernels differ.
        const other = alone.subarray(((i + 1) % 6) * target.nEmbd, (((i + 1) % 6) + 1) * target.nEmbd);
        expect(maxDifference(own, other)).toBeGreaterThan(0.3);
      }
    });

    test("a saved sequence continues in another slot as in its own", () => {
      clearAll(target);
      decode(target, { seq: 0, from: 0, n: 6 });
      const state = target.saveSequence(0);
      expect(target.restoreSequence(2, state)).toBe(true);
      expect(target.lastPosition(2)).toBe(5);
      const tokens = [textToken(0, 6)];
      const [own] = decode(target, { seq: 0, from: 6, n: 1, tokens });
      const expected = target.greedyToken(own as number);
      const [other] = decode(target, { seq: 2, from: 6, n: 1, tokens });
      expect(target.greedyToken(other as number)).toBe(expected);
    });

    test("a sequence is saved into the memory that is given", () => {
      clearAll(target);
      decode(target, { seq: 0, from: 0, n: 6 });
      const state = target.saveSequence(0);
      const asked: number[] = [];
      const memory = new Uint8Array(state.length + 100);
      const again = target.saveSequence(0, (nBytes) => {
        asked.push(nBytes);
        return memory;
      });
      expect(asked).toEqual([state.length]);
      expect(again.buffer).toBe(memory.buffer);
      expect(again.length).toBe(state.length);
      expect(Buffer.compare(again, state)).toBe(0);
    });

    test("a head drafts from a token and the hidden row before it, and forgets what is removed", () => {
      const head = backend.heads[0];
      if (head === undefined) return;
      clearAll(target);
      clearAll(head);
      decode(target, { seq: 0, from: 0, n: 5 });
      const hidden = Float32Array.from(target.hiddenAll());
      const before = (i: number): Float32Array => (i === 0 ? new Float32Array(head.nEmbd) : hidden.subarray((i - 1) * head.nEmbd, i * head.nEmbd));
      decode(head, { seq: 0, from: 0, n: 5, outputs: "last", hidden: before });
      const first = head.greedyToken(4);
      expect(head.lastPosition(0)).toBe(4);
      decode(head, { seq: 0, from: 5, n: 1, tokens: [first], hidden: () => head.hidden(4).slice() });
      expect(head.lastPosition(0)).toBe(5);
      expect(head.removeFrom(0, 3)).toBe(true);
      decode(head, { seq: 0, from: 3, n: 2, hidden: (i) => before(3 + i) });
      expect(head.greedyToken(1)).toBe(first);
    });

    test("a head's hidden row belongs to its row, also behind rows that are no output", () => {
      const head = backend.heads[0];
      if (head === undefined) return;
      clearAll(target);
      clearAll(head);
      decode(target, { seq: 0, from: 0, n: 5 });
      const hidden = Float32Array.from(target.hiddenAll());
      const before = (i: number): Float32Array => (i === 0 ? new Float32Array(head.nEmbd) : hidden.subarray((i - 1) * head.nEmbd, i * head.nEmbd));
      decode(head, { seq: 0, from: 0, n: 5, hidden: before });
      const together = head.hidden(4).slice();
      head.clear(0);
      decode(head, { seq: 0, from: 0, n: 4, outputs: "none", hidden: before });
      decode(head, { seq: 0, from: 4, n: 1, hidden: () => before(4) });
      expect(maxDifference(head.hidden(0), together)).toBeLessThan(0.2);
    });

    test("counts decodes", () => {
      const before = target.counters().nDecodes;
      clearAll(target);
      decode(target, { seq: 0, from: 0, n: 1 });
      expect(target.counters().nDecodes).toBe(before + 1);
      expect(target.counters().nReusedGraphs).toBeGreaterThanOrEqual(0);
    });
  });
}
