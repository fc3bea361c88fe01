/** Messages between the server and the engine process. Structured clone; every event message holds the events of one step. */
import type { EngineEvent, EngineInfo, EngineSnapshot, GenerateRequest } from "../engine/request.ts";

export type ToEngine =
  | { readonly kind: "start"; readonly options: unknown }
  | { readonly kind: "submit"; readonly request: GenerateRequest }
  | { readonly kind: "cancel"; readonly id: number }
  | { readonly kind: "check"; readonly id: number }
  | { readonly kind: "close" };

export type FromEngine =
  | { readonly kind: "progress"; readonly fraction: number; readonly what: string }
  | { readonly kind: "ready"; readonly info: EngineInfo; readonly snapshot: EngineSnapshot }
  /** The engine cannot be made: a wrong file, no memory. `isUserError`: the message is for people as it is. */
  | { readonly kind: "failed"; readonly message: string; readonly isUserError: boolean; readonly exitCode: 1 | 2 }
  | { readonly kind: "events"; readonly events: readonly EngineEvent[] }
  | { readonly kind: "snapshot"; readonly snapshot: EngineSnapshot }
  /** Sign of life while there is nothing to do, or while a step takes long. */
  | { readonly kind: "alive" }
  /** The backend is lost in the middle of the work; the process ends after this. */
  | { readonly kind: "lost"; readonly message: string }
  | { readonly kind: "checked"; readonly id: number; readonly problem: string | undefined };

/** Exit code of an engine process that lost its backend (EX_SOFTWARE of sysexits.h). */
export const EXIT_LOST = 70;
