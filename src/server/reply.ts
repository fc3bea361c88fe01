/**
 * Runs a job for one client and answers it: as one JSON body, or as a stream that begins when the request has a slot.
 * Until then every error has its own status; afterwards it is an event in the stream.
 */
import type { IncomingMessage, ServerResponse } from "node:http";
import { RESPONSE_ALREADY_SENT } from "@hono/node-server/utils/response";
import type { EngineEvent, FinishEvent, GenerateRequest } from "../engine/request.ts";
import { ApiError } from "./api-error.ts";
import { GenerationJob, type JobHandlers } from "./generation-job.ts";
import type { ReplyFormat } from "./reply-format.ts";
import type { ServerContext } from "./server-context.ts";
import type { Outcome } from "./server-stats.ts";
import { SseWriter } from "./sse.ts";

export interface ReplyOptions {
  readonly context: ServerContext;
  readonly requests: readonly GenerateRequest[];
  readonly format: ReplyFormat;
  readonly isStream: boolean;
  /** For the log: "chat" or "completion". */
  readonly endpoint: string;
  readonly apiId: string;
  readonly incoming: IncomingMessage;
  readonly outgoing: ServerResponse;
}

/** @throws {ApiError | EngineUnavailable} while nothing has been sent. */
export async function reply(options: ReplyOptions): Promise<Response> {
  return new Promise((resolve, reject) => {
    const client = options.isStream ? new StreamingClient(options, resolve, reject) : new WaitingClient(options, resolve, reject);
    client.start();
  });
}

abstract class Client implements JobHandlers {
  protected readonly options: ReplyOptions;
  readonly #startMs = performance.now();
  #firstTokenMs = 0;
  #nTokens = 0;
  #job: GenerationJob | undefined;
  #isOver = false;

  constructor(options: ReplyOptions) {
    this.options = options;
  }

  start(): void {
    const { context, requests, outgoing } = this.options;
    outgoing.once("close", () => this.#onClose());
    context.stats.nActive++;
    try {
      this.#job = new GenerationJob(context.engine, requests, this, context.settings.timeoutMs);
    } catch (error) {
      this.#isOver = true;
      context.stats.nActive--;
      context.stats.outcomes.rejected++;
      this.refuse(error);
    }
  }

  onEvent(index: number, event: EngineEvent): void {
    const { format, context } = this.options;
    if (event.kind === "start") this.begin();
    else if (event.kind === "finish") this.show(format.finish(index, event));
    else {
      if (this.#firstTokenMs === 0) {
        this.#firstTokenMs = performance.now();
        context.stats.firstToken(this.#firstTokenMs - this.#startMs);
      }
      this.#nTokens += event.tokens.length;
      context.stats.nTokensDelivered += event.tokens.length;
      this.show(format.tokens(index, event));
    }
  }

  onDone(finishes: readonly FinishEvent[]): void {
    this.complete(finishes);
    if (this.#nTokens > 1) this.options.context.stats.tpotS.add((performance.now() - this.#firstTokenMs) / 1000 / (this.#nTokens - 1));
    this.#end("ok", finishes);
  }

  onFailure(error: ApiError): void {
    this.#end("failed", [], error.message);
    this.refuse(error);
  }

  /** The socket closed: after the reply that is the normal end, before it the client left. */
  #onClose(): void {
    if (this.#isOver) return;
    this.#job?.cancel();
    this.#end(this.isSlow ? "slow_client" : "disconnected", []);
    this.refuse(new ApiError(499, "the client left"));
  }

  #end(outcome: Outcome, finishes: readonly FinishEvent[], message?: string): void {
    if (this.#isOver) return;
    this.#isOver = true;
    const { context, endpoint, apiId, requests } = this.options;
    const durationMs = performance.now() - this.#startMs;
    context.stats.nActive--;
    context.stats.outcomes[outcome]++;
    context.stats.durationS.add(durationMs / 1000);
    const drafts = finishes.map((f) => f.draft);
    context.logger.info(endpoint, {
      id: apiId,
      outcome,
      nPrompt: requests.reduce((n, r) => n + r.prompt.length, 0),
      nOutput: this.#nTokens,
      nDrafted: drafts.reduce((n, d) => n + d.nDrafted, 0),
      nAccepted: drafts.reduce((n, d) => n + d.nAccepted, 0),
      ...(this.#firstTokenMs > 0 ? { ttftMs: Math.round(this.#firstTokenMs - this.#startMs) } : {}),
      durationMs: Math.round(durationMs),
      ...(message === undefined ? {} : { error: message }),
    });
  }

  protected abstract readonly isSlow: boolean;
  protected abstract begin(): void;
  protected abstract show(chunks: readonly object[]): void;
  protected abstract complete(finishes: readonly FinishEvent[]): void;
  protected abstract refuse(error: unknown): void;
}

type Resolve = (response: Response) => void;
type Reject = (error: unknown) => void;

class WaitingClient extends Client {
  protected readonly isSlow = false;
  readonly #resolve: Resolve;
  readonly #reject: Reject;

  constructor(options: ReplyOptions, resolve: Resolve, reject: Reject) {
    super(options);
    this.#resolve = resolve;
    this.#reject = reject;
  }

  protected begin(): void {}

  protected show(): void {}

  protected complete(finishes: readonly FinishEvent[]): void {
    this.#resolve(Response.json(this.options.format.body(finishes)));
  }

  protected refuse(error: unknown): void {
    this.#reject(error);
  }
}

class StreamingClient extends Client {
  readonly #resolve: Resolve;
  readonly #reject: Reject;
  #writer: SseWriter | undefined;

  constructor(options: ReplyOptions, resolve: Resolve, reject: Reject) {
    super(options);
    this.#resolve = resolve;
    this.#reject = reject;
  }

  protected get isSlow(): boolean {
    return this.#writer?.isSlow ?? false;
  }

  protected begin(): void {
    if (this.#writer !== undefined) return;
    this.#writer = new SseWriter(this.options.outgoing);
    this.#writer.send(this.options.format.opening());
    this.#resolve(RESPONSE_ALREADY_SENT);
  }

  protected show(chunks: readonly object[]): void {
    this.begin();
    this.#writer?.send(chunks);
  }

  protected complete(finishes: readonly FinishEvent[]): void {
    this.begin();
    this.#writer?.send(this.options.format.closing(finishes));
    this.#writer?.end();
  }

  protected refuse(error: unknown): void {
    if (this.#writer === undefined) this.#reject(error);
    else this.#writer.fail(error instanceof ApiError ? error.body : {});
  }
}
