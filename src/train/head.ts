/**
 * The MTP block on the tape, exactly as the runtime computes it (`graph_mtp` of llama.cpp's qwen35moe.cpp):
 * fc on [rms(embedding); rms(hidden)], gated attention with q/k norm and partial rotary embedding, routed and shared
 * experts, `shared_head_norm`. Its output is both what the LM head reads and the hidden row of the next depth.
 *
 * Chain attention. While drafting, the KV cache holds one row per accepted token, made from the target's hidden rows,
 * followed by the rows of this draft. So at depth j a token t attends to the depth-0 keys up to t and to its own keys
 * of depths 1..j, and to no other token's draft keys.
 */
import type { Tensor } from "../llama/ggml.ts";
import type { HeadShape } from "./head-shape.ts";
import { routedExperts, type MoeWeights } from "./moe.ts";
import type { Tape, Value } from "./tape.ts";

export interface HeadValues {
  readonly enorm: Value;
  readonly hnorm: Value;
  readonly fc: Value;
  readonly attnNorm: Value;
  readonly q: Value;
  readonly k: Value;
  readonly v: Value;
  readonly qNorm: Value;
  readonly kNorm: Value;
  readonly output: Value;
  readonly postNorm: Value;
  readonly moe: MoeWeights;
  readonly sharedGateIn: Value;
  readonly sharedGate: Value;
  readonly sharedUp: Value;
  readonly sharedDown: Value;
  readonly headNorm: Value;
}

interface KeysAndValues {
  readonly keys: Value;
  readonly values: Value;
}

/** What the KV cache holds for one block: depth-0 rows of the whole batch, then each token's own rows. */
export interface KvChain {
  depth0: KeysAndValues | undefined;
  readonly own: KeysAndValues[];
}

export const emptyChain = (): KvChain => ({ depth0: undefined, own: [] });

export interface BlockInput {
  /** [d, N] */
  readonly embedding: Value;
  /** [d, N] */
  readonly hidden: Value;
  /** I32 [N] */
  readonly positions: Tensor;
  /** [N + own rows so far, N]: 0 where attended, -infinity elsewhere. */
  readonly mask: Tensor;
  readonly chain: KvChain;
  /** Which use of this head's weights it is, counting those that get gradients. */
  readonly use: number;
}

/** One pass of the block over N tokens: hidden rows [d, N] after the head norm, and the experts chosen [k, N]. */
export function headBlock(tape: Tape, shape: HeadShape, w: HeadValues, input: BlockInput): { hidden: Value; expertIds: Tensor } {
  const { normEps: eps } = shape;
  const joined = tape.concat([tape.rmsNorm(input.embedding, w.enorm, eps), tape.rmsNorm(input.hidden, w.hnorm, eps)]);
  const start = tape.project(w.fc, joined);
  const attended = tape.add(start, attention(tape, shape, w, tape.rmsNorm(start, w.attnNorm, eps), input));
  const normed = tape.rmsNorm(attended, w.postNorm, eps);
  const routed = routedExperts(tape, w.moe, normed, { nExpertUsed: shape.nExpertUsed, weightsScale: shape.expertWeightsScale, use: input.use });
  const out = tape.add(attended, tape.add(routed.output, sharedExpert(tape, w, normed)));
  return { hidden: tape.rmsNorm(out, w.headNorm, eps), expertIds: routed.ids };
}

function sharedExpert(tape: Tape, w: HeadValues, x: Value): Value {
  const hidden = tape.mul(tape.silu(tape.project(w.sharedGate, x)), tape.project(w.sharedUp, x));
  return tape.mul(tape.project(w.sharedDown, hidden), tape.sigmoid(tape.project(w.sharedGateIn, x)));
}

function attention(tape: Tape, s: HeadShape, w: HeadValues, x: Value, { positions, mask, chain }: BlockInput): Value {
  const n = x.ne[1];
  const rope = { nRot: s.nRot, freqBase: s.ropeFreqBase, freqScale: s.ropeFreqScale };
  const [query, gate] = tape.split(tape.reshape(tape.project(w.q, x), [2 * s.nEmbdHead, s.nHead, n]), [s.nEmbdHead, s.nEmbdHead]) as [Value, Value];
  const rotated = (rows: Value, norm: Value): Value => tape.permute(tape.rope(tape.rmsNorm(rows, norm, s.normEps), positions, rope), [0, 2, 1, 3]);
  const q = rotated(query, w.qNorm);
  const k = rotated(tape.reshape(tape.project(w.k, x), [s.nEmbdHead, s.nHeadKv, n]), w.kNorm);
  const v = tape.reshape(tape.project(w.v, x), [s.nEmbdHead, s.nHeadKv, n]);
  const mixed = tape.reshape(tape.permute(attend(tape, q, k, v, mask, chain), [0, 2, 1, 3]), [s.nEmbdHead * s.nHead, n]);
  return tape.project(w.output, tape.mul(mixed, tape.sigmoid(tape.reshape(gate, [s.nEmbdHead * s.nHead, n]))));
}

/** q [e, N, H], k [e, N, Hkv], v [e, Hkv, N] -> [e, N, H]. Adds k and v to the chain. */
function attend(tape: Tape, q: Value, k: Value, v: Value, mask: Tensor, chain: KvChain): Value {
  const scale = 1 / Math.sqrt(q.ne[0]);
  if (chain.depth0 === undefined) {
    const values = tape.permute(v, [1, 2, 0, 3]);
    chain.depth0 = { keys: k, values };
    return tape.matmul(values, tape.softmax(tape.matmul(k, q), mask, scale));
  }
  chain.own.push({ keys: k, values: tape.permute(v, [0, 2, 1, 3]) });
  const { depth0, own } = chain;
  const scores = tape.concat([tape.matmul(depth0.keys, q), ...own.map(({ keys }) => ownScore(tape, q, keys))]);
  const [shared, ...single] = tape.split(tape.softmax(scores, mask, scale), [q.ne[1], ...own.map(() => 1)]) as [Value, ...Value[]];
  return single.reduce((sum, p, i) => tape.add(sum, ownMix(tape, p, (own[i] as KeysAndValues).values)), tape.matmul(depth0.values, shared));
}

/** Each token's query with its own key: q [e, N, H], k [e, N, Hkv] -> [1, N, H]. */
function ownScore(tape: Tape, q: Value, k: Value): Value {
  const [e, n, nHead] = q.ne;
  const nHeadKv = k.ne[2];
  const products = tape.mul(tape.reshape(q, [e, n, nHead / nHeadKv, nHeadKv]), tape.reshape(k, [e, n, 1, nHeadKv]));
  return tape.reshape(tape.sumRows(products), [1, n, nHead]);
}

/** Each token's own value times its probability: p [1, N, H], v [e, N, Hkv] -> [e, N, H]. */
function ownMix(tape: Tape, p: Value, v: Value): Value {
  const [e, n, nHeadKv] = v.ne;
  const group = p.ne[2] / nHeadKv;
  const repeated = tape.repeat(tape.reshape(v, [e, n, 1, nHeadKv]), [e, n, group, nHeadKv]);
  return tape.reshape(tape.mul(repeated, tape.reshape(p, [1, n, group, nHeadKv])), [e, n, p.ne[2]]);
}
