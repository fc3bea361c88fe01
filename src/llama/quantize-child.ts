/** Child of `quantize`: one call of llama_model_quantize on a thread of the pool; the lines that libllama logs go to the parent. */
import koffi from "koffi";
import { serveChild } from "./child.ts";
import { readImatrix, type Imatrix } from "./imatrix.ts";
import { forwardLog, loadLlama } from "./library.ts";
import { GGML_TYPE_COUNT, quantizeDefaults } from "./struct-defaults.ts";
import type { QuantizeParams } from "./structs.ts";
import type { NativeQuantizeRequest } from "./quantize.ts";

type AsyncQuantize = { async(input: string, output: string, params: QuantizeParams, done: (error: Error | null, code: number) => void): void };

/** What the params point at lives as long as this array. */
type Keep = NodeJS.TypedArray[];

function pointerTo(keep: Keep, bytes: NodeJS.TypedArray): bigint {
  keep.push(bytes);
  return koffi.address(bytes);
}

const pinnedWords = (n: number): BigUint64Array => new BigUint64Array(new ArrayBuffer(Math.max(128, 8 * n)), 0, n);

function pinnedText(keep: Keep, text: string): bigint {
  const bytes = Buffer.from(`${text}\0`, "utf8");
  const copy = new Uint8Array(new ArrayBuffer(Math.max(128, bytes.length)), 0, bytes.length);
  copy.set(bytes);
  return pointerTo(keep, copy);
}

/** llama_model_tensor_override[]: pattern pointer and type, ended by a null pattern. */
function overrideArray(keep: Keep, overrides: NativeQuantizeRequest["overrides"]): BigUint64Array | null {
  if (overrides.length === 0) return null;
  const words = pinnedWords(2 * overrides.length + 2);
  overrides.forEach(({ pattern, typeId }, i) => words.set([pinnedText(keep, pattern), BigInt(typeId)], 2 * i));
  words.set([0n, BigInt(GGML_TYPE_COUNT)], 2 * overrides.length);
  keep.push(words);
  return words;
}

/** llama_model_imatrix_data[]: name, data, number of floats, ended by a null name. */
function imatrixArray(keep: Keep, imatrix: Imatrix): BigUint64Array {
  const words = pinnedWords(3 * imatrix.entries.size + 3);
  let i = 0;
  for (const [name, values] of imatrix.entries) {
    words.set([pinnedText(keep, name), pointerTo(keep, values), BigInt(values.length)], 3 * i++);
  }
  keep.push(words);
  return words;
}

const OVERRIDE_BYTES = 264;
const VALUE_AT = 136;

/** llama_model_kv_override[]: what llama-quantize writes into the file about the matrix. */
function imatrixKeys(keep: Keep, imatrix: Imatrix): Uint8Array {
  const values: [string, string | number][] = [
    ["quantize.imatrix.file", imatrix.file],
    ...imatrix.datasets.slice(0, 1).map((dataset): [string, string] => ["quantize.imatrix.dataset", dataset]),
    ["quantize.imatrix.entries_count", imatrix.entries.size],
    ...(imatrix.nChunks > 0 ? [["quantize.imatrix.chunks_count", imatrix.nChunks] as [string, number]] : []),
  ];
  const bytes = new Uint8Array(OVERRIDE_BYTES * (values.length + 1));
  const view = new DataView(bytes.buffer);
  values.forEach(([key, value], i) => {
    const at = i * OVERRIDE_BYTES;
    view.setInt32(at, typeof value === "number" ? 0 : 3, true);
    bytes.set(Buffer.from(key), at + 4);
    if (typeof value === "number") view.setBigInt64(at + VALUE_AT, BigInt(value), true);
    else bytes.set(Buffer.from(value).subarray(0, 127), at + VALUE_AT);
  });
  keep.push(bytes);
  return bytes;
}

let isForwarding = false;

async function quantize(request: NativeQuantizeRequest, note: (line: string) => void): Promise<number> {
  const llama = loadLlama({ llamaDir: request.llamaDir, device: "cpu" });
  if (!isForwarding) forwardLog(llama, note);
  isForwarding = true;
  const keep: Keep = [];
  const imatrix = request.imatrix === undefined ? undefined : readImatrix(request.imatrix);
  const params: QuantizeParams = {
    ...quantizeDefaults,
    nthread: request.nThreads,
    ftype: request.fileTypeId,
    output_tensor_type: request.outputTypeId ?? GGML_TYPE_COUNT,
    token_embedding_type: request.embeddingTypeId ?? GGML_TYPE_COUNT,
    allow_requantize: request.allowRequantize,
    quantize_output_tensor: !request.leaveOutput,
    only_copy: request.isCopy,
    pure: request.pure,
    dry_run: request.dryRun,
    tt_overrides: overrideArray(keep, request.overrides),
    imatrix: imatrix === undefined ? null : imatrixArray(keep, imatrix),
    kv_overrides: imatrix === undefined ? null : imatrixKeys(keep, imatrix),
    max_buf_size: request.maxBufferBytes,
  };
  const { api }: { api: { llama_model_quantize: unknown } } = llama;
  const call = api.llama_model_quantize as AsyncQuantize;
  const code = await new Promise<number>((resolve, reject) => call.async(request.input, request.output, params, (error, result) => (error === null ? resolve(result) : reject(error))));
  keep.length = 0;
  return code;
}

serveChild(quantize);
