/**
 * The engine requests of one API request (n choices, several prompts) as one thing: all are queued or none, a client
 * that leaves or a time that is over cancels all.
 */
import type { EngineClient, EngineEvent, FinishEvent, GenerateRequest } from "../engine/request.ts";
import { ApiError, badRequest } from "./api-error.ts";

export interface JobHandlers {
  /** Events of choice `index`, in order; ends with one finish event each. Not called after `onFailure`. */
  onEvent(index: number, event: EngineEvent): void;
  /** Every choice has ended well. */
  onDone(finishes: readonly FinishEvent[]): void;
  /** A choice failed, or the time is over; the others are cancelled. */
  onFailure(error: ApiError): void;
}

export class GenerationJob {
  readonly #engine: EngineClient;
  readonly #handlers: JobHandlers;
  readonly #ids: readonly number[];
  readonly #finishes: (FinishEvent | undefined)[];
  #nOpen: number;
  #isOver = false;
  #timer: NodeJS.Timeout | undefined;

  /** @throws {EngineUnavailable} when not all of the requests could be queued; then none is. */
  constructor(engine: EngineClient, requests: readonly GenerateRequest[], handlers: JobHandlers, timeoutMs: number) {
    this.#engine = engine;
    this.#handlers = handlers;
    this.#ids = requests.map((request) => request.id);
    this.#finishes = requests.map(() => undefined);
    this.#nOpen = requests.length;
    if (timeoutMs > 0) this.#timer = setTimeout(() => this.#fail(timeoutError(timeoutMs)), timeoutMs);
    try {
      engine.submit(requests, (index, event) => this.#receive(index, event));
    } catch (error) {
      this.#end();
      throw error;
    }
  }

  /** The client left: frees every slot at the next step. Nothing is told to the handlers any more. */
  cancel(): void {
    if (this.#isOver) return;
    this.#end();
    for (const id of this.#ids) this.#engine.cancel(id);
  }

  #receive(index: number, event: EngineEvent): void {
    if (this.#isOver) return;
    if (event.kind === "finish" && (event.reason === "error" || event.reason === "abort")) {
      this.#fail(finishError(event));
      return;
    }
    this.#handlers.onEvent(index, event);
    if (event.kind !== "finish") return;
    this.#finishes[index] = event;
    if (--this.#nOpen > 0) return;
    this.#end();
    this.#handlers.onDone(this.#finishes as FinishEvent[]);
  }

  #fail(error: ApiError): void {
    if (this.#isOver) return;
    this.cancel();
    this.#handlers.onFailure(error);
  }

  #end(): void {
    this.#isOver = true;
    clearTimeout(this.#timer);
  }
}

function timeoutError(timeoutMs: number): ApiError {
  return new ApiError(504, `the request took longer than ${timeoutMs / 1000} s, the limit of this server; ask for fewer tokens`, { code: "timeout" });
}

/** A refusal is the client's to mend; else the engine died, and the client may send the request again. */
function finishError(event: FinishEvent): ApiError {
  if (event.isRefusal === true) return badRequest(event.message ?? "the engine cannot run this request", undefined, "unsupported_request");
  return new ApiError(503, event.message ?? "the engine ended the request", { code: "engine_error", retryAfterS: 1 });
}
