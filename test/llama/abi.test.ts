import koffi from "koffi";
import { describe, expect, test } from "vitest";
import { checkAbi, firstDifference, isSupportedVersion, type DefaultParams } from "../../src/llama/abi.ts";
import { loadLlama } from "../../src/llama/library.ts";
import { contextDefaults, modelDefaults, quantizeDefaults } from "../../src/llama/struct-defaults.ts";
import { batchType, contextParamsType, modelParamsType, quantizeParamsType } from "../../src/llama/structs.ts";
import { UserError } from "../../src/util/errors.ts";

const llama = loadLlama();

/** A library that answers like ours, except where told. */
function library(overrides: Partial<DefaultParams>): DefaultParams {
  return {
    llama_version: () => "0.5.0-dev",
    llama_model_default_params: () => modelDefaults,
    llama_context_default_params: () => contextDefaults,
    llama_model_quantize_default_params: () => quantizeDefaults,
    ...overrides,
  };
}

describe("ABI check", () => {
  test("the installed library is the release our structs describe", () => {
    expect(isSupportedVersion(llama.version)).toBe(true);
    checkAbi(llama.api, llama.files.llama);
    // sizeof as gcc and clang give it on 64-bit platforms.
    expect([modelParamsType, contextParamsType, quantizeParamsType, batchType].map((type) => koffi.sizeof(type))).toEqual([80, 160, 64, 56]);
  });

  test.each(["0.4.9", "0.5.1", "1.0.5.0", "", "b1234"])("version %j is refused, both versions named", (version) => {
    const check = (): void => checkAbi(library({ llama_version: () => version }), "libllama.so");
    expect(check).toThrow(UserError);
    expect(check).toThrow(`llama.cpp ${version}; foretoken is made for llama.cpp 0.5.0`);
  });

  test("a struct that shifted by a field is refused", () => {
    const shifted = { ...contextDefaults, n_ctx: 0, n_batch: 512, n_ubatch: 2048 };
    expect(() => checkAbi(library({ llama_context_default_params: () => shifted }), "libllama.so")).toThrow("llama_context_params.n_ctx defaults to 0, not 512");
    expect(() => checkAbi(library({ llama_model_quantize_default_params: () => ({ ...quantizeDefaults, pure: true }) }), "libllama.so")).toThrow("pure");
    expect(firstDifference("s", { a: 1, b: 2 }, { a: 1, b: 2 })).toBeUndefined();
  });
});
