/**
 * The one error class that callers react to. Everything a user can cause is a
 * UserError: the CLI prints its message on one line and exits with `exitCode`;
 * any other error is a bug and keeps its stack.
 *
 * A message names the call or file, the value, the limit and the next move.
 */
export class UserError extends Error {
  override readonly name: string = "UserError";
  /** 1: the work failed. 2: the command was used wrongly. */
  readonly exitCode: 1 | 2;

  constructor(message: string, options: { exitCode?: 1 | 2; cause?: unknown } = {}) {
    super(message, options.cause === undefined ? undefined : { cause: options.cause });
    this.exitCode = options.exitCode ?? 1;
  }
}

/** Wrong flags, wrong positionals, a recipe that does not parse. */
export function usageError(message: string): UserError {
  return new UserError(message, { exitCode: 2 });
}

export function errorMessage(error: unknown): string {
  return error instanceof Error ? error.message : String(error);
}

/** True for a Node system error with this code, for example `ENOENT`. */
export function hasErrorCode(error: unknown, code: string): boolean {
  return error instanceof Error && "code" in error && error.code === code;
}
