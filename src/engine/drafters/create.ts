import type { Backend } from "../backend.ts";
import type { EngineConfig } from "../config.ts";
import type { Drafter } from "./drafter.ts";
import { MtpDrafter } from "./mtp.ts";
import { MtpHeadsDrafter } from "./mtp-heads.ts";

/** The drafter that the backend's heads ask for; undefined without heads or with n_max 0. */
export function createDrafter(backend: Backend, config: EngineConfig, clock: () => number): Drafter | undefined {
  const [head] = backend.heads;
  if (head === undefined || config.nMax === 0) return undefined;
  if (backend.heads.length > 1) return new MtpHeadsDrafter(backend.heads, { nMin: config.nMin, nRingRows: config.nRingRows, clock });
  return new MtpDrafter(head, {
    catchup: config.catchup,
    nMax: config.nMax,
    nMin: config.nMin,
    pMin: config.pMin,
    topK: config.draftTopK,
    topP: config.draftTopP,
    temperature: config.draftTemperature,
    seed: config.seed,
    pad: config.pad,
    clock,
  });
}
