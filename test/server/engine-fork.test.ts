import { expect, test } from "vitest";
import { reasonIn } from "../../src/server/engine-fork.ts";

test.each([
  ["loading\n/src/ggml.c:123: GGML_ASSERT(n > 0) failed\n[New LWP 1]\n#0 main ()\n", "/src/ggml.c:123: GGML_ASSERT(n > 0) failed"],
  ["ggml_cuda: CUDA error: out of memory\n  current device: 0\n", "ggml_cuda: CUDA error: out of memory"],
  ["file.js:1\nTypeError: x is not a function\n    at a\n", "TypeError: x is not a function"],
  ["first\nlast words\n\n", "last words"],
  ["", ""],
])("%j", (text, reason) => expect(reasonIn(text)).toBe(reason));
