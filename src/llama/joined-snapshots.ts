/**
 * The convolution states of a recurrent layer after each of the last rows, kept for rollback, as one copy instead of one a
 * snapshot: 2 us each on an H200 at one sequence, 5 at eight. They are windows of the same rows, each a row earlier, and lie
 * in the cache in falling order: so the copy steps backwards by one number. Steps are counted in bytes modulo 2^64, as are
 * ggml's.
 */
import type { Addition, GraphNodes } from "./graph-nodes.ts";
import { tensorAt, words, type GraphOps } from "./graph-surgery.ts";
import type { Pointer } from "./structs.ts";

/** A copy and the two views that it is of. */
const nodesOfCopy = 3;
const floatBytes = 4;
const backwards = BigInt.asUintN(64, BigInt(-floatBytes));

/**
 * For the copy at `index`, where others follow of windows a row later, to places before it, an equal step apart.
 * @param isNear whether the cache is where rows are computed: between backends what steps backwards would be moved by halves
 */
export function joinSnapshots(ops: GraphOps, context: Pointer, nodes: GraphNodes, index: number, nFree: number, isNear: (cache: Pointer) => boolean): Addition | undefined {
  const { ggml } = ops;
  if (nFree < nodesOfCopy) return undefined;
  const first = snapshotAt(ops, nodes, index);
  if (first === undefined) return undefined;
  const copies = [first];
  let step = 0;
  for (;;) {
    const last = copies.at(-1) as Snapshot;
    const next = snapshotAt(ops, nodes, index + nodesOfCopy * copies.length);
    if (next === undefined || !isNext(nodes, last, next)) break;
    const bytes = nodes.viewOffset(last.to) - nodes.viewOffset(next.to);
    if (copies.length === 1) step = bytes;
    if (bytes !== step) break;
    copies.push(next);
  }
  const last = copies.at(-1) as Snapshot;
  const before = snapshotAt(ops, nodes, index - nodesOfCopy);
  const sizes = [0, 1, 2].map((i) => nodes.ne(last.from, i)) as [number, number, number];
  const [width, nSeqs] = [nodes.ne(last.to, 0), nodes.ne(last.to, 1)];
  const cache = BigInt(nodes.viewSource(last.to));
  const isPart = before !== undefined && isNext(nodes, before, first);
  if (copies.length < 2 || isPart || !isNear(cache) || step < nSeqs * nodes.nb(last.to, 1)) return undefined;
  const windows = ggml.ggml_view_4d(context, BigInt(nodes.viewSource(last.from)), ...sizes, 1, nodes.nb(last.from, 1), nodes.nb(last.from, 2), nodes.nb(last.from, 3), nodes.viewOffset(last.from));
  // Windows overlap, which ggml would not make a view of.
  const fields = tensorAt(windows);
  fields[words.ne3] = BigInt(copies.length);
  fields[words.nb3] = backwards;
  const places = ggml.ggml_view_3d(context, cache, width, nSeqs, copies.length, nodes.nb(last.to, 1), step, nodes.viewOffset(last.to));
  const copy = ggml.ggml_cpy(context, windows, places);
  return {
    before: index,
    roots: [copy],
    nNew: nodesOfCopy,
    use: () => {
      for (const { at } of copies) nodes.setOp(at, 0);
    },
  };
}

interface Snapshot {
  readonly at: number;
  readonly from: number;
  readonly to: number;
}

/** A copy of a view that nothing reads. */
function snapshotAt(ops: GraphOps, nodes: GraphNodes, index: number): Snapshot | undefined {
  if (index < 0 || index >= nodes.n) return undefined;
  const at = nodes.at(index);
  if (nodes.op(at) !== ops.cpyOp || nodes.readings(at).length > 0) return undefined;
  const [from, to] = [nodes.find(nodes.source(at, 0)), nodes.find(nodes.source(at, 1))];
  if (from === undefined || to === undefined || nodes.op(from) !== ops.viewOp || nodes.op(to) !== ops.viewOp) return undefined;
  const isInOrder = nodes.nb(from, 0) === floatBytes && nodes.nb(to, 0) === floatBytes;
  const isFlat = nodes.ne(from, 3) === 1 && nodes.ne(to, 2) === 1 && nodes.ne(to, 3) === 1;
  return isInOrder && isFlat ? { at, from, to } : undefined;
}

const isNext = (nodes: GraphNodes, a: Snapshot, b: Snapshot): boolean =>
  nodes.viewSource(a.from) === nodes.viewSource(b.from) &&
  nodes.viewSource(a.to) === nodes.viewSource(b.to) &&
  nodes.viewOffset(b.from) === nodes.viewOffset(a.from) + floatBytes &&
  [0, 1, 2].every((i) => nodes.ne(a.from, i) === nodes.ne(b.from, i) && nodes.nb(a.from, i) === nodes.nb(b.from, i)) &&
  [0, 1].every((i) => nodes.ne(a.to, i) === nodes.ne(b.to, i) && nodes.nb(a.to, i) === nodes.nb(b.to, i));
