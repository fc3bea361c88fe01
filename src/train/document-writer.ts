/**
 * The target writes documents: several sequences at once, one row each a decode, hidden rows kept as they come.
 *
 * A document is its opening, perhaps sampled on by the model, then the target's own continuation. Rows of a decode come
 * back in the order of the forwards, so every decode here is one forward: either one row of each sequence, or several
 * rows of one sequence alone (an opening, the end of a user's turn).
 */
import { DecodeError, type DecodeContext } from "../engine/backend.ts";
import { greedySampling } from "../engine/request.ts";
import { createSamplerState, HostSampler, type SamplerState } from "../engine/sampler.ts";
import { encodeFloats } from "../hf/elements.ts";
import type { DocumentPlan } from "./document-source.ts";
import type { CapturedDocument } from "./shards.ts";

/** Text and tokens, as the capture needs them. */
export interface CaptureVocab {
  tokenize(text: string, parseSpecial: boolean): Int32Array;
  text(tokens: Int32Array): string;
  isEndOfGeneration(token: number): boolean;
}

export interface OpeningTokens {
  readonly tokens: Int32Array;
  /** Sampled on by the model: at most so many tokens. */
  readonly nSampled: number;
  /** Put after the sampled part, without the end-of-generation token the model may have given. */
  readonly closing: Int32Array;
}

export interface WriterOptions {
  readonly maxPrompt: number;
  readonly maxNew: number;
  readonly openingTemperature: number;
  /** Input rows of this many tokens in all are kept too. */
  readonly nLayerInputRows: number;
}

export interface LayerInputReader {
  rows(nRows: number): Float32Array;
  stop(): void;
}

type Phase = "opening" | "continuation";

interface Slot {
  readonly seq: number;
  readonly plan: DocumentPlan;
  readonly tokens: Int32Array;
  readonly hidden: Uint16Array;
  readonly layerInput: Uint16Array | undefined;
  readonly closing: Int32Array;
  phase: Phase;
  sampler: SamplerState;
  /** Tokens there are, and how many of them are decoded. */
  n: number;
  nDecoded: number;
  nPrompt: number;
  /** Token count at which the phase ends. */
  limit: number;
}

export interface WrittenCounts {
  nDecodes: number;
  nGenerated: number;
  nExcluded: number;
}

export class DocumentWriter {
  readonly counts: WrittenCounts = { nDecodes: 0, nGenerated: 0, nExcluded: 0 };
  readonly #context: DecodeContext;
  readonly #vocab: CaptureVocab;
  readonly #options: WriterOptions;
  readonly #isExcluded: (promptText: string) => boolean;
  readonly #sampler: HostSampler;
  readonly #slots: (Slot | undefined)[];
  #layerInput: LayerInputReader | undefined;
  #nLayerInputRows = 0;

  constructor(context: DecodeContext, vocab: CaptureVocab, options: WriterOptions, isExcluded: (promptText: string) => boolean, layerInput?: LayerInputReader) {
    this.#context = context;
    this.#vocab = vocab;
    this.#options = options;
    this.#isExcluded = isExcluded;
    this.#sampler = new HostSampler(context.nVocab);
    this.#slots = Array.from({ length: context.limits.nSeq }, () => undefined);
    this.#layerInput = layerInput;
  }

  get nActive(): number {
    return this.#slots.filter((slot) => slot !== undefined).length;
  }

  get hasRoom(): boolean {
    return this.nActive < this.#slots.length;
  }

