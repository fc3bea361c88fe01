/**
 * Products of the same rows by several matrices of one type as one product by the matrices joined.
 *
 * A layer of linear attention multiplies the same normed rows by four matrices (query, key and value; the gate z; alpha;
 * beta), one of attention by three. For each ggml-cuda quantizes the rows anew and launches a kernel that fills the device
 * badly: alpha and beta have 32 rows. Of a step of few rows that is a good part, for it is all latency (some forty kernels of
 * 1 to 14 microseconds a layer on an H200). Up to eight rows each number is computed as before (mmvq.cu: a row of the matrix
 * by a column at a time), so the bits are the same.
 *
 * What reads a product finds it as columns of the joined one, a wider row apart, where it can read that; where it cannot, the
 * product becomes a copy into order. A gate that goes through SiLU becomes a gated unit of whole rows, which can.
 */
import { ggmlType } from "../gguf/types.ts";
import { isMatrix } from "./device-matrix.ts";
import { isViewOp, viewsOf, type Addition, type GraphNodes, type Reading } from "./graph-nodes.ts";
import { isStored, sizesOf, tensorAt, typeOf, type GraphOps } from "./graph-surgery.ts";
import type { Pointer } from "./structs.ts";

/** Beyond that other kernels multiply quantized matrices, whose sums depend on the size of the matrix. */
export const mostVectorRows = 8;

const floatBytes = 4;

/** Products, by rising index, of one tensor of rows. */
export interface Join {
  readonly products: readonly Product[];
  /** Addresses of their matrices. */
  readonly parts: readonly number[];
}

export interface Product {
  readonly index: number;
  readonly at: number;
}

/**
 * Two or more of each tensor of rows and type of matrix, those of a gated unit left out: ggml-cuda makes one kernel of them.
 * @param products of matrices and rows
 */
export function findJoins(ops: GraphOps, nodes: GraphNodes, products: readonly Product[], isNear: (weights: Pointer) => boolean): Join[] {
  const groups = new Map<string, Product[]>();
  for (const { index, at } of products) {
    const weights = BigInt(nodes.source(at, 0));
    const type = joinableType(weights);
    if (type === undefined || nodes.ne(at, 2) !== 1 || nodes.ne(at, 3) !== 1 || !isNear(weights)) continue;
    if (nodes.readings(at).some((reading) => nodes.op(reading.at) === ops.gluOp)) continue;
    const key = `${nodes.source(at, 1)}:${type}`;
    groups.set(key, [...(groups.get(key) ?? []), { index, at }]);
  }
  return [...groups.values()].filter(({ length }) => length > 1).map((joined) => ({ products: joined, parts: joined.map(({ at }) => nodes.source(at, 0)) }));
}

/** Of a quantized matrix of the model. */
function joinableType(weights: Pointer): number | undefined {
  const fields = tensorAt(weights);
  const type = typeOf(fields);
  return isStored(fields) && isMatrix(sizesOf(fields), Infinity) && (ggmlType(type)?.blockSize ?? 1) > 1 ? type : undefined;
}

/**
 * The products as one.
 * @param weights the matrices joined, in the order of `parts`
 * @returns nothing where there is no room for what is added
 */
export function joinProducts(ops: GraphOps, context: Pointer, nodes: GraphNodes, { products }: Join, weights: Pointer, nFree: number): Addition[] {
  const { ggml } = ops;
  const [first] = products;
  // One product, at most a view for each of those that are copied, and one for its gated unit.
  const nNew = 1 + products.length;
  if (first === undefined || nFree < 2 * nNew) return [];
  const width = products.reduce((sum, { at }) => sum + nodes.ne(at, 0), 0);
  const joined = ggml.ggml_mul_mat(context, weights, BigInt(nodes.source(first.at, 1)));
  const roots = [joined];
  const uses: (() => void)[] = [];
  const gates: Addition[] = [];
  let column = 0;
  for (const { at } of products) {
    const [n, nRows] = [nodes.ne(at, 0), nodes.ne(at, 1)];
    const columns: Columns = { joined, from: column * floatBytes, rowBytes: n * floatBytes, wideBytes: width * floatBytes };
    column += n;
    const gate = nRows > 1 ? gatedUnit(ops, context, nodes, at) : undefined;
    if (gate !== undefined) gates.push(gate);
    const views = viewsOf(ops, nodes, at);
    const places = views.map((view) => placeIn(nodes, view, columns, nRows));
    if (places.every((place) => place !== undefined) && (nRows === 1 || gate !== undefined || views.every((view) => isReadApart(ops, nodes, view)))) {
      uses.push(() => {
        places.forEach(({ offset, nb }, i) => {
          if (i === 0) nodes.setView(at, ops.viewOp, joined, offset, nb);
          else nodes.moveView(views[i] as number, joined, offset, nb);
        });
      });
      continue;
    }
    const view = ggml.ggml_view_2d(context, joined, n, nRows, columns.wideBytes, columns.from);
    roots.push(view);
    uses.push(() => {
      nodes.setOp(at, ops.contOp);
      nodes.setSource(at, 0, view);
      nodes.setSource(at, 1, 0n);
    });
  }
  return [{ before: first.index, roots, nNew, use: () => { for (const use of uses) use(); } }, ...gates];
}

