/** Memory of a graph's intermediate results: ggml's graph allocator reuses a tensor's place after its last reader. */
import type { GgmlDevice, Graph, Tensor } from "../llama/ggml.ts";
import { UserError } from "../util/errors.ts";

/** An allocator; `ggml_gallocr_free` ends it. */
export function newAllocator({ ggml, backend, device }: GgmlDevice): Tensor {
  const allocator = ggml.ggml_gallocr_new(ggml.ggml_backend_get_default_buffer_type(backend));
  if (allocator === null) throw new UserError(`${device.name} gives no graph allocator`);
  return allocator;
}

/** Gives the graph's tensors their places, growing the allocator's buffer where needed. */
export function placeGraph({ ggml, device }: GgmlDevice, allocator: Tensor, graph: Graph, what: string): void {
  if (!ggml.ggml_gallocr_alloc_graph(allocator, graph)) throw new UserError(`${device.name} has no memory for ${what}; use fewer tokens a step, smaller chunks, or freeze the experts`);
}

export function allocateGraph(device: GgmlDevice, graph: Graph, what: string): Tensor {
  const allocator = newAllocator(device);
  placeGraph(device, allocator, graph, what);
  return allocator;
}
