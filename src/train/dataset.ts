/** Captured documents as the trainer reads them. */

/** One document: its tokens and the target's hidden rows (post-final-norm, F16). */
export interface HiddenRows {
  readonly tokens: Int32Array;
  /** Tokens 0 to nPrompt - 1 were given, the rest are the target's own. */
  readonly nPrompt: number;
  readonly nEmbd: number;
  /** Rows start to start + n - 1, F16 [n, nEmbd]; valid until the next call. Row t is the state after token t; the last token has none. */
  rows(start: number, n: number): Uint16Array;
}