  /** Starts a document in a free slot. A document whose prompt is excluded or empty is dropped: false. */
  start(plan: DocumentPlan, opening: OpeningTokens): boolean {
    const given = opening.tokens.subarray(0, this.#options.maxPrompt);
    if (given.length === 0) return false;
    if (opening.nSampled === 0 && this.#isExcluded(this.#vocab.text(given))) {
      this.counts.nExcluded++;
      return false;
    }
    const seq = this.#slots.indexOf(undefined);
    const capacity = given.length + opening.nSampled + opening.closing.length + this.#options.maxNew;
    const { nEmbd } = this.#context;
    const slot: Slot = {
      seq,
      plan,
      tokens: new Int32Array(capacity),
      hidden: new Uint16Array(capacity * nEmbd),
      layerInput: this.#layerInput === undefined ? undefined : new Uint16Array(capacity * nEmbd),
      closing: opening.closing,
      phase: opening.nSampled > 0 ? "opening" : "continuation",
      sampler: createSamplerState({ ...greedySampling, topK: 64, topP: 1, minP: 0, seed: plan.seed, temperature: opening.nSampled > 0 ? this.#options.openingTemperature : plan.temperature }),
      n: given.length,
      nDecoded: 0,
      nPrompt: given.length,
      limit: given.length + (opening.nSampled > 0 ? opening.nSampled : this.#options.maxNew),
    };
    slot.tokens.set(given);
    this.#slots[seq] = slot;
    return true;
  }

  /** One decode. Documents that ended are returned, their slots free. */
  step(): CapturedDocument[] {
    const long = this.#slots.find((slot) => slot !== undefined && slot.n - slot.nDecoded > 1);
    const batch = long === undefined ? this.#slots.filter((slot) => slot !== undefined) : [long];
    if (batch.length === 0) return [];
    const { rows } = this.#context;
    rows.n = 0;
    for (const slot of batch) this.#addRows(slot);
    try {
      this.#context.decode();
    } catch (error) {
      if (error instanceof DecodeError && error.code === 1) throw new Error(`${error.message} (capture holds ${batch.length} sequences)`, { cause: error });
      throw error;
    }
    this.counts.nDecodes++;
    this.#keepRows(batch);
    let row = 0;
    const done: CapturedDocument[] = [];
    for (const slot of batch) {
      row += slot.n - slot.nDecoded;
      slot.nDecoded = slot.n;
      const token = slot.sampler.params.temperature > 0 ? this.#sampler.fromLogits(this.#context.logits(row - 1), slot.sampler) : this.#context.greedyToken(row - 1);
      const document = this.#advance(slot, token);
      if (document !== undefined) done.push(document);
    }
    return done;
  }

  #addRows(slot: Slot): void {
    const { rows } = this.#context;
    for (let i = slot.nDecoded; i < slot.n; i++) {
      rows.tokens[rows.n] = slot.tokens[i] as number;
      rows.positions[rows.n] = i;
      rows.seqs[rows.n] = slot.seq;
      rows.outputs[rows.n] = i === slot.n - 1 ? 1 : 0;
      rows.n++;
    }
  }

  #keepRows(batch: readonly Slot[]): void {
    const { nEmbd } = this.#context;
    const nRows = this.#context.rows.n;
    const hidden = this.#context.hiddenAll();
    const inputs = this.#layerInput?.rows(nRows);
    let row = 0;
    const keep = (from: Float32Array, into: Uint16Array, slot: Slot, n: number): void =>
      encodeFloats(from.subarray(row * nEmbd, (row + n) * nEmbd), "F16", new Uint8Array(into.buffer, 2 * slot.nDecoded * nEmbd, 2 * n * nEmbd));
    for (const slot of batch) {
      const n = slot.n - slot.nDecoded;
      keep(hidden, slot.hidden, slot, n);
      if (inputs !== undefined && slot.layerInput !== undefined) keep(inputs, slot.layerInput, slot, n);
      row += n;
    }
    if (inputs === undefined) return;
    this.#nLayerInputRows += nRows;
    if (this.#nLayerInputRows < this.#options.nLayerInputRows) return;
    this.#layerInput?.stop();
    this.#layerInput = undefined;
  }

  /** Takes the next token; returns the document when it is finished. */
  #advance(slot: Slot, token: number): CapturedDocument | undefined {
    const isEnd = this.#vocab.isEndOfGeneration(token);
    if (slot.phase === "continuation" || !isEnd) slot.tokens[slot.n++] = token;
    this.counts.nGenerated++;
    if (!isEnd && slot.n < slot.limit) return undefined;
    if (slot.phase === "continuation") return this.#finish(slot);
    if (slot.closing.length === 0 && isEnd) return this.#drop(slot);
    slot.tokens.set(slot.closing, slot.n);
    slot.n += slot.closing.length;
    slot.nPrompt = slot.n;
    slot.limit = slot.n + this.#options.maxNew;
    slot.phase = "continuation";
    slot.sampler = createSamplerState({ ...slot.sampler.params, temperature: slot.plan.temperature, seed: slot.plan.seed ^ 0x5bd1e995 });
    if (!this.#isExcluded(this.#vocab.text(slot.tokens.subarray(0, slot.n)))) return undefined;
    this.counts.nExcluded++;
    return this.#drop(slot);
  }

  #drop(slot: Slot): undefined {
    this.#context.clear(slot.seq);
    this.#slots[slot.seq] = undefined;
    return undefined;
  }

  #finish(slot: Slot): CapturedDocument {
    this.#drop(slot);
    const nEmbd = this.#context.nEmbd;
    return {
      index: slot.plan.index,
      half: slot.plan.half,
      tokens: slot.tokens.slice(0, slot.n),
      nPrompt: slot.nPrompt,
      isSampled: slot.plan.temperature > 0,
      isHeldOut: slot.plan.isHeldOut,
      hidden: slot.hidden.slice(0, slot.n * nEmbd),
      // A document whose rows stopped being kept half-way has none.
      layerInput: slot.layerInput === undefined || this.#layerInput === undefined ? undefined : slot.layerInput.slice(0, slot.n * nEmbd),
    };
  }
}
