/**
 * `quantize`: libllama's quantizer in a child process, with everything around it that it leaves to the eye: how often
 * each rule matched, which tensors fell back to another type, which had no importance rows, what it came to.
 *
 * A dry run goes first: it costs a header and tells the size, so that a full disk or a rule that matches nothing stops
 * the work before it begins. Rules of type "copy" become one rule a tensor with the type that tensor has, and libllama
 * copies a tensor whose type does not change bit for bit.
 */
import * as path from "node:path";
import { readGguf, type GgufModel } from "../gguf/split.ts";
import { tensorBytes, type GgmlType } from "../gguf/types.ts";
import { UserError, usageError } from "../util/errors.ts";
import { requireDiskSpace, writeAtomic } from "../util/files.ts";
import { WorkChild } from "./child.ts";
import { readImatrix, type Imatrix } from "./imatrix.ts";
import { planRules, type RuleReport } from "./quantize-rules.ts";
import { parseQuantizeLine, type FallbackLine } from "./quantize-log.ts";
import { parseTensorType, type FileType, type TensorRule } from "./quantize-types.ts";
import { chooseThreads } from "./threads.ts";

export interface QuantizeOptions {
  readonly input: string;
  /** Not needed for a dry run. */
  readonly output?: string | undefined;
  readonly type: FileType;
  readonly threads?: number;
  readonly rules?: readonly TensorRule[];
  /** A rule that matches no tensor is an error unless this is set. */
  readonly allowUnmatched?: boolean;
  readonly allowRequantize?: boolean;
  readonly imatrix?: string | undefined;
  readonly outputType?: GgmlType | undefined;
  readonly embeddingType?: GgmlType | undefined;
  readonly leaveOutput?: boolean;
  /** One type for every tensor, no mixture. */
  readonly pure?: boolean;
  readonly dryRun?: boolean;
  readonly maxBufferBytes?: number;
  readonly llamaDir?: string | undefined;
  readonly signal?: AbortSignal | undefined;
  readonly onTensor?: (index: number, count: number, tensor: string) => void;
}

export interface SizeReport {
  readonly sizeBytes: number;
  /** Bits per weight over all tensors. */
  readonly bpw: number;
}

export interface QuantizeReport {
  readonly input: string;
  readonly output: string | undefined;
  readonly type: string;
  readonly isDryRun: boolean;
  readonly nTensors: number;
  readonly source: SizeReport;
  readonly result: SizeReport;
  /** Tensors of the result by type. */
  readonly nByType: Readonly<Record<string, number>>;
  readonly rules: readonly RuleReport[];
  /** Tensors whose rows are no whole number of blocks of the wanted type. */
  readonly fallbacks: readonly { readonly tensor: string; readonly rowLength: number; readonly wanted: string; readonly got: string }[];
  /** With an imatrix: tensors that are quantized and have no rows in it. */
  readonly withoutImatrix: readonly string[];
  readonly nThreads: number;
  readonly elapsedMs: number;
}

/** What crosses to the child. */
export interface NativeQuantizeRequest {
  readonly input: string;
  readonly output: string;
  readonly fileTypeId: number;
  readonly isCopy: boolean;
  readonly nThreads: number;
  readonly allowRequantize: boolean;
  readonly leaveOutput: boolean;
  readonly pure: boolean;
  readonly dryRun: boolean;
  readonly outputTypeId: number | undefined;
  readonly embeddingTypeId: number | undefined;
  readonly overrides: readonly { readonly pattern: string; readonly typeId: number }[];
  readonly imatrix: string | undefined;
  readonly maxBufferBytes: number;
  readonly llamaDir: string | undefined;
}

/**
 * @throws {UserError} for files that cannot be read, rules that match nothing, types that need what is not given, a
 * full disk, or libllama's refusal. Nothing is left under the output's name then.
 */
