/** Errors in OpenAI's shape: {"error": {"message", "type", "param", "code"}}, with the HTTP status that clients act on. */
import { EngineUnavailable } from "../engine/request.ts";

export interface ApiErrorFields {
  readonly param?: string;
  readonly code?: string;
  /** Seconds, for the Retry-After header. */
  readonly retryAfterS?: number;
}

const typeOfStatus: Readonly<Record<number, string>> = {
  401: "authentication_error",
  403: "permission_error",
  404: "not_found_error",
  429: "rate_limit_error",
  501: "not_supported_error",
  503: "unavailable_error",
  504: "timeout_error",
};

export class ApiError extends Error {
  override readonly name: string = "ApiError";
  readonly status: number;
  readonly fields: ApiErrorFields;

  constructor(status: number, message: string, fields: ApiErrorFields = {}) {
    super(message);
    this.status = status;
    this.fields = fields;
  }

  get body(): { readonly error: Readonly<Record<string, unknown>> } {
    const { param = null, code = null } = this.fields;
    const type = typeOfStatus[this.status] ?? (this.status >= 500 ? "server_error" : "invalid_request_error");
    return { error: { message: this.message, type, param, code } };
  }

  get headers(): Record<string, string> {
    return this.fields.retryAfterS === undefined ? {} : { "retry-after": String(this.fields.retryAfterS) };
  }
}

export function badRequest(message: string, param?: string, code = "invalid_value"): ApiError {
  return new ApiError(400, message, { ...(param === undefined ? {} : { param }), code });
}

/** 429 when the queue is full, else 503: the client may try again after the time given. */
export function unavailable(error: EngineUnavailable): ApiError {
  const isFull = error.reason === "queue-full";
  const code = isFull ? "queue_full" : error.reason === "stopped" ? "shutting_down" : `engine_${error.reason}`;
  return new ApiError(isFull ? 429 : 503, error.message, { code, retryAfterS: Math.max(1, Math.ceil(error.retryAfterMs / 1000)) });
}

/** What an unexpected error may say to a client: nothing of its inside. */
export function toApiError(error: unknown): ApiError {
  if (error instanceof ApiError) return error;
  if (error instanceof EngineUnavailable) return unavailable(error);
  return new ApiError(500, "the server made an error; its log says more");
}
