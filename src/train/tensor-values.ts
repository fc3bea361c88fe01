/** Values of a GGUF tensor as F32. Quantized types are dequantized by ggml itself, so the numbers are the runtime's. */
import * as fs from "node:fs";
import type { GgufTensor } from "../gguf/header.ts";
import { decodeFloats, isFloatType } from "../hf/elements.ts";
import { ggmlType, type GgmlDevice } from "../llama/ggml.ts";
import { UserError } from "../util/errors.ts";
import { allocateGraph } from "./allocate.ts";
import { readFully } from "../util/files.ts";

const mostRowsAtOnce = 8192;

/** @throws {UserError} for a type that this release of ggml does not know. */
export function readTensorValues(device: GgmlDevice, tensor: GgufTensor): Float32Array {
  if (tensor.type === undefined) throw new UserError(`${tensor.file}: ${tensor.name} has the unknown type ${tensor.typeId}`);
  const out = new Float32Array(tensor.nElements);
  const rowLength = tensor.shape[0] ?? 1;
  const nRows = tensor.nElements / rowLength;
  const rowBytes = tensor.sizeBytes / nRows;
  const fd = fs.openSync(tensor.file, "r");
  try {
    for (let row = 0; row < nRows; row += mostRowsAtOnce) {
      const n = Math.min(mostRowsAtOnce, nRows - row);
      const bytes = new Uint8Array(n * rowBytes);
      readFully(fd, bytes, tensor.offset + row * rowBytes);
      const into = out.subarray(row * rowLength, (row + n) * rowLength);
      if (isFloatType(tensor.type.name)) decodeFloats(bytes, tensor.type.name, into);
      else dequantize(device, tensor.typeId, rowLength, n, bytes, into);
    }
  } finally {
    fs.closeSync(fd);
  }
  return out;
}

/** get_rows of a quantized tensor gives F32 rows. */
function dequantize(device: GgmlDevice, typeId: number, rowLength: number, nRows: number, bytes: Uint8Array, out: Float32Array): void {
  const { ggml } = device;
  const inputs = device.newContext(4096);
  const source = ggml.ggml_new_tensor_2d(inputs, typeId, rowLength, nRows);
  const index = ggml.ggml_new_tensor_1d(inputs, ggmlType.I32, nRows);
  const buffer = device.allocate(inputs);
  device.set(source, bytes);
  device.set(index, Int32Array.from({ length: nRows }, (_, i) => i));
  const context = device.newContext(ggml.ggml_graph_overhead_custom(8, false) + 4096);
  const graph = ggml.ggml_new_graph_custom(context, 8, false);
  const rows = ggml.ggml_get_rows(context, source, index);
  ggml.ggml_build_forward_expand(graph, rows);
  const allocator = allocateGraph(device, graph, "dequantizing a tensor");
  device.compute(graph);
  device.get(rows, out);
  ggml.ggml_gallocr_free(allocator);
  ggml.ggml_backend_buffer_free(buffer);
  ggml.ggml_free(context);
  ggml.ggml_free(inputs);
}