export async function quantizeFile(options: QuantizeOptions): Promise<QuantizeReport> {
  const startMs = performance.now();
  const source = readGguf(options.input);
  const { output } = options;
  if (options.dryRun !== true) {
    if (output === undefined) throw usageError("an output file is needed, or --dry-run");
    if (source.shards.some((shard) => path.resolve(shard.file) === path.resolve(output))) throw usageError(`the output ${output} is the input; choose another name`);
  }
  const rules = options.rules ?? [];
  if (rules.length > 0 && !options.type.isQuantized) throw usageError(`${options.type.name} takes no --tensor-type rules; libllama looks at them only when the type is a quantized one`);
  const plan = planRules(rules, source.tensors, options.leaveOutput ?? false);
  const unmatched = plan.reports.filter((report) => report.nMatched === 0);
  if (unmatched.length > 0 && options.allowUnmatched !== true)
    throw new UserError(`--tensor-type ${unmatched.map((report) => report.pattern).join(", ")} matches no tensor of ${options.input}; "foretoken inspect --tensors" lists them, --allow-unmatched goes on`);
  const imatrix = options.imatrix === undefined ? undefined : readImatrix(options.imatrix);
  const request = nativeRequest(options, plan.overrides);
  using child = new WorkChild({ entry: "quantize-child", what: `quantize of ${options.input}`, signal: options.signal });
  const dry = await runNative(child, options, { ...request, dryRun: true });
  const planned = typesAfter(source, dry.types);
  if (options.dryRun !== true) checkPlan(options, source, planned, dry.needsImatrix);
  const withoutImatrix = imatrix === undefined ? [] : missingFromImatrix(imatrix, source, planned);
  const base = { input: options.input, type: options.type.name, nTensors: source.tensors.length, source: sizeOf(source), rules: plan.reports, fallbacks: dry.fallbacks.map(({ tensor, rowLength, wanted, got }) => ({ tensor, rowLength, wanted, got })), withoutImatrix, nThreads: request.nThreads };
  const plannedBytes = source.tensors.reduce((sum, tensor) => sum + tensorBytes(planned.get(tensor.name) as GgmlType, tensor.shape), 0);
  const finish = (rest: { result: SizeReport; nByType: Record<string, number>; output: string | undefined; isDryRun: boolean }): QuantizeReport => ({ ...base, ...rest, elapsedMs: performance.now() - startMs });
  if (options.dryRun === true || output === undefined)
    return finish({ result: { sizeBytes: plannedBytes, bpw: bitsPerWeight(plannedBytes, source) }, nByType: countTypes([...planned.values()].map((type) => type.name)), output: undefined, isDryRun: true });
  requireDiskSpace(path.dirname(path.resolve(output)), plannedBytes + (16 << 20), `quantizing to ${output}`);
  const result = await writeAtomic(output, async (temporary) => {
    await runNative(child, options, { ...request, output: temporary });
    return readGguf(temporary);
  });
  return finish({ result: sizeOf(result), nByType: countTypes(result.tensors.map((tensor) => tensor.type?.name ?? "unknown")), output, isDryRun: false });
}

function nativeRequest(options: QuantizeOptions, overrides: NativeQuantizeRequest["overrides"]): NativeQuantizeRequest {
  return {
    input: options.input,
    output: "",
    fileTypeId: options.type.id,
    isCopy: options.type.isCopy,
    nThreads: chooseThreads(options.threads ?? 0, 0),
    allowRequantize: options.allowRequantize ?? false,
    leaveOutput: options.leaveOutput ?? false,
    pure: options.pure ?? false,
    dryRun: false,
    outputTypeId: options.outputType?.id,
    embeddingTypeId: options.embeddingType?.id,
    overrides,
    imatrix: options.imatrix,
    maxBufferBytes: options.maxBufferBytes ?? 8 * 2 ** 30,
    llamaDir: options.llamaDir,
  };
}

interface NativeOutcome {
  /** Of the tensors whose type changes. */
  readonly types: ReadonlyMap<string, string>;
  readonly fallbacks: readonly FallbackLine[];
  readonly needsImatrix: boolean;
}

