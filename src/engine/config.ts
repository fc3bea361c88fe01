/** How an engine runs, apart from the backend it runs on. */
import type { Catchup } from "./drafters/mtp.ts";
import type { VerifyMode } from "./verifier.ts";

export interface EngineConfig {
  readonly nMax: number;
  readonly nMin: number;
  readonly pMin: number;
  readonly draftTopK: number;
  readonly draftTopP: number;
  readonly draftTemperature: number;
  readonly gate: "adaptive" | "fixed";
  readonly verify: VerifyMode;
  readonly catchup: Catchup;
  readonly pad: boolean;
  /** Leave a prompt's last token to the decode step where that keeps the captured graph. */
  readonly decodeLast: boolean;
  /** Go on decoding the slot of an ended request for a moment. */
  readonly holdShape: boolean;
  /** Unconditional acceptance rates to draw from; the output is then not model text. */
  readonly syntheticRates: readonly number[] | undefined;
  /** Requests that wait for a slot; one more is refused. */
  readonly maxQueue: number;
  /** Longest time that a prompt waits to be read together with others. */
  readonly prefillWaitMs: number;
  readonly cachePrompt: boolean;
  /** Memory for saved prompts; 0: none are saved. */
  readonly cacheRamBytes: number;
  /** Hidden rows a slot keeps for the head. */
  readonly nRingRows: number;
  readonly seed: number;
}

export const defaultEngineConfig: EngineConfig = {
  nMax: 0,
  nMin: 0,
  pMin: 0,
  draftTopK: 0,
  draftTopP: 1,
  draftTemperature: 0,
  gate: "fixed",
  verify: "batched",
  catchup: "fused",
  pad: false,
  decodeLast: false,
  holdShape: false,
  syntheticRates: undefined,
  maxQueue: 1024,
  prefillWaitMs: 0,
  cachePrompt: false,
  cacheRamBytes: 0,
  nRingRows: 512,
  seed: 1,
};
