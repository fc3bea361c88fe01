/**
 * Host-side sampling of one token from an output row, in llama-server's default order:
 * logit bias, penalties, top-k, top-p, min-p, temperature, draw. One instance serves all requests of an engine: the
 * work arrays are shared, the state that belongs to a request (random numbers, recent tokens) is in `SamplerState`.
 */
import { Rng } from "../util/rng.ts";
import type { Candidates } from "./backend.ts";
import type { SamplingParams } from "./request.ts";

export interface SamplerState {
  readonly params: SamplingParams;
  readonly rng: Rng;
  /** Occurrences of recent tokens inside the penalty window, kept up to date by `noteToken`. */
  readonly recent: Map<number, number>;
  readonly window: number[];
  readonly bias: ReadonlyMap<number, number>;
}

export function createSamplerState(params: SamplingParams): SamplerState {
  return { params, rng: new Rng(params.seed), recent: new Map(), window: [], bias: new Map(params.logitBias) };
}

export const isGreedy = (params: SamplingParams): boolean => params.temperature <= 0 || params.topK === 1;

const hasPenalties = (p: SamplingParams): boolean => p.repeatPenalty !== 1 || p.presencePenalty !== 0 || p.frequencyPenalty !== 0;

/** True when the argmax of the raw logits is the answer: no bias, no penalty. */
export const isPlainGreedy = (params: SamplingParams): boolean => isGreedy(params) && params.logitBias.length === 0 && !hasPenalties(params);

/** True when the 64 best candidates decide exactly what all logits would: greedy, or top-k first with k <= 64, nothing that lifts other tokens. */
export const isTopKEnough = (params: SamplingParams, nCandidates: number): boolean =>
  params.logitBias.length === 0 && !hasPenalties(params) && (isGreedy(params) || (params.topK > 0 && params.topK <= nCandidates));

/** Adds an emitted or prompt token to the penalty window. Allocates only when penalties are on. */
export function noteToken(state: SamplerState, token: number): void {
  const { params, recent, window } = state;
  if (!hasPenalties(params) || params.repeatLastN === 0) return;
  window.push(token);
  recent.set(token, (recent.get(token) ?? 0) + 1);
  if (params.repeatLastN > 0 && window.length > params.repeatLastN) {
    const old = window.shift() as number;
    const n = (recent.get(old) ?? 1) - 1;
    if (n === 0) recent.delete(old);
    else recent.set(old, n);
  }
}

export class HostSampler {
  readonly #ids: Int32Array;
  readonly #logits: Float32Array;
  readonly #scratch: Float32Array;

  constructor(nVocab: number) {
    this.#ids = new Int32Array(nVocab);
    this.#logits = new Float32Array(nVocab);
    this.#scratch = new Float32Array(nVocab);
  }