/** Where the numbers of a product lie in the joined one. */
interface Columns {
  readonly joined: Pointer;
  /** Byte of the first. */
  readonly from: number;
  /** Of a row of the product, and from one to the next in the joined one. */
  readonly rowBytes: number;
  readonly wideBytes: number;
}

/** Whether all that computes with it takes rows that lie apart. */
function isReadApart(ops: GraphOps, nodes: GraphNodes, view: number): boolean {
  return nodes.readings(view).every((reading) => {
    const op = nodes.op(reading.at);
    if (isViewOp(ops, op) || op === ops.contOp || op === ops.normOp) return true;
    if (op === ops.concatOp) return reading.source === 1 && isAlreadyApart(nodes, view);
    // A sum in place is a view as well, and of numbers in order.
    return reading.source === 0 && (op === ops.setRowsOp || (op === ops.addOp && nodes.viewSource(reading.at) === 0));
  });
}

/** Several rows of one sequence, transposed, are apart as it is; one row of each of several sequences is not. */
const isAlreadyApart = (nodes: GraphNodes, view: number): boolean => nodes.ne(view, 0) > 1 || nodes.ne(view, 2) === 1;

interface Place {
  readonly offset: number;
  readonly nb: readonly number[];
}

/** Where a product or a view of one begins in the joined one, and its steps; undefined where it runs on from one row into the next. */
function placeIn(nodes: GraphNodes, view: number, { from, rowBytes, wideBytes }: Columns, nRows: number): Place | undefined {
  const old = nodes.viewSource(view) === 0 ? 0 : nodes.viewOffset(view);
  const offset = from + Math.floor(old / rowBytes) * wideBytes + (old % rowBytes);
  const steps = [0, 1, 2, 3].map((i) => ({ n: nodes.ne(view, i), nb: nodes.nb(view, i) }));
  // One row is in order wherever it lies.
  if (nRows === 1) return { offset, nb: steps.map(({ nb }) => nb) };
  const withinRow = steps.filter(({ nb }) => nb % rowBytes !== 0).reduce((sum, { n, nb }) => sum + (n - 1) * nb, floatBytes);
  if ((old % rowBytes) + withinRow > rowBytes) return undefined;
  return { offset, nb: steps.map(({ nb }) => (nb % rowBytes === 0 ? (nb / rowBytes) * wideBytes : nb)) };
}

/**
 * A product that is reshaped to heads, goes through SiLU and multiplies numbers in order, as a gated unit of whole rows: that
 * reads rows that lie apart.
 */
function gatedUnit(ops: GraphOps, context: Pointer, nodes: GraphNodes, product: number): Addition | undefined {
  const only = (at: number | undefined, op: number, source = 0): Reading | undefined => {
    const reading = at === undefined ? undefined : nodes.onlyReader(at);
    return reading !== undefined && reading.source === source && nodes.op(reading.at) === op ? reading : undefined;
  };
  const heads = only(product, ops.reshapeOp);
  const silu = only(heads?.at, ops.unaryOp);
  if (silu === undefined || nodes.parameter(silu.at, 0) !== ops.silu) return undefined;
  const gated = only(silu.at, ops.mulOp, 1);
  if (gated === undefined || only(gated.at, ops.reshapeOp) === undefined) return undefined;
  const other = nodes.find(nodes.source(gated.at, 0));
  const isSame = other !== undefined && [0, 1, 2, 3].every((i) => nodes.ne(other, i) === nodes.ne(silu.at, i) && nodes.nb(other, i) === nodes.nb(silu.at, i));
  if (!isSame) return undefined;
  const rows = ops.ggml.ggml_reshape_2d(context, BigInt(nodes.address(other)), nodes.ne(product, 0), nodes.ne(product, 1));
  return {
    before: gated.index,
    roots: [rows],
    nNew: 1,
    use: () => {
      nodes.setOp(silu.at, 0);
      nodes.setOp(gated.at, ops.gluOp, ops.swiglu);
      nodes.setShape(gated.at, [nodes.ne(product, 0), nodes.ne(product, 1), 1, 1]);
      nodes.setSource(gated.at, 0, BigInt(nodes.address(product)));
      nodes.setSource(gated.at, 1, rows);
      // ggml frees the memory of what is last read.
      nodes.setSource(gated.at, 2, BigInt(nodes.address(silu.at)));
    },
  };
}
