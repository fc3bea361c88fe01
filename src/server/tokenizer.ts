/** What the HTTP side needs of a vocabulary: text in and out of tokens, and the model's chat template. */
export interface Tokenizer {
  readonly nVocab: number;
  /**
   * `addSpecial` adds what the model wants at the start (BOS); `parseSpecial` turns texts such as <|im_start|> into
   * their tokens, which only a rendered template may do.
   */
  tokenize(text: string, options: { readonly addSpecial: boolean; readonly parseSpecial: boolean }): Int32Array;
  /** Bytes of a token as text; special tokens give none unless `special`. A token may hold a part of a character. */
  tokenBytes(token: number, special: boolean): Uint8Array;
  isEndOfGeneration(token: number): boolean;
  /** Jinja source from the model file; undefined when it has none. */
  readonly chatTemplate: string | undefined;
  /** Texts that templates may ask for; empty when the model has none. */
  readonly bosText: string;
  readonly eosText: string;
}
