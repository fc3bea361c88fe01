/**
 * Is this the library that our declarations describe? A struct by value has no name at run time: a library of another
 * release would read our bytes as something else. So its version is compared, and its default structs field by field.
 */
import { UserError } from "../util/errors.ts";
import { contextDefaults, modelDefaults, quantizeDefaults } from "./struct-defaults.ts";

export const LLAMA_VERSION = "0.5.0";

/** "0.5.0-dev", "v0.5.0" and "0.5.0" are that release; builds add a suffix. */
export function isSupportedVersion(version: string): boolean {
  return /^v?0\.5\.0(?:$|[-+ ])/.test(version);
}

/** The first field whose value is not the expected default, in words; undefined when all agree. */
export function firstDifference(struct: string, actual: object, expected: object): string | undefined {
  for (const [field, want] of Object.entries(expected)) {
    const got: unknown = (actual as Record<string, unknown>)[field];
    if (got !== want) return `${struct}.${field} defaults to ${String(got)}, not ${String(want)}`;
  }
  return undefined;
}

export interface DefaultParams {
  llama_version(): string;
  llama_model_default_params(): object;
  llama_context_default_params(): object;
  llama_model_quantize_default_params(): object;
}

/** @throws {UserError} naming the library's version and ours. */
export function checkAbi(api: DefaultParams, file: string): void {
  const version = api.llama_version();
  const advice = `foretoken is made for llama.cpp ${LLAMA_VERSION}: install the pinned npm package or build that release`;
  if (!isSupportedVersion(version)) throw new UserError(`${file} is llama.cpp ${version}; ${advice}`);
  const difference =
    firstDifference("llama_model_params", api.llama_model_default_params(), modelDefaults) ??
    firstDifference("llama_context_params", api.llama_context_default_params(), contextDefaults) ??
    firstDifference("llama_model_quantize_params", api.llama_model_quantize_default_params(), quantizeDefaults);
  if (difference !== undefined) throw new UserError(`${file} calls itself llama.cpp ${version} but its structs differ (${difference}); ${advice}`);
}
