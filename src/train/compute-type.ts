/** Which type products with weights are faster in, on this device: a CPU without BF16 instructions emulates them. */
import { ggmlType, type GgmlDevice } from "../llama/ggml.ts";
import { allocateGraph } from "./allocate.ts";
import type { ComputeType } from "./tape.ts";

const size = 256;
const nRuns = 5;

export function chooseComputeType(device: GgmlDevice, wanted: ComputeType | "auto"): ComputeType {
  if (wanted !== "auto") return wanted;
  return productMs(device, ggmlType.BF16) < productMs(device, ggmlType.F32) ? "bf16" : "f32";
}

/** The fastest of a few products, so that a neighbour's burst does not decide. */
function productMs(device: GgmlDevice, type: number): number {
  const { ggml } = device;
  const inputs = device.newContext(4096);
  const weight = ggml.ggml_new_tensor_2d(inputs, type, size, 4 * size);
  const rows = ggml.ggml_new_tensor_2d(inputs, ggmlType.F32, size, size);
  const buffer = device.allocate(inputs);
  const context = device.newContext(ggml.ggml_graph_overhead_custom(8, false) + 4096);
  const graph = ggml.ggml_new_graph_custom(context, 8, false);
  ggml.ggml_build_forward_expand(graph, ggml.ggml_mul_mat(context, weight, rows));
  const allocator = allocateGraph(device, graph, "a product");
  const times = Array.from({ length: nRuns }, () => {
    const startMs = performance.now();
    device.compute(graph);
    return performance.now() - startMs;
  });
  ggml.ggml_gallocr_free(allocator);
  ggml.ggml_backend_buffer_free(buffer);
  ggml.ggml_free(context);
  ggml.ggml_free(inputs);
  return Math.min(...times);
}
