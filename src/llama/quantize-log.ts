/** What llama_model_quantize says while it works, line by line (llama-quant.cpp): progress, fallbacks, the reason of a failure. */

export interface TensorLine {
  readonly kind: "tensor";
  readonly index: number;
  readonly count: number;
  readonly tensor: string;
  /** Type of the result as a dry run names it, in ggml's spelling; undefined when it stays as it is or is not said. */
  readonly to: string | undefined;
}

export interface FallbackLine {
  readonly kind: "fallback";
  readonly tensor: string;
  readonly rowLength: number;
  readonly wanted: string;
  readonly got: string;
}

export interface FailureLine {
  readonly kind: "failure";
  readonly reason: string;
}

/** Of a dry run: the run itself will not go without an importance matrix. */
export interface NeedsImatrixLine {
  readonly kind: "needs-imatrix";
}

export type QuantizeLine = TensorLine | FallbackLine | FailureLine | NeedsImatrixLine;

/** Undefined for lines that say nothing we need. */
export function parseQuantizeLine(line: string): QuantizeLine | undefined {
  // The reason of a failure ends the line of the tensor it came at.
  const failure = /failed to quantize: (.*)$/.exec(line);
  if (failure !== null) return { kind: "failure", reason: (failure[1] as string).trim() };
  const fallback = /warning: (\S+)\s+- ncols\s+(\d+) not divisible by\s+\d+ \(required for type\s+(\S+)\).*-> falling back to\s+(\S+)/.exec(line);
  if (fallback !== null) {
    const [, tensor = "", rowLength = "", wanted = "", got = ""] = fallback;
    return { kind: "fallback", tensor, rowLength: Number(rowLength), wanted: wanted.toUpperCase(), got: got.toUpperCase() };
  }
  const tensor = /^\[\s*(\d+)\/\s*(\d+)\]\s+(\S+)\s+- \[.*?\], type =/.exec(line);
  if (tensor !== null) {
    const [, index = "", count = "", name = ""] = tensor;
    const to = /converting to (\S+)/.exec(line)?.[1] ?? /-> .*MiB \((\w+)\)/.exec(line)?.[1];
    return { kind: "tensor", index: Number(index), count: Number(count), tensor: name, to: to?.toUpperCase() };
  }
  return /completing this quantization will require an imatrix/.test(line) ? { kind: "needs-imatrix" } : undefined;
}