  /** Draws from all logits [nVocab]; the row is not changed. */
  fromLogits(row: Float32Array, state: SamplerState): number {
    const { params } = state;
    let logits = row;
    if (state.bias.size > 0 || state.recent.size > 0) {
      logits = this.#scratch;
      logits.set(row);
      for (const [token, bias] of state.bias) if (token < logits.length) logits[token] = (logits[token] as number) + bias;
      penalize(logits, state);
    }
    if (isGreedy(params)) return argmax(logits);
    const k = params.topK > 0 ? Math.min(params.topK, logits.length) : logits.length;
    const n = selectTop(logits, k, this.#ids, this.#logits);
    return this.#draw(n, state);
  }

  /** Draws from device candidates. The caller has checked `isTopKEnough`. */
  fromCandidates(candidates: Candidates, state: SamplerState): number {
    const { params } = state;
    const k = isGreedy(params) ? 1 : Math.min(params.topK, candidates.n);
    const n = selectTop(candidates.logits.subarray(0, candidates.n), k, this.#ids, this.#logits);
    for (let i = 0; i < n; i++) this.#ids[i] = candidates.tokens[this.#ids[i] as number] as number;
    return k === 1 ? (this.#ids[0] as number) : this.#draw(n, state);
  }

  /** The first `n` entries of ids/logits are candidates sorted by falling logit. */
  #draw(n: number, { params, rng }: SamplerState): number {
    const logits = this.#logits;
    let keep = n;
    if (params.topP < 1) keep = keepTopP(logits, keep, params.topP);
    if (params.minP > 0) {
      const least = (logits[0] as number) + Math.log(params.minP);
      let m = 1;
      while (m < keep && (logits[m] as number) >= least) m++;
      keep = m;
    }
    const best = logits[0] as number;
    let total = 0;
    for (let i = 0; i < keep; i++) total += Math.exp(((logits[i] as number) - best) / params.temperature);
    let u = rng.uniform() * total;
    for (let i = 0; i < keep; i++) {
      u -= Math.exp(((logits[i] as number) - best) / params.temperature);
      if (u < 0) return this.#ids[i] as number;
    }
    return this.#ids[keep - 1] as number;
  }
}

/** Index of the largest value; the lowest index wins a tie. */
export function argmax(values: Float32Array): number {
  let best = 0;
  let bestValue = values[0] as number;
  for (let i = 1; i < values.length; i++) {
    const value = values[i] as number;
    if (value > bestValue) {
      bestValue = value;
      best = i;
    }
  }
  return best;
}

/** llama.cpp's rule: a repeated token's logit is divided when positive, multiplied when negative. */
function penalize(logits: Float32Array, { params, recent }: SamplerState): void {
  for (const [token, count] of recent) {
    const logit = logits[token];
    if (logit === undefined) continue;
    const repeated = logit <= 0 ? logit * params.repeatPenalty : logit / params.repeatPenalty;
    logits[token] = repeated - count * params.frequencyPenalty - params.presencePenalty;
  }
}

/** Smallest prefix of sorted candidates whose probability mass reaches p; at least one. */
function keepTopP(logits: Float32Array, n: number, p: number): number {
  const best = logits[0] as number;
  let total = 0;
  for (let i = 0; i < n; i++) total += Math.exp((logits[i] as number) - best);
  let mass = 0;
  for (let i = 0; i < n; i++) {
    mass += Math.exp((logits[i] as number) - best) / total;
    if (mass >= p) return i + 1;
  }
  return n;
}

/**
 * The k largest of `values`, sorted falling (ties: lower index first), into ids and logits. Returns the number written.
 * A bounded min-heap for small k, a full sort when most of the row is wanted.
 */
export function selectTop(values: Float32Array, k: number, ids: Int32Array, logits: Float32Array): number {
  const n = Math.min(k, values.length);
  const before = (a: number, b: number): boolean => {
    const difference = (values[a] as number) - (values[b] as number);
    return difference > 0 || (difference === 0 && a < b);
  };
  if (n * 4 > values.length) {
    for (let i = 0; i < values.length; i++) ids[i] = i;
    ids.subarray(0, values.length).sort((a, b) => (before(a, b) ? -1 : 1));
  } else {
    for (let i = 0; i < n; i++) {
      ids[i] = i;
      siftUp(ids, i, before);
    }
    for (let i = n; i < values.length; i++) {
      if (!before(i, ids[0] as number)) continue;
      ids[0] = i;
      siftDown(ids, 0, n, before);
    }
    for (let end = n - 1; end > 0; end--) {
      const last = ids[end] as number;
      ids[end] = ids[0] as number;
      ids[0] = last;
      siftDown(ids, 0, end, before);
    }
  }
  for (let i = 0; i < n; i++) logits[i] = values[ids[i] as number] as number;
  return n;
}

type Before = (a: number, b: number) => boolean;

// The heap's root is the worst of the kept entries.
function siftUp(heap: Int32Array, start: number, before: Before): void {
  let i = start;
  while (i > 0) {
    const parent = (i - 1) >> 1;
    if (!before(heap[parent] as number, heap[i] as number)) return;
    [heap[parent], heap[i]] = [heap[i] as number, heap[parent] as number];
    i = parent;
  }
}

function siftDown(heap: Int32Array, start: number, n: number, before: Before): void {
  let i = start;
  for (;;) {
    let worst = i;
    for (let child = 2 * i + 1; child <= 2 * i + 2 && child < n; child++) if (before(heap[worst] as number, heap[child] as number)) worst = child;
    if (worst === i) return;
    const swap = heap[i] as number;
    heap[i] = heap[worst] as number;
    heap[worst] = swap;
    i = worst;
  }
}
