/**
 * A GBNF grammar as libllama's grammar sampler. The sampler throws C++ exceptions or aborts when it is given a token
 * that its state does not allow, and its parser recurses without a limit: both would end the process, so tokens are
 * asked for before they are accepted and nesting is counted before parsing.
 */
import koffi from "koffi";
import type { Grammar } from "../engine/backend.ts";
import { UserError } from "../util/errors.ts";
import type { LlamaApi } from "./api.ts";
import type { Pointer } from "./structs.ts";
import type { Vocab } from "./vocab.ts";

const MOST_BYTES = 1 << 18;
const MOST_NESTING = 100;

/** llama_token_data: id int32, logit float, p float. */
const WORDS = 3;

/** Candidates in native layout: llama_token_data_array over llama_token_data[n]. */
class TokenDataArray {
  readonly ids: Int32Array;
  readonly logits: Float32Array;
  readonly struct: BigInt64Array;

  constructor(n: number) {
    const data = new ArrayBuffer(Math.max(128, 4 * WORDS * n));
    this.ids = new Int32Array(data);
    this.logits = new Float32Array(data);
    for (let i = 0; i < n; i++) this.ids[WORDS * i] = i;
    // data pointer, size, selected, sorted
    this.struct = new BigInt64Array(new ArrayBuffer(128), 0, 4);
    this.struct.set([koffi.address(this.ids), BigInt(n), -1n, 0n]);
  }
}

class LlamaGrammar implements Grammar {
  readonly #api: LlamaApi;
  readonly #all: () => TokenDataArray;
  readonly #one = new TokenDataArray(1);
  readonly #onClose: (grammar: Grammar) => void;
  #sampler: Pointer | undefined;

  constructor(api: LlamaApi, sampler: Pointer, all: () => TokenDataArray, onClose: (grammar: Grammar) => void) {
    this.#onClose = onClose;
    this.#api = api;
    this.#sampler = sampler;
    this.#all = all;
  }

  get #pointer(): Pointer {
    if (this.#sampler === undefined) throw new Error("the grammar is closed");
    return this.#sampler;
  }

  allows(token: number): boolean {
    this.#one.ids[0] = token;
    this.#one.logits[1] = 0;
    this.#api.llama_sampler_apply(this.#pointer, this.#one.struct);
    return this.#one.logits[1] === 0;
  }

  mask(logits: Float32Array): void {
    const all = this.#all();
    for (let i = 0; i < logits.length; i++) all.logits[WORDS * i + 1] = 0;
    this.#api.llama_sampler_apply(this.#pointer, all.struct);
    for (let i = 0; i < logits.length; i++) if (all.logits[WORDS * i + 1] !== 0) logits[i] = -Infinity;
  }

  accept(token: number): void {
    if (!this.allows(token)) throw new Error(`the grammar does not allow token ${token} here`);
    this.#api.llama_sampler_accept(this.#pointer, token);
  }

  close(): void {
    if (this.#sampler === undefined) return;
    this.#api.llama_sampler_free(this.#sampler);
    this.#sampler = undefined;
    this.#onClose(this);
  }
}

const shared = new WeakMap<Vocab, TokenDataArray>();

/**
 * Must be closed before the vocabulary's model; `onClose` is called when it is.
 * @throws {UserError} when the grammar is too large, too deep, or does not parse; the root symbol must be `root`.
 */
export function createGrammar(vocab: Vocab, api: LlamaApi, gbnf: string, onClose: (grammar: Grammar) => void = () => {}): Grammar {
  const nBytes = Buffer.byteLength(gbnf);
  if (nBytes > MOST_BYTES) throw new UserError(`the grammar has ${nBytes} bytes, ${MOST_BYTES} are allowed; make it smaller`);
  if (gbnf.trim() === "") throw new UserError("the grammar is empty");
  if (gbnf.includes("\0")) throw new UserError("the grammar holds a NUL character");
  const depth = nesting(gbnf);
  if (depth > MOST_NESTING) throw new UserError(`the grammar nests ${depth} groups, ${MOST_NESTING} are allowed; name inner groups as rules`);
  const sampler = api.llama_sampler_init_grammar(vocab.pointer, gbnf, "root");
  if (sampler === null) throw new UserError("the grammar does not parse; it must be GBNF with a rule named root and no left recursion");
  return new LlamaGrammar(api, sampler, () => {
    let all = shared.get(vocab);
    if (all === undefined) shared.set(vocab, (all = new TokenDataArray(vocab.nTokens)));
    return all;
  }, onClose);
}

/** Deepest level of parentheses outside of literals, character classes and comments. */
export function nesting(gbnf: string): number {
  let depth = 0;
  let deepest = 0;
  let close = "";
  for (let i = 0; i < gbnf.length; i++) {
    const c = gbnf[i] as string;
    if (close !== "") {
      if (c === "\\" && close !== "\n") i++;
      else if (c === close) close = "";
    } else if (c === '"') close = '"';
    else if (c === "[") close = "]";
    else if (c === "#") close = "\n";
    else if (c === "(") deepest = Math.max(deepest, ++depth);
    else if (c === ")") depth--;
  }
  return deepest;
}
