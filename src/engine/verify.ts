/**
 * Verification: how many draft tokens the target agrees with. Pure.
 *
 * Greedy draft, one target token a row: accept while they are equal, then the target's own token of the first row that
 * differs (the correction), or of the row after the last draft token (the bonus). With the target's token sampled at each
 * row this keeps the target's distribution exactly, whatever the draft is: the draft never influences what is drawn
 * (Leviathan et al. 2023 accept more drafts when both distributions are known; a greedy draft has no distribution to use).
 */

/**
 * @param draft draft tokens, of which the first `nDraft` count
 * @param targetToken the target's token of verify row i; called for rows 0..result in order, exactly once each
 * @param onToken receives the tokens to emit in order; false stops (end of the request inside an accepted run)
 * @returns the number of accepted draft tokens among those emitted
 */
export function verifyRows(draft: Int32Array, nDraft: number, targetToken: (row: number) => number, onToken: (token: number) => boolean): number {
  let row = 0;
  for (;;) {
    const token = targetToken(row);
    const isAccepted = row < nDraft && token === draft[row];
    if (!onToken(token)) return isAccepted ? row + 1 : row;
    if (!isAccepted) return row;
    row++;
  }
}

/** Number accepted when acceptance is drawn: P(at least i + 1 accepted) = rates[i], so `rates` are unconditional and must not rise. */
export function drawAcceptance(rates: readonly number[], nDraft: number, uniform: number): number {
  let n = 0;
  while (n < nDraft && uniform < (rates[n] ?? 0)) n++;
  return n;
}
