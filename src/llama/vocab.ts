/**
 * Text to tokens and back through libllama. `loadVocab` reads the vocabulary of a file and no weights: what the HTTP
 * process needs. Byte pieces of all tokens are read once into one block, so that pieces of a stream cost no call.
 */
import { UserError } from "../util/errors.ts";
import type { LlamaApi } from "./api.ts";
import { loadLlama } from "./library.ts";
import { loadModel, type Model } from "./model.ts";
import type { Pointer } from "./structs.ts";

export interface TokenizeOptions {
  /** Add the tokens that the model's vocabulary says belong around a text (BOS). */
  readonly addSpecial?: boolean;
  /** Read `<|im_start|>` and the like as their special tokens; off, they are plain text. */
  readonly parseSpecial?: boolean;
}

const MOST_TEXT_BYTES = 2 ** 31 - 1;

export class Vocab implements Disposable {
  readonly nTokens: number;
  readonly #model: Model;
  readonly #api: LlamaApi;
  readonly #ownsModel: boolean;
  #pieces: PieceTable | undefined;
  #endOfGeneration: Uint8Array | undefined;

  constructor(model: Model, ownsModel: boolean) {
    this.#model = model;
    this.#api = model.llama.api;
    this.#ownsModel = ownsModel;
    this.nTokens = model.nVocab;
  }

  /** @throws after close. */
  get pointer(): Pointer {
    return this.#model.vocabPointer;
  }

  /** Token ids of a text. @throws {UserError} when the text is longer than libllama's 2 GiB. */
  tokenize(text: string, options: TokenizeOptions = {}): Int32Array {
    const bytes = Buffer.from(text, "utf8");
    if (bytes.length > MOST_TEXT_BYTES) throw new UserError(`tokenize: a text of ${bytes.length} bytes is longer than ${MOST_TEXT_BYTES}`);
    const { pointer } = this;
    const { addSpecial = false, parseSpecial = false } = options;
    // A token is at least a byte, except those that the vocabulary adds.
    let tokens = new Int32Array(Math.max(32, bytes.length + 8));
    let n = this.#api.llama_tokenize(pointer, bytes, bytes.length, tokens, tokens.length, addSpecial, parseSpecial);
    if (n < 0 && n > -MOST_TEXT_BYTES) {
      tokens = new Int32Array(-n);
      n = this.#api.llama_tokenize(pointer, bytes, bytes.length, tokens, tokens.length, addSpecial, parseSpecial);
    }
    if (n < 0) throw new UserError(`tokenize: libllama cannot tokenize a text of ${bytes.length} bytes`);
    return tokens.slice(0, n);
  }

  /** Bytes of the text of tokens. Special tokens give none unless `special`. */
  detokenize(tokens: ArrayLike<number>, special = false): Uint8Array {
    const pieces: Uint8Array[] = [];
    for (let i = 0; i < tokens.length; i++) pieces.push(this.tokenBytes(tokens[i] as number, special));
    return Buffer.concat(pieces);
  }

  /** Bytes of one token; a view that must not be changed. */
  tokenBytes(token: number, special = false): Uint8Array {
    this.#checkToken(token);
    const table = (this.#pieces ??= readPieces(this.#api, this.pointer, this.nTokens));
    if (!special && table.isSpecial[token] === 1) return nothing;
    return table.bytes.subarray(table.starts[token], table.starts[token + 1]);
  }

  isEndOfGeneration(token: number): boolean {
    this.#checkToken(token);
    this.#endOfGeneration ??= Uint8Array.from({ length: this.nTokens }, (_, id) => Number(this.#api.llama_vocab_is_eog(this.pointer, id)));
    return this.#endOfGeneration[token] === 1;
  }

  /** All tokens that end a generation. */
  endOfGenerationTokens(): number[] {
    return Array.from({ length: this.nTokens }, (_, id) => id).filter((id) => this.isEndOfGeneration(id));
  }

  /** Beginning of sequence, end of sequence, end of turn: the token and its text; undefined when the model has none. */
  get bos(): SpecialToken | undefined {
    return this.#special(this.#api.llama_vocab_bos(this.pointer));
  }

  get eos(): SpecialToken | undefined {
    return this.#special(this.#api.llama_vocab_eos(this.pointer));
  }

  get eot(): SpecialToken | undefined {
    return this.#special(this.#api.llama_vocab_eot(this.pointer));
  }

  get addsBos(): boolean {
    return this.#api.llama_vocab_get_add_bos(this.pointer);
  }

  /** The Jinja template of the file, as it stands there. */
  get chatTemplate(): string | undefined {
    return this.#model.chatTemplate();
  }

  get nCtxTrain(): number {
    return this.#model.nCtxTrain;
  }

  /** A scalar metadata value of the file as text. */
  metadata(key: string): string | undefined {
    return this.#model.metadata(key);
  }

  #special(id: number): SpecialToken | undefined {
    return id < 0 ? undefined : { id, text: this.#api.llama_vocab_get_text(this.pointer, id) ?? "" };
  }

  #checkToken(token: number): void {
    if (!Number.isInteger(token) || token < 0 || token >= this.nTokens) throw new Error(`token ${token} is not in 0..${this.nTokens - 1}`);
  }

  close(): void {
    if (this.#ownsModel) this.#model.close();
  }

  [Symbol.dispose](): void {
    this.close();
  }
}

export interface SpecialToken {
  readonly id: number;
  readonly text: string;
}

interface PieceTable {
  readonly bytes: Uint8Array;
  /** Token i is bytes starts[i] to starts[i + 1]. */
  readonly starts: Uint32Array;
  readonly isSpecial: Uint8Array;
}

const nothing = new Uint8Array(0);

function readPieces(api: LlamaApi, vocab: Pointer, nTokens: number): PieceTable {
  const starts = new Uint32Array(nTokens + 1);
  const isSpecial = new Uint8Array(nTokens);
  let block = Buffer.alloc(Math.max(4096, 8 * nTokens));
  let buffer = Buffer.alloc(1024);
  let used = 0;
  for (let id = 0; id < nTokens; id++) {
    starts[id] = used;
    let n = api.llama_token_to_piece(vocab, id, buffer, buffer.length, 0, true);
    if (n < 0) {
      buffer = Buffer.alloc(-n);
      n = api.llama_token_to_piece(vocab, id, buffer, buffer.length, 0, true);
    }
    isSpecial[id] = n > 0 && api.llama_token_to_piece(vocab, id, buffer, buffer.length, 0, false) === 0 ? 1 : 0;
    if (isSpecial[id] === 1) n = api.llama_token_to_piece(vocab, id, buffer, buffer.length, 0, true);
    if (used + n > block.length) block = Buffer.concat([block, Buffer.alloc(block.length)]);
    buffer.copy(block, used, 0, n);
    used += n;
  }
  starts[nTokens] = used;
  return { bytes: new Uint8Array(block.subarray(0, used)), starts, isSpecial };
}

/**
 * The vocabulary of a GGUF file, without its weights.
 * @throws {UserError} when the file cannot be read or libllama does not know its tokenizer.
 */
export function loadVocab(modelPath: string, options: { llamaDir?: string | undefined } = {}): Vocab {
  const llama = loadLlama(options);
  return new Vocab(loadModel(llama, modelPath, { vocabOnly: true }), true);
}