async function runNative(child: WorkChild, options: QuantizeOptions, request: NativeQuantizeRequest): Promise<NativeOutcome> {
  const types = new Map<string, string>();
  const fallbacks: FallbackLine[] = [];
  let reason = "";
  let needsImatrix = false;
  const code = await child.call<NativeQuantizeRequest, number>(request, (line) => {
    const parsed = parseQuantizeLine(line);
    if (parsed?.kind === "fallback") fallbacks.push(parsed);
    else if (parsed?.kind === "failure") reason = parsed.reason;
    else if (parsed?.kind === "needs-imatrix") needsImatrix = true;
    else if (parsed?.kind === "tensor") {
      if (parsed.to !== undefined) types.set(parsed.tensor, parsed.to);
      if (!request.dryRun) options.onTensor?.(parsed.index, parsed.count, parsed.tensor);
    }
  });
  if (code !== 0) throw new UserError(`quantize of ${options.input} failed: ${reason || `libllama returned ${code}`}${adviceFor(reason)}`);
  return { types, fallbacks, needsImatrix };
}

/** What libllama would refuse in the middle of the work. */
function checkPlan(options: QuantizeOptions, source: GgufModel, planned: ReadonlyMap<string, GgmlType>, needsImatrix: boolean): void {
  if (needsImatrix) throw new UserError(`${options.type.name} needs an importance matrix for some tensors of ${options.input}; give --imatrix, made by llama-imatrix from the 16-bit file`);
  const requantized = source.tensors.find((tensor) => tensor.type !== undefined && tensor.type.blockSize > 1 && planned.get(tensor.name) !== tensor.type);
  if (requantized !== undefined && options.allowRequantize !== true)
    throw new UserError(`${requantized.name} of ${options.input} is ${requantized.type?.name ?? ""} already; add --allow-requantize, or start from the 16-bit file`);
}

function adviceFor(reason: string): string {
  if (/requantizing from type/.test(reason)) return "; add --allow-requantize, or start from the 16-bit file";
  if (/imatrix/i.test(reason)) return "; give --imatrix, made by llama-imatrix from the 16-bit file";
  return "";
}

function typesAfter(source: GgufModel, changed: ReadonlyMap<string, string>): Map<string, GgmlType> {
  return new Map(
    source.tensors.map((tensor) => {
      const to = changed.get(tensor.name);
      if (to !== undefined) return [tensor.name, parseTensorType(to, tensor.name)];
      if (tensor.type === undefined) throw new UserError(`${tensor.name} has type ${tensor.typeId}, which this release does not know`);
      return [tensor.name, tensor.type];
    }),
  );
}

/** @throws {UserError} when a tensor's rows in the matrix have another width: libllama would find out after hours. */
function missingFromImatrix({ file, entries }: Imatrix, source: GgufModel, planned: ReadonlyMap<string, GgmlType>): string[] {
  const quantized = source.tensors.filter((tensor) => planned.get(tensor.name) !== tensor.type && (planned.get(tensor.name) as GgmlType).blockSize > 1);
  for (const { name, shape } of quantized) {
    const rows = entries.get(name);
    const wanted = (shape[0] as number) * (shape[2] ?? 1);
    if (rows !== undefined && rows.length !== wanted && name !== "token_embd.weight") throw new UserError(`--imatrix ${file} has ${rows.length} values for ${name}, which needs ${wanted}; it was made from another model`);
  }
  return quantized.filter((tensor) => !entries.has(tensor.name)).map((tensor) => tensor.name);
}

function bitsPerWeight(sizeBytes: number, model: GgufModel): number {
  return (8 * sizeBytes) / model.tensors.reduce((sum, tensor) => sum + tensor.nElements, 0);
}

function sizeOf(model: GgufModel): SizeReport {
  const sizeBytes = model.tensors.reduce((sum, tensor) => sum + tensor.sizeBytes, 0);
  return { sizeBytes, bpw: bitsPerWeight(sizeBytes, model) };
}

function countTypes(names: readonly string[]): Record<string, number> {
  const counts: Record<string, number> = {};
  for (const name of names.toSorted()) counts[name] = (counts[name] ?? 0) + 1;
  return counts;
}
