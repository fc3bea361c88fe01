/**
 * The checks before a decode. libllama aborts the process for some of these, answers -1 for others, and accepts some
 * that would be wrong; here each is an error and nothing has changed. Also counts outputs: `outputIndex[i]` is the
 * place of row i among the output rows, or -1.
 */
import { DecodeError, type ContextLimits, type Rows } from "../engine/backend.ts";

export interface SequenceState {
  /** Highest position held by each sequence, -1 when empty. */
  readonly last: Int32Array;
  /** Rows of each sequence in its last decode, 0 once they were rolled back. */
  readonly nLastRows: Int32Array;
  /** The forward that wrote each sequence's snapshots. A later one may move the state away from them. */
  readonly forwardOf: Float64Array;
  nForwards: number;
  /** The number of the check that met the sequence last: tells whether its rows are adjacent. */
  readonly metIn: Float64Array;
  nChecks: number;
}

export function createSequenceState(nSeq: number): SequenceState {
  return { last: new Int32Array(nSeq).fill(-1), nLastRows: new Int32Array(nSeq), forwardOf: new Float64Array(nSeq), nForwards: 0, metIn: new Float64Array(nSeq), nChecks: 0 };
}

const bad = (message: string): DecodeError => new DecodeError(-1, message);

/**
 * hot: once a decode, one pass over the rows. Returns the number of output rows. `maySkip`: a draft context may leave
 * positions out (rows whose hidden state is gone), which libllama takes for models with M-RoPE.
 * @throws {DecodeError} code -1, or 1 past the end of the context.
 */
export function checkRows(rows: Rows, limits: ContextLimits, nVocab: number, state: SequenceState, outputIndex: Int32Array, maySkip: boolean): number {
  const { n } = rows;
  if (n <= 0) throw bad("decode of no rows");
  if (n > limits.nRows) throw bad(`decode of ${n} rows; --batch-size allows ${limits.nRows}`);
  const nCheck = ++state.nChecks;
  let nOutputs = 0;
  let seq = -1;
  let expected = 0;
  let nSeqOutputs = 0;
  for (let i = 0; i < n; i++) {
    const token = rows.tokens[i] as number;
    const position = rows.positions[i] as number;
    if (rows.seqs[i] !== seq || i === 0) {
      seq = rows.seqs[i] as number;
      if (seq < 0 || seq >= limits.nSeq) throw bad(`row ${i}: sequence ${seq} is not in 0..${limits.nSeq - 1}`);
      if (state.metIn[seq] === nCheck) throw bad(`row ${i}: the rows of sequence ${seq} are not adjacent`);
      state.metIn[seq] = nCheck;
      expected = (state.last[seq] as number) + 1;
      nSeqOutputs = 0;
    }
    if (token < 0 || token >= nVocab) throw bad(`row ${i}: token ${token} is not in 0..${nVocab - 1}`);
    if (position !== expected && !(maySkip && position > expected)) throw bad(`row ${i}: position ${position} of sequence ${seq} does not continue it; ${expected} is next`);
    if (position >= limits.nCtxSeq) throw new DecodeError(1, `sequence ${seq} is full at ${limits.nCtxSeq} tokens; raise --ctx-size`);
    expected = position + 1;
    if (rows.outputs[i] === 0) outputIndex[i] = -1;
    else {
      outputIndex[i] = nOutputs++;
      if (++nSeqOutputs > limits.nOutputsPerSeq) throw bad(`sequence ${seq} wants more than ${limits.nOutputsPerSeq} output rows in one decode`);
    }
  }
  return nOutputs;
}

/**
 * hot: once a successful decode. `seqOfRow` keeps the sequences, since the caller may fill the rows anew before it reads.
 * Counts forwards as libllama cuts them (engine/split.ts), rather too many where the rows do not fit into one or are ragged.
 */
export function recordRows(rows: Rows, limits: ContextLimits, state: SequenceState, seqOfRow: Int32Array): void {
  const isLong = rows.n > limits.nUbatch;
  const isApart = limits.nCtxSeq !== limits.nCells;
  let previous = -1;
  let isRagged = false;
  state.nForwards++;
  for (let i = 0; i < rows.n; i++) {
    const seq = rows.seqs[i] as number;
    if (seq !== previous) {
      if (i > 0 && (isLong || (isApart && seq !== previous + 1))) state.nForwards++;
      state.forwardOf[seq] = state.nForwards;
      state.nLastRows[seq] = 0;
    }
    previous = seq;
    seqOfRow[i] = seq;
    state.nLastRows[seq] = (state.nLastRows[seq] as number) + 1;
    state.last[seq] = rows.positions[i] as number;
  }
  const nEach = state.nLastRows[previous];
  for (let i = 0; i < rows.n; i++) isRagged ||= state.nLastRows[rows.seqs[i] as number] !== nEach;
  if (isRagged) state.nForwards++;
}
